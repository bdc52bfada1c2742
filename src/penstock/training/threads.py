"""How many cores stand idle: a training that takes those of others is slowed down most of all.

Threads of one step wait for each other, so one that does not get a core holds up all. (On two cores at a load
of eight, two threads trained 5 images a second and one trained 45.)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from penstock.native import usable_cores

_STAT = Path("/proc/stat")


def idle_cores(seconds: float = 0.5) -> int:
    """Cores that this process may use and that stayed idle while it looked; at least 1."""
    usable = usable_cores()
    before = _times()
    if before is None:
        return max(1, usable - round(os.getloadavg()[0])) if hasattr(os, "getloadavg") else usable
    time.sleep(seconds)
    after = _times()
    assert after is not None
    total, idle = after[0] - before[0], after[1] - before[1]
    share = idle / total if total > 0 else 0.0
    return max(1, min(usable, round(share * (os.cpu_count() or 1))))


def _times() -> tuple[int, int] | None:
    """(all, idle) clock ticks of all cores together since the machine started, as Linux counts them."""
    try:
        fields = [int(one) for one in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields), fields[3] + fields[4]  # idle, and waiting for a disk
