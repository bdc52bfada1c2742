"""Contestants take turns; what other work disturbed is not compared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from penstock.measuring import interleave, one_by_one
from penstock.measuring.timing import Timing, _Call, _timing, busy_words, ratio


def test_contestants_take_turns_and_each_runs_equally_often() -> None:
    calls: list[str] = []
    found = interleave(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        seconds=0.0,
        least_rounds=4,
        settle_milliseconds=0.0,
        turn_milliseconds=0.0,
    )
    assert "".join(calls[4:]) == "aabbbbaaaabbbbaa"  # after the warm-up; a turn's first is not timed
    assert found["a"].calls == found["b"].calls == 4


def test_short_calls_are_repeated_within_a_turn_and_long_ones_are_not() -> None:
    found = interleave(
        {"short": lambda: time.sleep(0.0002), "long": lambda: time.sleep(0.02)}, seconds=0.0, least_rounds=2
    )
    assert found["short"].calls > 2
    assert found["long"].calls == 2


def test_a_turn_begins_with_calls_that_are_not_timed_until_caches_have_settled() -> None:
    calls: list[str] = []

    def nap() -> None:
        calls.append("nap")
        time.sleep(0.001)

    found = interleave(
        {"nap": nap},
        seconds=0.0,
        least_rounds=2,
        warm_up=0,
        settle_milliseconds=20.0,
        turn_milliseconds=0.0,
    )
    assert found["nap"].calls == 2
    assert len(calls) >= 2 * (1 + 2)  # a nap may last longer than asked, but hardly ten times


def test_the_least_and_the_median_are_of_the_calls_in_milliseconds() -> None:
    found = interleave({"nap": lambda: time.sleep(0.002)}, seconds=0.0)
    assert 2.0 <= found["nap"].least <= found["nap"].median


def test_a_call_that_waits_is_not_steady_and_one_that_computes_is() -> None:
    def compute() -> None:
        torch.ones(64, 64) @ torch.ones(64, 64)

    found = interleave({"waits": lambda: time.sleep(0.002), "computes": compute}, seconds=0.05)
    assert not found["waits"].steady  # as a call that the scheduler interrupted
    assert found["waits"].processor is not None
    assert found["waits"].processor < 0.5 * found["waits"].least
    assert ratio(found["waits"], found["computes"]) is None


def test_while_a_time_is_not_steady_measuring_goes_on_but_not_for_ever() -> None:
    calls = 0

    def nap() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.001)

    settings = {"least_rounds": 1, "warm_up": 0, "settle_milliseconds": 0.0, "turn_milliseconds": 0.0}
    begin = time.perf_counter()
    found = interleave({"nap": nap}, seconds=0.1, patience=3.0, **settings)
    spent = time.perf_counter() - begin
    assert spent > 0.3
    assert not found["nap"].steady


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone counts waiting")
def test_what_shares_its_core_with_other_work_is_not_compared() -> None:
    own = os.sched_getaffinity(0)
    core = min(own)
    loop = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", loop, str(core)]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for one in loops:
            assert one.stdout is not None
            assert one.stdout.readline()
        os.sched_setaffinity(0, {core})
        found = interleave(
            {name: lambda: sum(range(2000)) for name in ("one", "other")},
            seconds=0.1,
            least_rounds=2,
            patience=1.0,
            settle_milliseconds=100.0,
        )
    finally:
        os.sched_setaffinity(0, own)
        for one in loops:
            one.kill()
            one.communicate()
    # The least of so many short calls was not interrupted itself, and both passes may agree.
    assert ratio(found["one"], found["other"]) is None
    assert found["one"].waited is not None
    assert found["one"].waited > 0.03


def test_turns_that_waited_are_left_out_as_long_as_there_are_others() -> None:
    waits = [0.0, 0.0, 0.5, 0.5]
    calls = [_Call(2.0 - waited, 1.5, turn, waited) for turn, waited in enumerate(waits)]
    found = _timing(calls)
    assert (found.least, found.again, found.waited) == (2.0, 2.0, 0.0)
    found = _timing(calls[2:])
    assert (found.least, found.waited) == (1.5, 0.5)
    assert not found.steady


def test_two_passes_that_disagree_are_not_compared() -> None:
    steady, shaky = Timing(1.0, 1.0, 9, 1.0, again=1.05), Timing(2.0, 2.0, 9, 2.0, again=2.3)
    assert ratio(Timing(3.0, 3.0, 9), steady) == 3.0
    assert ratio(shaky, steady) is None
    assert ratio(None, steady) is None


def test_a_busy_machine_is_said_and_an_idle_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (12.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert busy_words().startswith("The machine is busy (load 12 on 2 cores)")
    monkeypatch.setattr("os.getloadavg", lambda: (1.0, 9.0, 9.0))
    assert busy_words() == ""


def test_one_image_a_call_and_then_the_next() -> None:
    seen: list[float] = []
    run = one_by_one(lambda x: seen.append(float(x)), [torch.tensor(1.0), torch.tensor(2.0)])
    for _ in range(3):
        run()
    assert seen == [1.0, 2.0, 1.0]
