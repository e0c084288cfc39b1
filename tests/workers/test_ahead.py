"""The loop that begins steps early: what it does in which order."""

from __future__ import annotations

from octavo.scheduler.errors import OutOfStep
from octavo.workers.ahead import launcher_of, run_ahead
from octavo.workers.null import NullWorker


class Script:
    """A channel and a launcher in one: `events` says what happens, in order. The
    script's bytes are plans; its strings are moments without one, in which the step of the plan of
    that name ends."""

    runs_ahead = True

    def __init__(self, *script):
        self.script = script
        self.events = []
        self.over = set()
        self.received = 0

    def plans(self, meanwhile):
        for happening in self.script:
            if isinstance(happening, bytes):
                meanwhile()
                self.received += 1
                yield happening
            else:
                self.over.add(happening.encode())
                self.events.append(("busy", meanwhile()))

    def begin(self, plan):
        if plan == b"gap":
            raise OutOfStep(1, 2)
        self.events.append(("begin", plan))
        return Step(self, plan)

    def finish(self, step):
        self.events.append(("finish", step.plan))
        return None if step.plan == b"silent" else b"did " + step.plan

    def answer(self, result, number):
        self.events.append((number, result))

    def stray(self, expected, got):
        self.events.append(("stray", expected, got))


class Step:
    def __init__(self, script, plan):
        self.script, self.plan = script, plan

    def done(self):
        return self.plan in self.script.over

    def wait(self):
        raise AssertionError("the loop has no need to")


def happen(*script):
    channel = Script(*script)
    run_ahead(channel, channel)
    return channel.events


def test_a_step_is_begun_before_the_one_before_is_finished():
    assert happen(b"a", b"b", b"c") == [
        ("begin", b"a"),
        ("begin", b"b"),
        ("finish", b"a"),
        (1, b"did a"),
        ("begin", b"c"),
        ("finish", b"b"),
        (2, b"did b"),
        ("finish", b"c"),
        (3, b"did c"),
    ]


def test_a_result_does_not_wait_for_another_plan():
    assert happen(b"a", "nothing", "a", b"b") == [
        ("begin", b"a"),
        ("busy", True),
        ("finish", b"a"),
        (1, b"did a"),
        ("busy", False),
        ("begin", b"b"),
        ("finish", b"b"),
        (2, b"did b"),
    ]


def test_other_ranks_answer_nothing():
    assert happen(b"silent") == [("begin", b"silent"), ("finish", b"silent")]


def test_a_missed_plan_is_told_after_what_was_executed():
    assert happen(b"a", b"gap", b"b") == [
        ("begin", b"a"),
        ("finish", b"a"),
        (1, b"did a"),
        ("stray", 1, 2),
        ("begin", b"b"),
        ("finish", b"b"),
        (3, b"did b"),
    ]


def test_only_what_computes_beside_python_runs_ahead():
    assert launcher_of(NullWorker(4, num_blocks=9, num_host_blocks=0)) is None
    script = Script()
    assert launcher_of(script) is script
