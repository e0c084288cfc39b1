"""The HTTP server itself: its certificate, and connections on which no request ever comes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from octavo.cluster.api import connection, server, tls
from octavo.cluster.api.app import FrontSettings, create_app
from octavo.cluster.api.settings import Address
from octavo.cluster.api.tls import Certificate, certificate_of
from octavo.scheduler.errors import InvalidRequest
from tests.cluster.scripted import TOKENIZER, ScriptedEngine, says

HOST = "127.0.0.1"


def write_pair(folder: Path, name: str, passphrase: str = "") -> Certificate:
    """A certificate of its own making, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pair = Certificate(str(folder / "cert.pem"), str(folder / "key.pem"))
    Path(pair.certfile).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        hidden = serialization.BestAvailableEncryption(passphrase.encode())
    Path(pair.keyfile).write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    )
    return pair


@asynccontextmanager
async def served(certificate: Certificate | None = None) -> AsyncIterator[int]:
    """The port."""
    app = create_app(ScriptedEngine(says("Hi")), FrontSettings("", ("m",)), TOKENIZER)
    http = server.HttpServer(app, Address(HOST, 0, certificate))
    http.start()
    try:
        yield http.port
    finally:
        await http.stop()


def test_a_token_does_not_wait_until_what_came_before_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_delay = []

    class Watched(connection.Connection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            made = transport.get_extra_info("socket")
            no_delay.append(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().connection_made(transport)

    monkeypatch.setattr(server, "Connection", Watched)

    async def scene() -> None:
        async with served() as port, httpx.AsyncClient() as http:
            assert (await http.get(f"http://{HOST}:{port}/health")).status_code == 200

    asyncio.run(scene())
    assert no_delay == [1]


def test_with_a_certificate_it_speaks_tls_alone_and_takes_a_renewed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.02)
    pair = write_pair(tmp_path, "first")

    async def shown(port: int) -> str:
        context = ssl.create_default_context(cafile=pair.certfile)
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=context, server_hostname="localhost"
        )
        names = dict(pair for (pair,) in writer.get_extra_info("peercert")["subject"])
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
        return str(names["commonName"])

    async def scene() -> None:
        async with served(pair) as port:
            context = ssl.create_default_context(cafile=pair.certfile)
            async with httpx.AsyncClient(verify=context) as http:
                url = f"https://localhost:{port}"
                body = {"prompt": "x", "stream": True}
                answer = await http.post(f"{url}/v1/completions", json=body)
                assert answer.text.endswith("data: [DONE]\n\n")
                assert "server" not in answer.headers
            async with httpx.AsyncClient() as http:
                with pytest.raises(httpx.TransportError):
                    await http.get(f"http://localhost:{port}/health")
            assert await shown(port) == "first"
            key = Path(pair.keyfile).read_text()
            write_pair(tmp_path, "second")
            new_key = Path(pair.keyfile).read_text()
            Path(pair.keyfile).write_text(key)  # of the first one: the renewal is half done
            await asyncio.sleep(0.1)
            Path(pair.keyfile).write_text(new_key)
            async with asyncio.timeout(10):
                while True:
                    try:
                        assert await shown(port) == "second"
                        return
                    except ssl.SSLCertVerificationError:  # the first one is still shown
                        await asyncio.sleep(0.02)

    asyncio.run(scene())


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    assert certificate_of(None, None) is None
    pair = write_pair(tmp_path, "name")
    assert certificate_of(*pair) == pair
    both = tmp_path / "both.pem"
    both.write_text(Path(pair.certfile).read_text() + Path(pair.keyfile).read_text())
    assert certificate_of(str(both), None) == (str(both), str(both))
    wrong = [(pair.certfile, pair.certfile), (pair.keyfile, pair.keyfile)]
    other = tmp_path / "other"
    other.mkdir()
    wrong += [(pair.certfile, write_pair(other, "other").keyfile)]
    for certfile, keyfile in wrong:
        with pytest.raises(InvalidRequest, match="no pair of PEM files") as caught:
            certificate_of(certfile, keyfile)
        assert caught.value.param == "ssl_certfile"
    hidden = write_pair(other, "hidden", passphrase="secret")
    with pytest.raises(InvalidRequest, match="without a passphrase"):
        certificate_of(*hidden)
    with pytest.raises(InvalidRequest, match="ssl_keyfile /no/such cannot be read"):
        certificate_of(pair.certfile, "/no/such")


async def ends(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes the connection, while more may be on its way to it."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            while piece := await reader.read(65536):
                got += piece
    return got


def test_headers_that_do_not_end_are_cut_off() -> None:
    async def scene() -> None:
        async with served() as port:
            fields = b"".join(b"X-%d: y\r\n" % number for number in range(10**4))
            begun = b"GET / HTTP/1.1\r\n"
            for flood in (b"GET /" + b"x" * 70_000, begun + b"X: " + b"x" * 70_000, begun + fields):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(flood)
                assert (await ends(reader)).startswith(b"HTTP/1.1 431 ")
                writer.close()
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(begun + b"X: " + b"x" * 10**8)
            assert len(await ends(reader)) < 200
            writer.close()
            async with httpx.AsyncClient() as http:
                url = f"http://{HOST}:{port}/v1/completions"
                headers = {"X-Long": "x" * 30_000}
                body = {"prompt": "x", "ignored": "y" * 10**6}
                for _ in range(2):  # on one connection
                    answer = await http.post(url, json=body, headers=headers)
                    assert answer.status_code == 200

    asyncio.run(scene())


def test_headers_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.2)

    async def scene() -> None:
        async with served() as port:
            silent, first = await asyncio.open_connection(HOST, port)
            slow, second = await asyncio.open_connection(HOST, port)
            second.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            again, third = await asyncio.open_connection(HOST, port)
            third.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\n")
            assert await ends(silent) == b"" == await ends(slow)
            assert (await ends(again)).count(b"HTTP/1.1 200 ") == 1
            for writer in (first, second, third):
                writer.close()
            engine_is_free = await asyncio.open_connection(HOST, port)
            engine_is_free[1].write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await engine_is_free[0].readline()).startswith(b"HTTP/1.1 200 ")
            engine_is_free[1].close()

    asyncio.run(scene())
