"""Films show what the scheduler does with a scene."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from octavo.cluster.playback.film import MOST_FRAMES
from octavo.cluster.playback.scene import Scene, film, films
from octavo.cluster.simulation.cost import Cost
from octavo.cluster.simulation.hardware import PRESETS
from octavo.cluster.simulation.models import NAMED
from octavo.scheduler.plan import StepPlan, Work
from tests.cluster.calls import Connect, error_of
from tests.cluster.pictures import read_films
from tests.cluster.scripted import ScriptedEngine, says

SMALL: dict[str, Any] = {"blocks": 48, "requests": 12, "prompt": 30, "answer": 30, "longest": 256}


def frames(scene: Scene) -> list[tuple[Any, list[list[int]]]]:
    """Each film, with the codes of each of its frames."""
    return read_films(films(scene))


def test_every_frame_agrees_with_its_codes() -> None:
    for shown, codes in frames(Scene(**SMALL)):
        assert shown.every == 1 and len(shown.frames) == len(codes) > 20
        for frame, blocks in zip(shown.frames, codes, strict=True):
            held = [code & 127 for code in blocks if code & 127 > 1]
            assert frame.used == len(held)
            assert frame.cached == sum(code & 127 == 1 for code in blocks)
            slots = frame.tokens + frame.reserved + frame.wasted
            assert slots == frame.used * shown.block_size
        last = shown.frames[-1]
        assert (last.finished, last.running, last.waiting, last.used) == (12, 0, 0, 0)
        assert [f.at for f in shown.frames] == sorted(f.at for f in shown.frames)
        steps = [f.step for f in shown.frames[:-1]]
        assert steps == list(range(steps[0], steps[0] + len(steps)))


def test_paged_memory_holds_more_than_reserved() -> None:
    scene = Scene(**SMALL | {"rate": 100.0})
    paged, reserved = film(scene, "paged")[0], film(scene, "max")[0]
    assert max(f.running for f in paged.frames) > max(f.running for f in reserved.frames)
    assert paged.frames[-1].at < reserved.frames[-1].at
    assert max(f.reserved for f in paged.frames) == 0 < max(f.reserved for f in reserved.frames)
    assert all(f.preempted == 0 for f in reserved.frames)


def test_each_slider_does_something() -> None:
    crowded = SMALL | {"blocks": 40, "rate": 200.0, "answer": 80}
    plain = film(Scene(**crowded), "paged")[0]
    assert plain.frames[-1].preempted > 0
    changes: list[dict[str, Any]] = [
        {"block_size": 4}, {"prefix": 128}, {"sharing": False}, {"requests": 13}, {"rate": 1.0},
        {"prompt": 31}, {"answer": 81}, {"longest": 128}, {"max_num_seqs": 2},
        {"max_num_batched_tokens": 16}, {"high": 0.4}, {"preemption": "recompute"}, {"seed": 1},
        {"host_blocks": 0}, {"blocks": 41}, {"low": 0.3, "high": 0.4}, {"hardware": "h100"},
        {"model": "qwen3-8b"}, {"ranks": 2},
    ]  # fmt: skip
    for change in changes:
        assert film(Scene(**crowded | change), "paged")[0] != plain, change


def test_a_film_is_the_same_each_time_and_has_an_end() -> None:
    assert films(Scene(**SMALL)) == films(Scene(**SMALL))
    longer = Scene(requests=10, rate=1.0, answer=256, longest=2048, blocks=200, max_num_seqs=4)
    ((shown, codes), _) = frames(longer)
    assert shown.every > 1 and MOST_FRAMES / 2 < len(codes) <= MOST_FRAMES
    assert {b.step - a.step for a, b in pairwise(shown.frames[:-1])} == {shown.every}
    assert shown.frames[-1].finished == 10


def test_a_step_lasts_as_long_as_simulated_ones() -> None:
    scene = Scene(**SMALL | {"hardware": "h100", "model": "llama-3.1-8b", "ranks": 2})
    for allocation, paged in (("paged", True), ("max", False)):
        cost = Cost(PRESETS["h100"], NAMED["llama-3.1-8b"], 2, scene.block_size, paged=paged)
        alone = Scene(**SMALL | {"hardware": "h100", "model": "llama-3.1-8b", "ranks": 2})
        shown = film(alone, allocation)[0]  # type: ignore[arg-type]
        first, second = shown.frames[:2]
        computed = first.tokens
        plan = StepPlan(0, [Work(0, 0, computed, True)])
        assert second.at - first.at == pytest.approx(cost.step(plan)[0], abs=2e-4)


def test_a_shared_prefix_is_stored_once() -> None:
    scene = Scene(**SMALL | {"prefix": 64, "rate": 100.0})
    (_, paged), (_, reserved) = frames(scene)
    assert max(code & 127 for blocks in paged for code in blocks) > 4
    assert max(code & 127 for blocks in reserved for code in blocks) == 2


def test_the_server_plays_scenes(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x"))) as http:
        query = {name: str(value) for name, value in SMALL.items()} | {"sharing": "false"}
        answer = http.post("/debug/simulation", params={**query, "block_size": "8"})
        assert answer.status_code == 200, answer.text
        scene = Scene(**SMALL, sharing=False, block_size=8)
        assert answer.content == films(scene)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"blocks": "5000"}, "blocks"),
        ({"blocks": "many"}, "blocks"),
        ({"block_size": "12"}, "block_size"),
        ({"low": "0.3", "high": "0.2"}, "scene"),
        ({"model": "/etc"}, "scene"),
        ({"hardware": "/etc/passwd"}, "scene"),
        ({"model": "opt-175b"}, "scene"),
        ({"model": "opt-66b", "ranks": "4", "blocks": "4000"}, "scene"),
        ({"color": "red"}, None),
    ],
)
def test_what_is_no_scene_is_refused(
    connected: Connect, query: dict[str, str], param: str | None
) -> None:
    with connected(ScriptedEngine(says("x"))) as http:
        error_of(http.post("/debug/simulation", params=query), 400, param)


def test_who_may_play_them(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x")), admin_api_key="admin") as http:
        error_of(http.post("/debug/simulation"), 401)
        foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
        assert http.post("/debug/simulation", headers=foreign).status_code == 403
