"""The certificate that a server shows, taken anew from its files when these were renewed."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import NamedTuple

from octavo.scheduler.errors import InvalidRequest

LOOK_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Certificate(NamedTuple):
    """Two PEM files: the certificate, with those that sign it, and its key."""

    certfile: str
    keyfile: str

    def context(self) -> ssl.SSLContext:
        """For a server. Raises `InvalidRequest` where the files are not what they should be."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for name, path in (("ssl_certfile", self.certfile), ("ssl_keyfile", self.keyfile)):
            if not os.access(path, os.R_OK):
                raise InvalidRequest(name, f"{name} {path} cannot be read; is it there?")
        try:
            # A key with a passphrase would ask for it on the terminal.
            context.load_cert_chain(self.certfile, self.keyfile, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise InvalidRequest(
                "ssl_certfile",
                f"--ssl-certfile {self.certfile} and --ssl-keyfile {self.keyfile} are no pair of "
                f"PEM files without a passphrase: {error}",
            ) from None
        return context

    async def keep_fresh(self, context: ssl.SSLContext) -> None:
        """Has new connections see what the files hold by now, for ever. Files that do not fit,
        because only one is new yet, change nothing."""
        taken = self._marks()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (marks := self._marks()) == taken:
                continue
            try:
                self.context()
                context.load_cert_chain(self.certfile, self.keyfile, password="")
            except (InvalidRequest, ssl.SSLError, OSError) as error:
                _log.warning("the renewed certificate was not taken: %s", error)
            else:
                _log.warning("the certificate in %s was renewed", self.certfile)
            taken = marks

    def _marks(self) -> list[tuple[int, ...]]:
        """What differs where a file's content does."""
        marks: list[tuple[int, ...]] = []
        for path in self:
            try:
                found = os.stat(path)
            except OSError:
                marks.append(())
            else:
                marks.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return marks


def certificate_of(certfile: str | None, keyfile: str | None) -> Certificate | None:
    """Where both are given; the key may be in the same file as the certificate. Raises
    `InvalidRequest` where they cannot be used."""
    if certfile is None:
        if keyfile is not None:
            raise InvalidRequest("ssl_keyfile", "ssl_keyfile needs --ssl-certfile beside it")
        return None
    certificate = Certificate(os.path.abspath(certfile), os.path.abspath(keyfile or certfile))
    certificate.context()
    return certificate
