"""Engines among processes and threads, with numpy alone: forks leave in peace, calls release the GIL."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import penstock_runtime as pr

KEPT = sorted((Path(__file__).parent / "files").glob("block-float32-*.penstock"))[-1]


def test_a_hundred_forks_of_an_engine_with_four_threads_leave_in_peace() -> None:
    code = f"""
import os, sys
import numpy as np
import penstock_runtime as pr

engine = pr.load({str(KEPT)!r}, threads=4)
images = np.random.default_rng(0).standard_normal((8, *engine.input_shape)).astype(np.float32)
wanted = engine(images)
codes = []
for i in range(100):
    child = os.fork()
    if child == 0:
        # Half of the children run the network; all of them leave as any program does, destructors included.
        sys.exit(0 if i % 2 or np.array_equal(engine(images), wanted) else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert np.array_equal(engine(images), wanted)
print(sorted(set(codes)), len(codes))
"""
    words = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "[0] 100", done.stdout + done.stderr
    assert done.stderr == ""


def test_other_threads_go_on_while_a_network_runs() -> None:
    engine = pr.load(KEPT)
    images = np.random.default_rng(0).standard_normal((4096, *engine.input_shape)).astype(np.float32)
    # A busy machine may keep this thread from running during a short call: longer ones follow.
    for _ in range(7):
        if awake_in_the_middle_of(engine, images) > 3:
            return
        images = np.concatenate([images, images])
    raise AssertionError("no call let other threads run")


def awake_in_the_middle_of(engine: pr.Engine, images: np.ndarray) -> int:
    """How often this thread, asleep a millisecond at a time, ran in the middle of another thread's call."""
    span = []

    def call() -> None:
        span.append(time.perf_counter())
        engine(images)
        span.append(time.perf_counter())

    worker = threading.Thread(target=call)
    worker.start()
    awake = []
    while worker.is_alive():
        awake.append(time.perf_counter())
        time.sleep(0.001)
    start, end = span
    margin = (end - start) / 10
    return sum(start + margin < moment < end - margin for moment in awake)
