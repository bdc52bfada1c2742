// A vector of floats of the width that the including file is compiled for, and the few operations kernels need.
//
// A kernel source is written against these operations once. One file per target and kind of kernel includes it between
// target_<name>.h and target_end.h, which switch the instruction set on and off and name a namespace (PENSTOCK_ISA), so that
// nothing compiled for a wide set can be linked into the path of a narrow one.
//
// A vector is kQuads quads of 4 lanes. Shuffles work inside each quad, so that code which treats quads as
// independent (one Winograd tile a quad) reads the same for every width. Loads and stores need no alignment.
// `+ - * /` come with the compiler's vector types.
//
// Every architecture's header defines, for its Vec:
//   kLanes, kRegisters       floats of a vector, and vector registers
//   kWideVectors             whether a vector is a whole cache line
//   splat, load, store       one value in all lanes; kLanes floats in memory
//   fma, fnma                a * b + c; c - a * b
//   min, max                 the second argument where either is not a number
//   maximum                  not a number where either is none
//   keep(v, mask)            bitwise and with the floats at `mask`
//   store_first(p, v, n)     the first n lanes
//   store_lanes(p, v, b, e)  lanes [b, e), the first of them at p
//   splat_quad(p)            the 4 floats at p in every quad
//   load_quads(p, offset)    quad q is the 4 floats at p[q] + offset
//   load_lines(p, offset, v) quad q of vector g is quad g of the 16 floats at p[q] + offset
//   store_quads(p, step, v)  quad q goes to p + q * step
//   load_even(p)             lanes 0, 2, 4, ... of the 2 * kLanes - 1 floats at p
//   zip_lo, zip_hi           a0 b0 a1 b1 and a2 b2 a3 b3 of each quad
//   join_lo, join_hi         a0 a1 b0 b1 and a2 a3 b2 b3 of each quad
//   next_quads(a, b)         quads 1, 2, ... of a, then quad 0 of b
//   round, exp2_whole        to the nearest whole number; 2^n for whole n up to 128, where it is infinity
//   reciprocal               1 / v to about 2 units in the last place, for v from 1e-37 to 1e37
//   LanePlaces, load_places(p)   kLanes whole numbers, each below kPickSpan
//   pick(p, places)          lane i is p[places[i]], or 0 where the place is negative; may read all of the kPickSpan floats at p
//   pick_near(p, places)     the same for places below kLanes; may read the kLanes floats at p
#include <cstddef>
#include <cstdint>
#include <cstring>

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock {
namespace PENSTOCK_ISA {

#include PENSTOCK_VEC

constexpr int kQuads = kLanes / 4;

PENSTOCK_INLINE Vec zero() { return splat(0.0f); }

// Rows of 4 become columns, in each quad on its own.
PENSTOCK_INLINE void transpose_quads(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec ab_lo = zip_lo(a, b), ab_hi = zip_hi(a, b);
  const Vec cd_lo = zip_lo(c, d), cd_hi = zip_hi(c, d);
  a = join_lo(ab_lo, cd_lo);
  b = join_hi(ab_lo, cd_lo);
  c = join_lo(ab_hi, cd_hi);
  d = join_hi(ab_hi, cd_hi);
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
