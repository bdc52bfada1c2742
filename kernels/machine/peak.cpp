#include "machine/peak.h"

#include <algorithm>
#include <chrono>

#include "machine/targets.h"

namespace penstock {

double fma_peak_gflops(Isa isa, double seconds) {
  using Clock = std::chrono::steady_clock;
  static const PeakKernel* const kernels[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, peak_kernel_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  const PeakKernel& kernel = *kernels[static_cast<int>(isa)];
  double best = 0.0;
  volatile float sink = 0.0f;
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds || best == 0.0) {
    const auto before = Clock::now();
    sink = kernel.run();
    best = std::max(best, kernel.flops / std::chrono::duration<double>(Clock::now() - before).count() * 1e-9);
  }
  (void)sink;
  return best;
}

}  // namespace penstock
