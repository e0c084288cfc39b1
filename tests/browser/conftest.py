"""A Chromium that looks at the dashboard of a tiny server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from octavo.cluster.client import EngineClient
from octavo.cluster.local import LocalEngine, LocalWorkers
from octavo.scheduler.config import SchedulerConfig
from octavo.workers.config import WorkerConfig
from octavo.workers.worker import Worker
from tests.browser.chromium import browser as browser
from tests.browser.chromium import faults as faults
from tests.browser.chromium import watch
from tests.browser.stage import ADMIN_KEY, Stage
from tests.cluster.case_server import Server
from tests.cluster.serving import serve_engine, settings_for, tiny_engine
from tests.conftest import TinyModel


class _GatedWorker(Worker):
    """Executes as many steps as it was allowed, so that what is shown then stays as it is."""

    allowed: threading.Semaphore

    def execute(self, raw: bytes) -> bytes | None:
        self.allowed.acquire()
        return super().execute(raw)


@pytest.fixture(scope="module")
def stage(tiny_model: TinyModel) -> Iterator[Stage]:
    """A server with an admin key and a real model, which can be stopped between two steps."""
    path, allowed = tiny_model(), threading.Semaphore(0)

    @asynccontextmanager
    async def open_engine() -> AsyncIterator[EngineClient]:
        workers = LocalWorkers(lambda: _gated(path, allowed))
        config = SchedulerConfig(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=256)
        async with LocalEngine(workers, lambda _: config) as client:
            yield client

    settings = settings_for(path, admin_api_key=ADMIN_KEY)
    with serve_engine(open_engine, settings) as url:
        stage = Stage(url, allowed)
        try:
            stage.act()
            yield stage
        finally:
            stage.close()


def _gated(path: Path, allowed: threading.Semaphore) -> Worker:
    worker = _GatedWorker(
        WorkerConfig(
            model=str(path),
            dtype="float32",
            block_size=16,
            num_blocks_override=150,
            num_threads=1,
            swap_space=0.0004,
            max_model_len=512,
            max_num_seqs=8,
            max_num_batched_tokens=256,
        )
    )
    worker.allowed = allowed
    return worker


@pytest.fixture
def page(browser: Browser, stage: Stage, faults: list[str]) -> Iterator[Page]:
    """A tab of its own that has the admin key, at the dashboard of a server that stands still, with
    requests under way."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(f"sessionStorage.setItem('octavo.admin', '{ADMIN_KEY}')")
    with contextlib.closing(context):
        page = context.new_page()
        watch(page, stage.url, faults)
        page.goto(f"{stage.url}/dashboard")
        page.locator("#requests tbody tr").nth(2).wait_for()
        yield page
    assert faults == []


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server records that wants no key."""
    return tmp_path_factory.mktemp("journal") / "file"


@pytest.fixture(scope="module")
def server(tiny_model: TinyModel, journal: Path) -> Iterator[Server]:
    """One that wants no key."""
    path = tiny_model()
    with (
        serve_engine(tiny_engine(path, journal=journal), settings_for(path)) as url,
        contextlib.closing(Server(url)) as server,
    ):
        yield server
