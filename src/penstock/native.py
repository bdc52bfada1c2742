"""The one door to the native module of `penstock-runtime`, and to what it says of the processor."""

from __future__ import annotations

from penstock_runtime.native import (
    ISA_VARIABLE,
    available_isas,
    chosen_isa,
    fma_peak_gflops,
    native,
    processor_facts,
    usable_cores,
)

__all__ = [
    "ISA_VARIABLE",
    "available_isas",
    "chosen_isa",
    "fma_peak_gflops",
    "native",
    "processor_facts",
    "usable_cores",
]
