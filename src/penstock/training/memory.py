"""Settings of the C allocator for training on a CPU.

A step allocates and frees the same few hundred megabytes of feature maps. By default glibc gives each one
back to the system and takes it anew, and the kernel then zeroes every page: 8% to 20% of a step where it was
measured (benchmarks/training_step.py --fresh-memory). Asked to keep what is freed, it reuses the pages.
"""

from __future__ import annotations

import ctypes

# Names and numbers from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process reuse freed memory instead of returning it; True if the C library agrees.

    It holds for the whole process, so commands call it and library functions do not.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    # Maps of photographs pass the largest threshold for mmap that glibc takes (32 MiB), so it is turned off.
    # One arena for all threads: the backward pass runs in a thread of its own, and only the first arena can
    # hold blocks of any size without mmap.
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, 1))
    accepted = [set_option(option, value) for option, value in settings]
    return all(accepted)
