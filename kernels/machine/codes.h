// Vectors of codes and of the whole numbers that they are widened to, beside the floats of vec.h and as wide.
//
// Included like vec.h, between target_<name>.h and target_end.h, by kernels that compute on quantised maps. Arithmetic, comparisons and
// shifts come with the compiler's vector types. Such kernels never fuse a product and a sum (no_contraction.h), so every set rounds
// alike.
//
// Every architecture's header (codes_<name>.h) defines:
//   kMostVectors              vectors of outputs in a register block
//   pair_place(lane, which)   where word `which` of a lane's pair lies in its vector
//   dot_pairs(sum, a, b)      sum + a0 * b0 + a1 * b1 of each lane's two words
//   dot_quads(sum, u, w)      sum + the four products of each lane's codes and weights, where the set has that (kQuadCodes)
//   splat_bytes(p)            the 4 bytes at p in every lane
//   load_codes, store_codes   kLanes codes in memory, as whole numbers
//   join_words(a, b)          the lanes of both as words, saturated, in an order of the set's own (x86, as the next four)
//   first_words, second_words the words of either as lanes again, taken to have no sign
//   within(w, low, high)      words between two others;  word_magnitudes(w)
//   splat_word(x)             a word in every place
//   store_words<n>(p, w, room)  the codes of n vectors, joined two by two, side by side, of which at most `room` bytes are written
//   widen_codes(p)            2 * kLanes codes as words
//   zip_codes, zip_weights    a0 b0 a1 b1 ... as words (on ARM as pair_place says), from kLanes bytes each; weights have a sign
//   zip_quads(a, b, c, d)     a0 b0 c0 d0 a1 ... from kLanes bytes each, where dot_quads is
//   shuffle(from, index)      byte i is from[index[i]], or 0 where the index is 128 or more
//   to_whole(v)               the nearest whole number, half to even, of floats within +-2^22
//   Codes, larger_codes       a whole vector of codes (16 of them where it would be no wider); the larger of two, without a sign
//   codes_at(codes, lane)     codes [lane, lane + kLanes) of 16
//   pick_index(mask), pick_codes(p, index)  of the 16 codes at p those that kLanes bytes of mask name, or 0 where one is 128 (x86)
#include "machine/vec.h"

namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kVectorBytes = 4 * kLanes;

typedef std::int32_t Int __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t Mod __attribute__((vector_size(4 * kLanes)));  // sums that may pass 2^31
typedef std::int16_t Half __attribute__((vector_size(4 * kLanes)));  // 2 * kLanes of them
typedef std::int8_t Byte16 __attribute__((vector_size(16)));

template <typename T>
PENSTOCK_INLINE T load(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
PENSTOCK_INLINE void store(void* p, T v) {
  std::memcpy(p, &v, sizeof v);
}
PENSTOCK_INLINE Vec choose(Int mask, Vec yes, Vec no) { return (Vec)(((Int)yes & mask) | ((Int)no & ~mask)); }
PENSTOCK_INLINE Int less(Vec a, Vec b) { return (Int)(a < b); }
PENSTOCK_INLINE Vec magnitude(Vec v) { return (Vec)((Int)v & 0x7fffffff); }
PENSTOCK_INLINE Vec to_float(Int v) { return __builtin_convertvector(v, Vec); }
PENSTOCK_INLINE Int magnitude(Int v) {
  const Int sign = v >> 31;
  return (v ^ sign) - sign;
}

#include PENSTOCK_CODES

}  // namespace PENSTOCK_ISA
}  // namespace penstock
