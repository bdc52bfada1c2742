// Codes in vectors of 128 bits: NEON. Included by codes.h, which says what each operation does.
//
// A pair of words does not lie side by side here: a vector holds the first word of every lane, then the second of every lane, as the
// multiply-adds of halves (smlal, smlal2) take them.

#define PENSTOCK_VEC_NEON
constexpr int kMostVectors = 4;
constexpr int pair_place(int lane, int which) { return which * kLanes + lane; }

PENSTOCK_INLINE Int dot_pairs(Int sum, Int a, Int b) {
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return (Int)vmlal_high_s16(vmlal_s16((int32x4_t)sum, vget_low_s16(x), vget_low_s16(y)), x, y);
}
// The 4 bytes at p in the first half.
PENSTOCK_INLINE uint8x8_t load_four(const void* p) { return vreinterpret_u8_u32(vdup_n_u32(load<std::uint32_t>(p))); }
PENSTOCK_INLINE Int load_codes(const std::uint8_t* p) { return (Int)vmovl_u16(vget_low_u16(vmovl_u8(load_four(p)))); }
PENSTOCK_INLINE void store_codes(std::uint8_t* p, Int v) {
  const uint16x4_t words = vmovn_u32((uint32x4_t)v);
  store(p, vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0));
}
PENSTOCK_INLINE Half widen_codes(const std::uint8_t* p) { return (Half)vmovl_u8(vld1_u8(p)); }
// The 4 bytes at a, then the 4 bytes at b.
PENSTOCK_INLINE uint8x8_t join_fours(const void* a, const void* b) {
  return vreinterpret_u8_u32(vzip1_u32(vreinterpret_u32_u8(load_four(a)), vreinterpret_u32_u8(load_four(b))));
}
PENSTOCK_INLINE Half zip_codes(const std::uint8_t* a, const std::uint8_t* b) { return (Half)vmovl_u8(join_fours(a, b)); }
PENSTOCK_INLINE Half zip_weights(const std::int8_t* a, const std::int8_t* b) {
  return (Half)vmovl_s8(vreinterpret_s8_u8(join_fours(a, b)));
}
PENSTOCK_INLINE Int zip_quads(const std::int8_t* a, const std::int8_t* b, const std::int8_t* c, const std::int8_t* d) {
  const uint16x4_t ab = vreinterpret_u16_u8(vzip1_u8(load_four(a), load_four(b)));
  const uint16x4_t cd = vreinterpret_u16_u8(vzip1_u8(load_four(c), load_four(d)));
  return (Int)vcombine_u16(vzip1_u16(ab, cd), vzip2_u16(ab, cd));
}
PENSTOCK_INLINE Byte16 shuffle(const void* from, const std::uint8_t* index) {
  return (Byte16)vqtbl1q_u8(load<uint8x16_t>(from), load<uint8x16_t>(index));
}
#include "machine/codes_plain.h"
