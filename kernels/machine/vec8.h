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
#ifdef __AVX__
template <class T, class Operation>
PENSTOCK_INLINE auto in_registers(T a, T b, Operation operation) {
  return operation(a, b);
}
// Of the sixteen values of a and b: every other one, from the first or the second on, and the eight from the last of a on.
PENSTOCK_INLINE V even_of(V a, V b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
PENSTOCK_INLINE V odd_of(V a, V b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
PENSTOCK_INLINE V from_last_of(V a, V b) { return __builtin_shufflevector(a, b, 7, 8, 9, 10, 11, 12, 13, 14); }
#else
// Eight values take two registers here. Comparisons and moves of more than a register are compiled value by value, ten times as
// slow, so they are written for each half.
typedef float Half __attribute__((vector_size(16)));
typedef std::int32_t HalfI __attribute__((vector_size(16)));
template <class H>
struct Halves {
  H low, high;
};
PENSTOCK_INLINE Halves<Half> halves_of(V v) {
  Halves<Half> h;
  __builtin_memcpy(&h, &v, sizeof v);
  return h;
}
PENSTOCK_INLINE Halves<HalfI> halves_of(VI v) {
  Halves<HalfI> h;
  __builtin_memcpy(&h, &v, sizeof v);
  return h;
}
PENSTOCK_INLINE V whole_of(Halves<Half> h) {
  V v;
  __builtin_memcpy(&v, &h, sizeof v);
  return v;
}
PENSTOCK_INLINE VI whole_of(Halves<HalfI> h) {
  VI v;
  __builtin_memcpy(&v, &h, sizeof v);
  return v;
}
template <class T, class Operation>
PENSTOCK_INLINE auto in_registers(T a, T b, Operation operation) {
  const auto x = halves_of(a), y = halves_of(b);
  auto low = operation(x.low, y.low);
  return whole_of(Halves<decltype(low)>{low, operation(x.high, y.high)});
}
PENSTOCK_INLINE Half even_of(Halves<Half> h) { return __builtin_shufflevector(h.low, h.high, 0, 2, 4, 6); }
PENSTOCK_INLINE Half odd_of(Halves<Half> h) { return __builtin_shufflevector(h.low, h.high, 1, 3, 5, 7); }
PENSTOCK_INLINE Half from_last_of(Half a, Half b) { return __builtin_shufflevector(a, b, 3, 4, 5, 6); }
PENSTOCK_INLINE V even_of(V a, V b) { return whole_of(Halves<Half>{even_of(halves_of(a)), even_of(halves_of(b))}); }
PENSTOCK_INLINE V odd_of(V a, V b) { return whole_of(Halves<Half>{odd_of(halves_of(a)), odd_of(halves_of(b))}); }
PENSTOCK_INLINE V from_last_of(V a, V b) {
  const Halves<Half> x = halves_of(a), y = halves_of(b);
  return whole_of(Halves<Half>{from_last_of(x.high, y.low), from_last_of(y.low, y.high)});
}
#endif

// Masks: all bits of a lane where it holds.
PENSTOCK_INLINE VI less(V a, V b) {
  return (VI)in_registers(a, b, [](auto x, auto y) { return x < y; });
}
PENSTOCK_INLINE VI less(VI a, VI b) {
  return (VI)in_registers(a, b, [](auto x, auto y) { return x < y; });
}
PENSTOCK_INLINE VI equal(VI a, VI b) {
  return (VI)in_registers(a, b, [](auto x, auto y) { return x == y; });
}
PENSTOCK_INLINE VI at_least(VI a, VI b) {
  return (VI)in_registers(a, b, [](auto x, auto y) { return x >= y; });
}
PENSTOCK_INLINE VI not_a_number(V v) {
  return (VI)in_registers(v, v, [](auto x, auto y) { return x != y; });
}
// Where either value is not a number these give the second: a limit comes first, so that a NaN passes. Each is one instruction.
PENSTOCK_INLINE V larger(V a, V b) {
  return in_registers(a, b, [](auto x, auto y) { return x > y ? x : y; });
}
PENSTOCK_INLINE V smaller(V a, V b) {
  return in_registers(a, b, [](auto x, auto y) { return x < y ? x : y; });
}
// The maximum of two values, or NaN when either is not a number, as in PyTorch.
PENSTOCK_INLINE V maximum(V a, V b) { return (V)((VI)larger(a, b) | not_a_number(a)); }
PENSTOCK_INLINE float maximum(float a, float b) { return a > b || a != a ? a : b; }
// The larger of two magnitudes. Their bits order as they do, with infinity and NaN above all numbers.
PENSTOCK_INLINE V larger_magnitude(V a, V b) { return choose(less((VI)b, (VI)a), a, b); }
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
