"""Prompt logprobs are whole when they are delivered, whatever happens while they are computed."""

from __future__ import annotations

import pytest

from octavo.scheduler.plan import decode_result, encode
from octavo.scheduler.request import Logprob
from tests.scheduler.simulation import Simulation, request

PROMPT = list(range(18))


def receive_scored(sim: Simulation) -> list[list[Logprob | None]]:
    """Takes a result in to which an entry for each scored prompt token is added, its own number.
    What was delivered, as it was then."""
    plan, result = sim.plans[-1], decode_result(sim.flights.popleft())
    rows, last = sim.workers[0]._mirror.rows, len(PROMPT) - 1
    for index, work in enumerate(plan.work):
        if rows[work.row].sampling.prompt_logprobs is not None and work.start < last:
            end = min(work.start + work.count, last)
            scored = [Logprob(PROMPT[place + 1], -1.0, 1) for place in range(work.start, end)]
            result.prompt_logprobs[index] = scored
    sim.flights.append(encode(result))
    return [event.prompt_logprobs.copy() for event in sim.receive() if event.prompt_logprobs]


@pytest.mark.parametrize(("n", "beam_width"), [(1, None), (3, None), (1, 1), (2, 4)])
@pytest.mark.parametrize("max_tokens", [1, 6])
@pytest.mark.parametrize("budget", [6, 100])
@pytest.mark.parametrize("preempted_in", [None, 0, 1, 2, 3])
def test_they_come_once_and_whole(
    n: int, beam_width: int | None, max_tokens: int, budget: int, preempted_in: int | None
) -> None:
    sim = Simulation(num_host_blocks=20, max_num_batched_tokens=budget)
    wanted = request("scored", PROMPT, max_tokens, prompt_logprobs=1, n=n, beam_width=beam_width)
    sim.add(wanted)
    delivered, step = [], 0
    while sim.scheduler.live_requests:
        sim.plan()
        if step == preempted_in:
            sim.preempt("scored")
        delivered += receive_scored(sim)
        step += 1
    sim.check_answers()
    assert [[each and each.token for each in one] for one in delivered] == [[None, *PROMPT[1:]]]
