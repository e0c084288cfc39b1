"""What of `torch.cuda` is spoken to, written down in the order in which it is."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class FakeCuda:
    """`said` is what was asked for. `patch` puts it in torch's place. Time goes by in calls."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.current = "main"
        self.memory = {"allocated": 5, "most": 9, "reserved": 7, "free": 40, "total": 100}

    def patch(self, monkeypatch: Any) -> None:
        import torch

        for name in (
            *("Event", "Stream", "CUDAGraph", "graph", "stream", "current_stream", "synchronize"),
            *("graph_pool_handle", "empty_cache", "memory_allocated", "max_memory_allocated"),
            *("memory_reserved", "mem_get_info", "reset_peak_memory_stats"),
        ):
            assert hasattr(torch.cuda, name), f"torch has no {name}"
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Event(self, **options: bool) -> Any:
        return FakeEvent(self, options)

    def Stream(self, device: Any) -> Any:
        return FakeStream(self, "side")

    def current_stream(self, device: Any = None) -> Any:
        return FakeStream(self, self.current)

    @contextmanager
    def stream(self, stream: Any) -> Any:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.said.append("replay"))

    @contextmanager
    def graph(self, graph: Any, pool: Any, capture_error_mode: str) -> Any:
        self.said.append(("capture", pool, capture_error_mode))
        yield
        self.said.append("captured")

    def graph_pool_handle(self) -> str:
        return "pool"

    def synchronize(self, device: Any = None) -> None:
        self.said.append("synchronize")

    def empty_cache(self) -> None:
        self.said.append("empty_cache")

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.said.append("reset_peak")

    def memory_allocated(self, device: Any) -> int:
        return self.memory["allocated"]

    def max_memory_allocated(self, device: Any) -> int:
        return self.memory["most"]

    def memory_reserved(self, device: Any) -> int:
        return self.memory["reserved"]

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.memory["free"], self.memory["total"]


class FakeEvent:
    def __init__(self, cuda: FakeCuda, options: dict[str, bool]) -> None:
        self.cuda, self.options = cuda, options
        self.at = 0

    def record(self, stream: Any = None) -> None:
        self.cuda.said.append(("record", stream.name if stream else self.cuda.current))
        self.at = len(self.cuda.said)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.cuda.said.append("wait for event")

    def elapsed_time(self, end: FakeEvent) -> float:
        return float(end.at - self.at)


class FakeStream:
    cuda_stream = 77

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.said.append((self.name, "waits for", other.name))
