// Independent multiply-adds in registers, for one instruction set.
#include "machine/vec.h"

namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kChains = 10;  // enough to fill two units with a latency of four or five cycles
constexpr int kRounds = 20000;

// A round does kChains independent multiply-adds; the result keeps the compiler from leaving them out.
static float rounds() {
  Vec a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = splat(static_cast<float>(i + 1));
  const Vec x = splat(0.999f), y = splat(0.1f);
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) a[i] = fma(a[i], x, y);
  }
  Vec sum = a[0];
  for (int i = 1; i < kChains; ++i) sum = sum + a[i];
  float lanes[kLanes];
  store(lanes, sum);
  return lanes[0];
}

static const PeakKernel kPeak = {rounds, 2.0 * kLanes * kChains * kRounds};

}  // namespace PENSTOCK_ISA

const PeakKernel* PENSTOCK_JOIN(peak_kernel_, PENSTOCK_ISA)() { return &PENSTOCK_ISA::kPeak; }

}  // namespace penstock
