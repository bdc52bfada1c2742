// Codes in vectors of 512 bits: AVX-512 with BW, and VNNI where PENSTOCK_VEC_VNNI says so. Included by codes.h, which says what each
// operation does.

#define PENSTOCK_VEC_AVX512
constexpr int kMostVectors = 4;
constexpr int pair_place(int lane, int which) { return 2 * lane + which; }

PENSTOCK_INLINE Int to_whole(Vec v) { return (Int)_mm512_maskz_cvtps_epi32(0xffff, v); }
#if defined(PENSTOCK_VEC_VNNI)
// In assembly, because GCC spills the accumulators of the two intrinsics.
PENSTOCK_INLINE Int dot_pairs(Int sum, Int a, Int b) {
  __asm__("vpdpwssd %2,%1,%0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
PENSTOCK_INLINE Int dot_quads(Int sum, Int codes, Int weights) {
  __asm__("vpdpbusd %2,%1,%0" : "+v"(sum) : "v"(codes), "v"(weights));
  return sum;
}
#else
PENSTOCK_INLINE Int dot_pairs(Int sum, Int a, Int b) {
  return (Int)((Mod)sum + (Mod)_mm512_maskz_madd_epi16(0xffff, (__m512i)a, (__m512i)b));
}
#endif
// The 4 bytes at p in every lane.
PENSTOCK_INLINE Int splat_bytes(const void* p) { return (Int)_mm512_set1_epi32(load<std::int32_t>(p)); }
PENSTOCK_INLINE Int load_codes(const std::uint8_t* p) { return (Int)_mm512_maskz_cvtepu8_epi32(0xffff, load<__m128i>(p)); }
PENSTOCK_INLINE void store_codes(std::uint8_t* p, Int v) { store(p, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v)); }
PENSTOCK_INLINE Half join_words(Int a, Int b) { return (Half)_mm512_maskz_packs_epi32(~0u, (__m512i)a, (__m512i)b); }
PENSTOCK_INLINE Int first_words(Half w) { return (Int)_mm512_maskz_unpacklo_epi16(~0u, (__m512i)w, _mm512_setzero_si512()); }
PENSTOCK_INLINE Int second_words(Half w) { return (Int)_mm512_maskz_unpackhi_epi16(~0u, (__m512i)w, _mm512_setzero_si512()); }
PENSTOCK_INLINE Half within(Half w, Half low, Half high) {
  return (Half)_mm512_maskz_min_epi16(~0u, _mm512_maskz_max_epi16(~0u, (__m512i)w, (__m512i)low), (__m512i)high);
}
PENSTOCK_INLINE Half word_magnitudes(Half w) { return (Half)_mm512_maskz_abs_epi16(~0u, (__m512i)w); }
PENSTOCK_INLINE Half splat_word(int x) { return (Half)_mm512_maskz_set1_epi16(~0u, static_cast<short>(x)); }
template <int kVectors>
PENSTOCK_INLINE void store_words(std::uint8_t* p, const Half* words, int room) {
  const __m512i high = kVectors > 2 ? (__m512i)words[(kVectors - 1) / 2] : _mm512_setzero_si512();
  // Packing leaves quarters of 4 codes of each vector.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i codes = _mm512_maskz_permutexvar_epi32(0xffff, order, _mm512_maskz_packus_epi16(~0ull, (__m512i)words[0], high));
  constexpr std::uint64_t kAll = kVectors == 4 ? ~0ull : (1ull << (16 * (kVectors % 4))) - 1;
  _mm512_mask_storeu_epi8(p, room >= 16 * kVectors ? kAll : (1ull << room) - 1, codes);
}
PENSTOCK_INLINE Half widen_codes(const std::uint8_t* p) { return (Half)_mm512_maskz_cvtepu8_epi16(0xffffffffu, load<__m256i>(p)); }
// a0 b0 a1 b1 ... from kLanes bytes each, as words: codes without a sign, weights with one.
PENSTOCK_INLINE Half zip_codes(const std::uint8_t* a, const std::uint8_t* b) {
  const __m128i x = load<__m128i>(a), y = load<__m128i>(b);
  return (Half)_mm512_maskz_cvtepu8_epi16(0xffffffffu, _mm256_set_m128i(_mm_unpackhi_epi8(x, y), _mm_unpacklo_epi8(x, y)));
}
PENSTOCK_INLINE Half zip_weights(const std::int8_t* a, const std::int8_t* b) {
  const __m128i x = load<__m128i>(a), y = load<__m128i>(b);
  return (Half)_mm512_maskz_cvtepi8_epi16(0xffffffffu, _mm256_set_m128i(_mm_unpackhi_epi8(x, y), _mm_unpacklo_epi8(x, y)));
}
// a0 b0 c0 d0 a1 ... from kLanes bytes each.
PENSTOCK_INLINE Int zip_quads(const std::int8_t* a, const std::int8_t* b, const std::int8_t* c, const std::int8_t* d) {
  const __m128i x = load<__m128i>(a), y = load<__m128i>(b), z = load<__m128i>(c), w = load<__m128i>(d);
  const __m128i lo = _mm_unpacklo_epi8(x, y), hi = _mm_unpackhi_epi8(x, y), lo2 = _mm_unpacklo_epi8(z, w),
                hi2 = _mm_unpackhi_epi8(z, w);
  __m512i v = _mm512_castsi128_si512(_mm_unpacklo_epi16(lo, lo2));
  v = _mm512_inserti32x4(v, _mm_unpackhi_epi16(lo, lo2), 1);
  v = _mm512_inserti32x4(v, _mm_unpacklo_epi16(hi, hi2), 2);
  return (Int)_mm512_inserti32x4(v, _mm_unpackhi_epi16(hi, hi2), 3);
}
PENSTOCK_INLINE Byte16 shuffle(const void* from, const std::uint8_t* index) {
  return (Byte16)_mm_shuffle_epi8(load<__m128i>(from), load<__m128i>(index));
}
PENSTOCK_INLINE Byte16 larger_codes(Byte16 a, Byte16 b) { return (Byte16)_mm_max_epu8((__m128i)a, (__m128i)b); }
typedef std::int8_t Codes __attribute__((vector_size(64)));
PENSTOCK_INLINE Codes larger_codes(Codes a, Codes b) { return (Codes)_mm512_maskz_max_epu8(~0ull, (__m512i)a, (__m512i)b); }
PENSTOCK_INLINE Int codes_at(Byte16 codes, int) { return (Int)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)codes); }
PENSTOCK_INLINE Int pick_index(const std::uint8_t* mask) { return load_codes(mask) | static_cast<std::int32_t>(0x80808000u); }
PENSTOCK_INLINE Int pick_codes(const void* p, Int index) {
  return (Int)_mm512_maskz_shuffle_epi8(~0ull, _mm512_maskz_broadcast_i32x4(0xffff, load<__m128i>(p)), (__m512i)index);
}
