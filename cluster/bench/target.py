"""The server under load: where it is, what it serves, and how it is spoken to."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from octavo.cluster.bench.names import ENDPOINTS
from octavo.cluster.bench.options import pairs
from octavo.scheduler.errors import InvalidRequest

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 6 * 3600.0
FIRST_ANSWER_SECONDS = 30.0
IDLE_SECONDS = 4.0
"""How long an idle connection is used again: less than a server keeps it. Uvicorn's, under ours and
vLLM's, end after 5 s, and a request sent in that moment would count as one that failed."""


@dataclass(frozen=True, slots=True)
class Target:
    """`url` is where requests go; `base` is the server's own address."""

    base: str
    url: str
    headers: Mapping[str, str]
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Served:
    """A model as its server lists it. `root` is where the server has it from, `max_len` its longest
    prompt and answer together, where it says so."""

    name: str
    root: str
    max_len: int | None = None


@contextlib.asynccontextmanager
async def open_session(verify: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as there are requests in flight. Proxies of the environment are passed
    by: they would be measured too."""
    connector = aiohttp.TCPConnector(limit=0, ssl=verify, keepalive_timeout=IDLE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=2**20
    ) as session:
        yield session


def endpoint(arguments: argparse.Namespace) -> str:
    """The path that requests go to."""
    path: str = arguments.endpoint or ENDPOINTS[arguments.backend]
    return path


def target_of(arguments: argparse.Namespace) -> Target:
    """From the flags; the key is OpenAI's, from `OPENAI_API_KEY`. Raises `InvalidRequest`."""
    base = arguments.base_url or f"http://{arguments.host}:{arguments.port}"
    base = base.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InvalidRequest(
            "base_url", f"base_url must begin with http:// or https://, got {arguments.base_url!r}"
        )
    path = endpoint(arguments)
    if not path.startswith("/"):
        raise InvalidRequest("endpoint", f"endpoint must begin with /, got {path!r}")
    headers = pairs(arguments.header, "header")
    key = os.environ.get("OPENAI_API_KEY")
    if key and "Authorization" not in headers:
        headers["Authorization"] = f"Bearer {key}"
    return Target(base, base + path, headers, not arguments.insecure)


async def find_model(arguments: argparse.Namespace, target: Target) -> Served:
    """The model that is asked for, or else the first that the server lists. Waits for a server that
    is still starting as long as `--ready-check-timeout-sec` says. Raises `InvalidRequest` where
    nobody answers, or no model can be told."""
    deadline = time.monotonic() + arguments.ready_check_timeout_sec
    async with open_session(target.verify) as session:
        while True:
            status, answer = await _models(session, target)
            if status == 200 or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
    if status == 0:
        raise InvalidRequest(
            "base_url",
            f"no server answers at {target.base}: {answer}; start one with `octavo serve`, or say "
            "where it is with --base-url or --host and --port",
        )
    if status in (401, 403):
        raise InvalidRequest(
            "header", f"{target.base} wants a key: set OPENAI_API_KEY to one that it knows"
        )
    wanted = arguments.served_model_name or arguments.model
    models = _listed(answer) if status == 200 else []
    served = next((each for each in models if wanted in (None, each.name)), None)
    if served is not None:
        return Served(served.name, arguments.model or served.root, served.max_len)
    if wanted is None:
        raise InvalidRequest(
            "model", f"{target.base} lists no models (status {status}): name one with --model"
        )
    return Served(wanted, arguments.model or wanted)


async def _models(session: aiohttp.ClientSession, target: Target) -> tuple[int, str]:
    """Status and text of the list; status 0 and the reason where there is no answer."""
    patience = aiohttp.ClientTimeout(total=FIRST_ANSWER_SECONDS)
    url = f"{target.base}/v1/models"
    try:
        async with session.get(url, headers=target.headers, timeout=patience) as response:
            return response.status, await response.text(errors="replace")
    except TimeoutError:
        return 0, f"nothing came within {FIRST_ANSWER_SECONDS:g} s"
    except aiohttp.ClientConnectorError as error:
        return 0, (os.strerror(error.errno) if error.errno else str(error)).lower()
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return 0, str(error)


def _listed(answer: str) -> list[Served]:
    try:
        found: Any = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return []
    data = found.get("data") if isinstance(found, dict) else None
    models = []
    for each in data if isinstance(data, list) else ():
        if isinstance(each, dict) and isinstance(each.get("id"), str):
            length = each.get("max_model_len")
            root = each.get("root")
            models.append(
                Served(
                    each["id"],
                    root if isinstance(root, str) else each["id"],
                    length if isinstance(length, int) else None,
                )
            )
    return models
