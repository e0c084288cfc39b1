"""What is looked at: three requests of a tiny server that stand still in the middle of their
answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from octavo.cluster.picture import COPIED
from tests.cluster.pictures import read_picture
from tests.cluster.serving import MODEL

ADMIN_KEY = "admin"
SHARED = [7, 8, 9, 10] * 8  # two blocks that two requests begin with
PROMPTS = [([3] * 20, 1), ([*SHARED, 11], 1), ([*SHARED, *range(20, 40)], 2)]
"""With the number of samples. The samples of the last share a third block."""

TOKENS = 400  # of each answer, of which
STEPS = 60  # make a small part


class Stage:
    """Each step of the worker takes one of `allowed`."""

    def __init__(self, url: str, allowed: threading.Semaphore) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60)
        self._allowed = allowed
        self._players: list[threading.Thread] = []

    def close(self) -> None:
        self._allowed.release(10 * TOKENS)
        for each in self._players:
            each.join()
        self.http.close()

    def act(self) -> None:
        """Has the requests under way, and the worker stopped."""
        for number, (prompt, n) in enumerate(PROMPTS):
            self._play(prompt, n)
            self._until(lambda: self.running() > number)  # noqa: B023
        self._allowed.release(STEPS)
        before = None
        self._until(lambda: all(tokens > 20 for tokens in self._generated()))
        while before != (before := self.blocks()):
            time.sleep(0.5)

    def blocks(self) -> dict[str, Any]:
        """The debug interface's answer for the one replica."""
        shown = self.http.get("/debug/blocks", headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        (replica,) = shown.json()["replicas"]
        found: dict[str, Any] = replica
        return found

    def moving(self) -> set[int]:
        """Device blocks that the step under way copies."""
        key = {"Authorization": f"Bearer {ADMIN_KEY}"}
        codes = read_picture(self.http.get("/debug/look", headers=key).content).device
        return {block for block, code in enumerate(codes) if code & COPIED}

    def running(self) -> int:
        return len(self.blocks()["requests"])

    def _play(self, prompt: list[int], n: int) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "n": n}
        player = threading.Thread(target=self._ask, args=(body,))
        player.start()
        self._players.append(player)

    def _ask(self, body: dict[str, Any]) -> None:
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=600)
        assert answer.status_code == 200, answer.text

    def _generated(self) -> list[int]:
        """Of each sequence; 0 where there is none yet."""
        prompts = [len(prompt) for prompt, _ in PROMPTS]
        requests = self.blocks()["requests"]
        return [
            seq["tokens"] - length
            for item, length in zip(requests, prompts, strict=True)
            for seq in item["sequences"]
        ]

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, "the requests did not begin"
            time.sleep(0.05)
