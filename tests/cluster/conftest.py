"""Servers that many tests share: one whose engine is scripted, one over a tiny model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from octavo.cluster.api.app import FrontSettings, create_app
from octavo.cluster.client import EngineClient
from octavo.cluster.text.tokens import Tokenizer
from tests.cluster.calls import Connect
from tests.cluster.case_server import Server
from tests.cluster.scripted import TOKENIZER
from tests.cluster.serving import (
    MODEL,
    Switch,
    serve,
    serve_engine,
    settings_for,
    switched,
    tiny_engine,
)
from tests.conftest import TinyModel


@pytest.fixture(scope="session")
def wire() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with serve(switched(switch)) as url:
        yield switch, url


@pytest.fixture
def connected(wire: tuple[Switch, str]) -> Connect:
    """`with connected(engine, **settings) as http`."""
    switch, url = wire

    @contextlib.contextmanager
    def connect(
        engine: EngineClient,
        tokenizer: Tokenizer = TOKENIZER,
        model_path: str = "",
        **settings: Any,
    ) -> Iterator[httpx.Client]:
        front = FrontSettings(model_path, (MODEL, "alias"), **settings)
        switch.app = create_app(engine, front, tokenizer)
        with httpx.Client(base_url=url, timeout=20) as http:
            yield http

    return connect


@pytest.fixture(scope="session")
def server(tiny_model: TinyModel) -> Iterator[Server]:
    path = tiny_model()
    with (
        serve_engine(tiny_engine(path), settings_for(path)) as url,
        contextlib.closing(Server(url)) as server,
    ):
        yield server


@pytest.fixture
def small_server(tiny_model: TinyModel) -> Iterator[Callable[[int], Server]]:
    """A server with a pool of that many usable blocks of 16 tokens."""
    path = tiny_model()
    with contextlib.ExitStack() as stack:

        def start(blocks: int) -> Server:
            engine = tiny_engine(path, num_blocks=blocks + 1)
            url = stack.enter_context(serve_engine(engine, settings_for(path)))
            return stack.enter_context(contextlib.closing(Server(url)))

        yield start


@pytest.fixture(scope="session")
def border(server: Server) -> tuple[str, str]:
    """A greedy answer, and a piece of it that crosses a token border and occurs nowhere before."""
    answer = server.complete(max_tokens=64, logprobs=0)["choices"][0]
    text, offsets = answer["text"], answer["logprobs"]["text_offset"]
    for offset in offsets[8:]:
        piece = text[offset - 2 : offset + 2]
        inside = offset - 1 in offsets or offset + 1 in offsets
        if piece.isascii() and not inside and text.index(piece) == offset - 2:
            return text, piece
    raise AssertionError(f"no border of two longer tokens in {text!r}")
