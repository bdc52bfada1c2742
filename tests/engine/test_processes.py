"""An engine in forked children, and Ctrl-C in the middle of a batch."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(150)
def test_a_forked_child_runs_the_engine_and_leaves_in_peace() -> None:
    out = run(
        """
        import os, sys, threading
        import numpy as np, torch
        import penstock as ps
        from penstock import zoo

        images = torch.randn(5, 3, 32, 32)
        gated = ps.add_gates(zoo.m_cifarnet().eval(), images, density=0.5)
        for threads in (1, 2, 4):
            engine = ps.compile(gated, images, threads=threads)
            wanted = engine(images).numpy()
            # One child leaves without a call, one after a few; in the last the parent is busy while it forks.
            for calls, busy in ((0, False), (2, False), (2, True))[: 3 if threads == 2 else 2]:
                stop = threading.Event()
                def work():
                    while not stop.is_set():
                        engine(images)
                workers = [threading.Thread(target=work) for _ in range(2 if busy else 0)]
                for worker in workers:
                    worker.start()
                child = os.fork()
                if child == 0:
                    for _ in range(calls):
                        assert np.array_equal(engine(images).numpy(), wanted)
                        assert np.array_equal(engine(images[:1]).numpy(), wanted[:1])
                    sys.exit(7)
                _, status = os.waitpid(child, 0)
                assert os.waitstatus_to_exitcode(status) == 7, status
                stop.set()
                for worker in workers:
                    worker.join()
            assert np.array_equal(engine(images).numpy(), wanted)
        print("done")
        """
    )
    assert out == "done\n"


@pytest.mark.timeout(150)
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_batch_between_images(threads: int) -> None:
    out = run(
        f"""
        import os, signal, threading
        import numpy as np, torch
        import penstock as ps
        from penstock import zoo

        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
        images = torch.randn(1, 3, 160, 160)
        engine = ps.compile(zoo.resnet18().eval(), images, threads={threads})
        wanted = engine(images)
        many = images.numpy().repeat(300, axis=0)
        results = np.full((300, 1000), np.nan, np.float32)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            engine._native.run(many, np.zeros(0, np.int32), results)
        except KeyboardInterrupt:
            finished = np.isfinite(results).all(axis=1)
            assert finished.any() and not finished.all(), finished.sum()
            print("stopped")
        assert torch.equal(engine(images), wanted)
        """
    )
    assert out == "stopped\n"
