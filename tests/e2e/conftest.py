"""One server of two replicas of two ranks each for three modules, since starting it is what takes
long: `test_routing`, `test_serve` and `test_serve_failover`, whose last test stops it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.adapters import make_adapter
from tests.browser.chromium import browser as browser
from tests.browser.chromium import faults as faults
from tests.conftest import TinyModel
from tests.e2e.answers import ADAPTER, MODEL
from tests.e2e.server import Server, two_replicas


@pytest.fixture(scope="session")
def server(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    adapter = make_adapter(folder / "adapter", tiny_model())
    flags = ["--enable-lora", "--lora-modules", f"{ADAPTER}={adapter}", "--admin-api-key", "admin"]
    flags += ["--journal", str(folder / "journal")]
    with two_replicas(tiny_model(), MODEL, folder, *flags) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
