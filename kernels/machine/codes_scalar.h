// Codes in plain loops, which any compiler can read. Included by codes.h, which says what each operation does.

#define PENSTOCK_VEC_BASELINE
constexpr int kMostVectors = 2;
constexpr int pair_place(int lane, int which) { return 2 * lane + which; }

PENSTOCK_INLINE Int dot_pairs(Int sum, Int a, Int b) {
  std::int16_t x[2 * kLanes], y[2 * kLanes];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  for (int i = 0; i < kLanes; ++i)
    sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) + static_cast<std::uint32_t>(x[2 * i] * y[2 * i]) +
                                       static_cast<std::uint32_t>(x[2 * i + 1] * y[2 * i + 1]));
  return sum;
}
PENSTOCK_INLINE Int splat_bytes(const void* p) { return Int{} + load<std::int32_t>(p); }
PENSTOCK_INLINE Int load_codes(const std::uint8_t* p) {
  Int v;
  for (int i = 0; i < kLanes; ++i) v[i] = p[i];
  return v;
}
PENSTOCK_INLINE void store_codes(std::uint8_t* p, Int v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint8_t>(v[i]);
}
PENSTOCK_INLINE Half widen_codes(const std::uint8_t* p) {
  Half v;
  for (int i = 0; i < 2 * kLanes; ++i) v[i] = p[i];
  return v;
}
PENSTOCK_INLINE Half zip_codes(const std::uint8_t* a, const std::uint8_t* b) {
  Half v;
  for (int i = 0; i < kLanes; ++i) v[2 * i] = a[i], v[2 * i + 1] = b[i];
  return v;
}
PENSTOCK_INLINE Half zip_weights(const std::int8_t* a, const std::int8_t* b) {
  Half v;
  for (int i = 0; i < kLanes; ++i) v[2 * i] = a[i], v[2 * i + 1] = b[i];
  return v;
}
PENSTOCK_INLINE Byte16 shuffle(const void* from, const std::uint8_t* index) {
  const std::int8_t* p = static_cast<const std::int8_t*>(from);
  Byte16 v;
  for (int i = 0; i < 16; ++i) v[i] = index[i] & 0x80 ? std::int8_t{0} : p[index[i] & 15];
  return v;
}
#include "machine/codes_plain.h"
