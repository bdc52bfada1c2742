"""Timers, other runtimes, and contests between them and the engine: networks in, milliseconds out."""

from penstock.measuring.timing import Timing, interleave, one_by_one

__all__ = ["Timing", "interleave", "one_by_one"]
