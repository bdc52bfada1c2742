"""The one door to the native module, which the distribution `penstock-runtime` brings."""

from __future__ import annotations

from penstock_runtime.native import ISA_VARIABLE, available_isas, chosen_isa, fma_peak_gflops, native

__all__ = ["ISA_VARIABLE", "available_isas", "chosen_isa", "fma_peak_gflops", "native"]
