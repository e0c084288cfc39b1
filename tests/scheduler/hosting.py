"""Simulations with a host tier, and what tests ask of it."""

from __future__ import annotations

from typing import Any

from octavo.scheduler.hashing import extend_chain, root_hash
from tests.scheduler.simulation import Simulation, request


def hosting(num_host_blocks: int = 50, **options: Any) -> Simulation:
    """A simulation whose preemptions swap and whose watermarks hurry nobody."""
    settings: dict[str, Any] = {
        "watermark_low": 0, "watermark_high": 0, "preemption_mode": "swap",
        "max_num_batched_tokens": 64,
    } | options  # fmt: skip
    return Simulation(num_host_blocks=num_host_blocks, **settings)


def names_of(prompt: list[int]) -> list[bytes]:
    """The names of the full blocks of a prompt without salt."""
    chain: list[bytes] = []
    extend_chain(chain, root_hash("", "", ""), prompt, 4)
    return chain


def store_all(sim: Simulation, prompt: list[int], name: str = "first", answer: int = 12) -> None:
    """Runs a request for so long that all full blocks of its prompt get to the host."""
    sim.add(request(name, prompt, answer))
    sim.run()
    assert all(sim.scheduler.cache.host.find(each) is not None for each in names_of(prompt))
