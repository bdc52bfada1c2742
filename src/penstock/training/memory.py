"""The C allocator's habits during training on a CPU.

A step allocates and frees the same few hundred megabytes of feature maps. By default glibc gives each one
back to the system and takes it anew, and the kernel then zeroes every page: 8% to 20% of a step where it was
measured (benchmarks/training_step.py --fresh-memory). Asked to keep what is freed, it reuses the pages.
"""

from __future__ import annotations

import ctypes

# Names and numbers from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process reuse freed memory instead of returning it; True if the C library took the wish.

    It holds for the whole process, so commands call it and library functions do not.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    taken = set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and set_option(_M_TRIM_THRESHOLD, _NEVER)
    return bool(taken)
