// How many floating-point operations one core can do at most, measured: the yardstick of every benchmark.
#pragma once
#include "cpu.h"

namespace penstock {

// Best of several short runs of independent multiply-adds in registers, `seconds` in all, in GFLOPS.
double fma_peak_gflops(Isa isa, double seconds);

}  // namespace penstock
