// A vector of eight floats in the compiler's own terms, on every instruction set.
//
// For kernels whose sums must be the same on every machine, bit for bit: they add in the same order everywhere, which a vector as
// wide as the machine's (vec.h) would not.
#include <cstddef>
#include <cstdint>

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock {
namespace PENSTOCK_ISA {

typedef float Vec __attribute__((vector_size(32)));
typedef std::int32_t Int __attribute__((vector_size(32)));
constexpr int kLanes = 8;

PENSTOCK_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PENSTOCK_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
PENSTOCK_INLINE Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }
PENSTOCK_INLINE Vec magnitude(Vec v) { return (Vec)((Int)v & 0x7fffffff); }
PENSTOCK_INLINE Vec choose(Int mask, Vec yes, Vec no) { return (Vec)(((Int)yes & mask) | ((Int)no & ~mask)); }
// GCC reads a C++ file whole before its target pragmas take effect, so __AVX__ says nothing here; target_<name>.h does.
#ifdef PENSTOCK_EIGHT_FLOATS
template <class T, class Operation>
PENSTOCK_INLINE auto in_registers(T a, T b, Operation operation) {
  return operation(a, b);
}
// Of the sixteen values of a and b: every other one, from the first or the second on, and the eight from the last of a on.
PENSTOCK_INLINE Vec even_of(Vec a, Vec b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
PENSTOCK_INLINE Vec odd_of(Vec a, Vec b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
PENSTOCK_INLINE Vec from_last_of(Vec a, Vec b) { return __builtin_shufflevector(a, b, 7, 8, 9, 10, 11, 12, 13, 14); }
#else
// Eight values take two registers here. Comparisons and moves of more than a register are compiled value by value, ten times as
// slow, so they are written for each half.
typedef float Half __attribute__((vector_size(16)));
typedef std::int32_t HalfI __attribute__((vector_size(16)));
template <class H>
struct Halves {
  H low, high;
};
PENSTOCK_INLINE Halves<Half> halves_of(Vec v) {
  Halves<Half> h;
  __builtin_memcpy(&h, &v, sizeof v);
  return h;
}
PENSTOCK_INLINE Halves<HalfI> halves_of(Int v) {
  Halves<HalfI> h;
  __builtin_memcpy(&h, &v, sizeof v);
  return h;
}
PENSTOCK_INLINE Vec whole_of(Halves<Half> h) {
  Vec v;
  __builtin_memcpy(&v, &h, sizeof v);
  return v;
}
PENSTOCK_INLINE Int whole_of(Halves<HalfI> h) {
  Int v;
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
PENSTOCK_INLINE Vec even_of(Vec a, Vec b) { return whole_of(Halves<Half>{even_of(halves_of(a)), even_of(halves_of(b))}); }
PENSTOCK_INLINE Vec odd_of(Vec a, Vec b) { return whole_of(Halves<Half>{odd_of(halves_of(a)), odd_of(halves_of(b))}); }
PENSTOCK_INLINE Vec from_last_of(Vec a, Vec b) {
  const Halves<Half> x = halves_of(a), y = halves_of(b);
  return whole_of(Halves<Half>{from_last_of(x.high, y.low), from_last_of(y.low, y.high)});
}
#endif

#ifdef PENSTOCK_SIXTEEN_FLOATS
// Sixteen floats where they fit in a register: for sums whose lanes have nothing to do with each other.
typedef float Wide __attribute__((vector_size(64)));
constexpr int kWideLanes = 16;
PENSTOCK_INLINE Wide load_wide(const float* p) {
  Wide v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PENSTOCK_INLINE void store_wide(float* p, Wide v) { __builtin_memcpy(p, &v, sizeof v); }
#endif

// Masks: all bits of a lane where it holds.
PENSTOCK_INLINE Int less(Vec a, Vec b) {
  return (Int)in_registers(a, b, [](auto x, auto y) { return x < y; });
}
PENSTOCK_INLINE Int less(Int a, Int b) {
  return (Int)in_registers(a, b, [](auto x, auto y) { return x < y; });
}
PENSTOCK_INLINE Int equal(Int a, Int b) {
  return (Int)in_registers(a, b, [](auto x, auto y) { return x == y; });
}
PENSTOCK_INLINE Int at_least(Int a, Int b) {
  return (Int)in_registers(a, b, [](auto x, auto y) { return x >= y; });
}
PENSTOCK_INLINE Int not_a_number(Vec v) {
  return (Int)in_registers(v, v, [](auto x, auto y) { return x != y; });
}
// Where either value is not a number these give the second: a limit comes first, so that a NaN passes. Each is one instruction.
PENSTOCK_INLINE Vec max(Vec a, Vec b) {
  return in_registers(a, b, [](auto x, auto y) { return x > y ? x : y; });
}
PENSTOCK_INLINE Vec min(Vec a, Vec b) {
  return in_registers(a, b, [](auto x, auto y) { return x < y ? x : y; });
}
// The maximum of two values, or NaN when either is not a number, as in PyTorch.
PENSTOCK_INLINE Vec maximum(Vec a, Vec b) { return (Vec)((Int)max(a, b) | not_a_number(a)); }
PENSTOCK_INLINE float maximum(float a, float b) { return a > b || a != a ? a : b; }
// The larger of two magnitudes. Their bits order as they do, with infinity and NaN above all numbers.
PENSTOCK_INLINE Vec larger_magnitude(Vec a, Vec b) { return choose(less((Int)b, (Int)a), a, b); }
PENSTOCK_INLINE float total(Vec v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }
PENSTOCK_INLINE float greatest_magnitude(Vec v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = maximum(v[i], m);
  return m;
}
// The first n values, zeros after them; reads nothing beyond.
PENSTOCK_INLINE Vec load_some(const float* p, int n) {
  Vec v = splat(0.0f);
  __builtin_memcpy(&v, p, sizeof(float) * static_cast<unsigned>(n));
  return v;
}
PENSTOCK_INLINE void store_first(float* p, Vec v, int n) { __builtin_memcpy(p, &v, sizeof(float) * static_cast<unsigned>(n)); }

}  // namespace PENSTOCK_ISA
}  // namespace penstock
