"""The copy line of a CPU: one thread that takes whole blocks, in order, beside the computing.

A copy runs without the interpreter's lock and on one core, so that it takes no thread away from the
kernels.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from torch import Tensor

from octavo.kernels.base import Kernels
from octavo.workers.tiers import Pair, Tiers


class CopyThread(Tiers):
    """Both tiers are CPU memory. The thread starts with the first copy, and ends when nobody holds
    this object any more. A copy that fails, as from a block that does not exist, raises in the main
    line when it next waits or gives something to copy."""

    def __init__(self, cache: Tensor, host: Tensor, kernels: Kernels) -> None:
        super().__init__(cache, host, kernels)
        self._device_memory = self._device_blocks.numpy()
        self._host_memory = host.numpy()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-copies")
        self._moved = threading.Condition()  # guards what follows
        self._finished = 0
        self._reported = 0
        self._seconds = 0.0
        self._fault: Exception | None = None

    def take_copied(self) -> tuple[int, float]:
        with self._moved:
            blocks, seconds = self._finished - self._reported, self._seconds
            self._reported, self._seconds = self._finished, 0.0
        return blocks, seconds

    def _enqueue(self, pairs: list[Pair], inward: bool) -> None:
        # The main line computes before it gets here, so what comes earlier is done.
        self._raise_fault()
        self._thread.submit(self._copy_all, pairs, inward)

    def _done(self) -> int:
        return self._finished

    def _await(self, ticket: int) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._finished >= ticket or self._fault is not None)
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise RuntimeError(f"a copy between the tiers failed: {self._fault}") from self._fault

    def _copy_all(self, pairs: list[Pair], inward: bool) -> None:
        """Runs in the thread."""
        if self._fault is not None:
            return
        for pair in pairs:
            began = time.perf_counter()
            try:
                self._copy(pair, inward)
            except Exception as error:
                with self._moved:
                    self._fault = error
                    self._moved.notify_all()
                return
            with self._moved:
                self._finished += 1
                self._seconds += time.perf_counter() - began
                self._moved.notify_all()

    def _copy(self, pair: Pair, inward: bool) -> None:
        source, target = pair
        if inward:
            np.copyto(self._device_memory[target], self._host_memory[source])
        else:
            np.copyto(self._host_memory[target], self._device_memory[source])
