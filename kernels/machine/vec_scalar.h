// Vectors of 4 floats in the compiler's own terms: any architecture.
//
// Included by vec.h, which says what each operation does. Intrinsics of one architecture stand in its own header and nowhere else.

typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t VecInt __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
constexpr bool kWideVectors = false;

PENSTOCK_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
PENSTOCK_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
PENSTOCK_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return c - a * b; }
// Like the x86 instructions, these return b when either is not a number.
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
PENSTOCK_INLINE Vec maximum(Vec a, Vec b) { return a != a ? a : max(a, b); }
PENSTOCK_INLINE Vec keep(Vec v, const float* mask) {
  return reinterpret_cast<Vec>(reinterpret_cast<VecInt>(v) & reinterpret_cast<VecInt>(load(mask)));
}
PENSTOCK_INLINE void store_first(float* p, Vec v, int n) {
  for (int i = 0; i < 4 && i < n; ++i) p[i] = v[i];
}
PENSTOCK_INLINE void store_lanes(float* p, Vec v, int begin, int end) {
  for (int i = begin; i < end; ++i) p[i - begin] = v[i];
}
PENSTOCK_INLINE Vec load_even(const float* p) { return Vec{p[0], p[2], p[4], p[6]}; }
PENSTOCK_INLINE Vec zip_lo(Vec a, Vec b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
PENSTOCK_INLINE Vec zip_hi(Vec a, Vec b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
PENSTOCK_INLINE Vec join_lo(Vec a, Vec b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
PENSTOCK_INLINE Vec join_hi(Vec a, Vec b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }
PENSTOCK_INLINE Vec round(Vec v) {
  for (int i = 0; i < 4; ++i) v[i] = __builtin_rintf(v[i]);
  return v;
}
PENSTOCK_INLINE Vec exp2_whole(Vec n) { return reinterpret_cast<Vec>((__builtin_convertvector(n, VecInt) + 127) << 23); }
#include "machine/vec_plain.h"
