// Codes in the compiler's own terms, where there is no instruction for it. Included by codes_scalar.h and codes_neon.h.

PENSTOCK_INLINE Int to_whole(Vec v) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23
  return (Int)(v + magic) - (Int)magic;
}
PENSTOCK_INLINE Byte16 larger_codes(Byte16 a, Byte16 b) {
  typedef std::uint8_t Unsigned __attribute__((vector_size(16)));
  const Unsigned x = (Unsigned)a, y = (Unsigned)b;
  return (Byte16)(x > y ? x : y);
}
typedef Byte16 Codes;
PENSTOCK_INLINE Int codes_at(Byte16 codes, int lane) {
  Int v;
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<std::uint8_t>(codes[lane + i]);
  return v;
}
