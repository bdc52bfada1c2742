// A vector of eight floats in the compiler's own terms, on every instruction set.
//
// For kernels whose sums must be the same on every machine, bit for bit: they add in the same order everywhere, which a vector as
// wide as the machine's (vec.h) would not.
#include <cstddef>
#include <cstdint>

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock {
namespace PENSTOCK_ISA {

typedef float V __attribute__((vector_size(32)));
typedef std::int32_t VI __attribute__((vector_size(32)));
typedef std::uint32_t VU __attribute__((vector_size(32)));
constexpr int kLanes = 8;

PENSTOCK_INLINE V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PENSTOCK_INLINE void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
PENSTOCK_INLINE V splat(float x) { return V{x, x, x, x, x, x, x, x}; }
PENSTOCK_INLINE V magnitude(V v) { return (V)((VI)v & 0x7fffffff); }
PENSTOCK_INLINE V choose(VI mask, V yes, V no) { return (V)(((VI)yes & mask) | ((VI)no & ~mask)); }
// Where either value is not a number these give the second: a limit comes first, so that a NaN passes.
PENSTOCK_INLINE V larger(V a, V b) { return choose((VI)(a > b), a, b); }
PENSTOCK_INLINE V smaller(V a, V b) { return choose((VI)(a < b), a, b); }
// The maximum of two values, or NaN when either is not a number, as in PyTorch.
PENSTOCK_INLINE V maximum(V a, V b) { return (V)((VI)larger(a, b) | (VI)(a != a)); }
PENSTOCK_INLINE float maximum(float a, float b) { return a > b || a != a ? a : b; }
// The larger of two magnitudes. Their bits order as they do, with infinity and NaN above all numbers.
PENSTOCK_INLINE V larger_magnitude(V a, V b) { return choose((VI)((VI)a > (VI)b), a, b); }
PENSTOCK_INLINE float total(V v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }
PENSTOCK_INLINE float greatest_magnitude(V v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = maximum(v[i], m);
  return m;
}
// The first n values, zeros after them; reads nothing beyond.
PENSTOCK_INLINE V load_some(const float* p, int n) {
  V v = splat(0.0f);
  __builtin_memcpy(&v, p, sizeof(float) * static_cast<unsigned>(n));
  return v;
}
PENSTOCK_INLINE void store_some(float* p, V v, int n) { __builtin_memcpy(p, &v, sizeof(float) * static_cast<unsigned>(n)); }

}  // namespace PENSTOCK_ISA
}  // namespace penstock
