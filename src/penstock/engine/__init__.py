"""Network → program (plain arrays and op records) → native runtime."""

from penstock.engine.compiling import build_program, compile
from penstock.native import available_isas, chosen_isa, fma_peak_gflops
from penstock_runtime import Engine, LayerTime, Profile, RunRecord

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
