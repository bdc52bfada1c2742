#include "peak.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {
namespace {

constexpr int kChains = 10;  // enough to fill two units with a latency of four or five cycles
constexpr int kRounds = 20000;

#pragma GCC diagnostic ignored "-Wpsabi"
typedef float V4 __attribute__((vector_size(16)));

// A round does kChains independent multiply-adds; the result keeps the compiler from leaving them out.
float rounds_baseline() {
  V4 a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = V4{1.0f, 2.0f, 3.0f, 4.0f} * static_cast<float>(i + 1);
  V4 x = {0.999f, 0.998f, 0.997f, 0.996f}, y = {0.1f, 0.2f, 0.3f, 0.4f};
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) a[i] = a[i] * x + y;
  }
  V4 sum = a[0];
  for (int i = 1; i < kChains; ++i) sum += a[i];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float rounds_avx2() {
  __m256 a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = _mm256_set1_ps(static_cast<float>(i + 1));
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.1f);
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) a[i] = _mm256_fmadd_ps(a[i], x, y);
  }
  __m256 sum = a[0];
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_ps(sum, a[i]);
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float rounds_avx512() {
  __m512 a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = _mm512_set1_ps(static_cast<float>(i + 1));
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.1f);
  for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) a[i] = _mm512_fmadd_ps(a[i], x, y);
  }
  __m512 sum = a[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, a[i]);
  return _mm512_cvtss_f32(sum);
}
#endif

}  // namespace

double fma_peak_gflops(Isa isa, double seconds) {
  using Clock = std::chrono::steady_clock;
  const double lanes = isa == Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4;
  const double flops = 2.0 * lanes * kChains * kRounds;
  double best = 0.0;
  volatile float sink = 0.0f;
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds || best == 0.0) {
    const auto before = Clock::now();
#if defined(__x86_64__)
    if (isa == Isa::avx512) sink = rounds_avx512();
    else if (isa == Isa::avx2) sink = rounds_avx2();
    else sink = rounds_baseline();
#else
    sink = rounds_baseline();
#endif
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - before).count() * 1e-9);
  }
  (void)sink;
  return best;
}

}  // namespace penstock
