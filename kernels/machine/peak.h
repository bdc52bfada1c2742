// How many floating-point operations one core can do at most, measured: the yardstick of every benchmark.
#pragma once
#include "machine/cpu.h"

namespace penstock {

// In GFLOPS: the best of several short runs of independent multiply-adds in registers, `seconds` in all.
double fma_peak_gflops(Isa isa, double seconds);

struct PeakKernel {
  float (*run)();
  double flops;  // of one run
};

#define TARGET(name, architecture, runs_here, wide) const PeakKernel* peak_kernel_##name();
#include "machine/targets.def"
#undef TARGET

}  // namespace penstock
