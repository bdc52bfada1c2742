"""A quiet end for a command whose output nobody reads any more, as in `penstock inspect … | head -1`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


def run_until_unread(run: Callable[[], int]) -> int:
    """What `run` returns; 0 when it met the closed end of the pipe that it writes to."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # Rich turns the one into the other.
        met = isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError)
        if not met or not _let_readers_go():
            raise
        return 0


def _let_readers_go() -> bool:
    """Whether who reads our output has left; what is still to be written is then dropped.

    A broken pipe of another kind, such as one to a worker that has died, is no such end.
    """
    left = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
    for stream in left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(left)


def _has_no_reader(stream: TextIO) -> bool:
    import select  # here, because only this asks for it

    try:
        number = stream.fileno()
    except (OSError, ValueError):  # not a file
        return False
    if os.fstat(number).st_rdev == Path(os.devnull).stat().st_rdev:  # Rich has put it there
        return True
    asked = select.poll()
    asked.register(number, 0)
    return any(events & select.POLLERR for _, events in asked.poll(0))
