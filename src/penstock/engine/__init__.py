"""Network → program (plain arrays and op records) → native runtime."""

from penstock.engine.compiling import build_program, compile
from penstock.engine.engine import Engine
from penstock.engine.native import available_isas, chosen_isa, fma_peak_gflops
from penstock.engine.results import LayerTime, Profile, RunRecord

__all__ = [
    "Engine",
    "LayerTime",
    "Profile",
    "RunRecord",
    "available_isas",
    "build_program",
    "chosen_isa",
    "compile",
    "fma_peak_gflops",
]
