"""Calibration images in, scales out: how large the values of each step of a network become."""

from penstock.quantizing.ranges import Ranges, calibrate

__all__ = ["Ranges", "calibrate"]
