// Codes in vectors of 256 bits: AVX2. Included by codes.h, which says what each operation does.

#define PENSTOCK_VEC_AVX2
constexpr int kMostVectors = 2;
constexpr int pair_place(int lane, int which) { return 2 * lane + which; }

PENSTOCK_INLINE Int to_whole(Vec v) { return (Int)_mm256_cvtps_epi32(v); }
PENSTOCK_INLINE Int dot_pairs(Int sum, Int a, Int b) { return (Int)((Mod)sum + (Mod)_mm256_madd_epi16((__m256i)a, (__m256i)b)); }
PENSTOCK_INLINE Int splat_bytes(const void* p) { return (Int)_mm256_set1_epi32(load<std::int32_t>(p)); }
PENSTOCK_INLINE Int load_codes(const std::uint8_t* p) { return (Int)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
PENSTOCK_INLINE void store_codes(std::uint8_t* p, Int v) {
  const __m256i x = (__m256i)v;
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
}
PENSTOCK_INLINE Half join_words(Int a, Int b) { return (Half)_mm256_packs_epi32((__m256i)a, (__m256i)b); }
PENSTOCK_INLINE Int first_words(Half w) { return (Int)_mm256_unpacklo_epi16((__m256i)w, _mm256_setzero_si256()); }
PENSTOCK_INLINE Int second_words(Half w) { return (Int)_mm256_unpackhi_epi16((__m256i)w, _mm256_setzero_si256()); }
PENSTOCK_INLINE Half within(Half w, Half low, Half high) {
  return (Half)_mm256_min_epi16(_mm256_max_epi16((__m256i)w, (__m256i)low), (__m256i)high);
}
PENSTOCK_INLINE Half word_magnitudes(Half w) { return (Half)_mm256_abs_epi16((__m256i)w); }
PENSTOCK_INLINE Half splat_word(int x) { return (Half)_mm256_set1_epi16(static_cast<short>(x)); }
template <int kVectors>
PENSTOCK_INLINE void store_words(std::uint8_t* p, const Half* words, int room) {
  const __m256i order = _mm256_set_epi32(0, 0, 0, 0, 5, 1, 4, 0);
  const __m128i codes =
      _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_packus_epi16((__m256i)words[0], (__m256i)words[0]), order));
  if (kVectors == 2 && room >= 16) store(p, codes);
  else if (room == 8 || (kVectors == 1 && room > 8)) _mm_storel_epi64((__m128i*)p, codes);
  else std::memcpy(p, &codes, static_cast<std::size_t>(room));
}
PENSTOCK_INLINE Half widen_codes(const std::uint8_t* p) { return (Half)_mm256_cvtepu8_epi16(load<__m128i>(p)); }
PENSTOCK_INLINE Half zip_codes(const std::uint8_t* a, const std::uint8_t* b) {
  return (Half)_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i*)a), _mm_loadl_epi64((const __m128i*)b)));
}
PENSTOCK_INLINE Half zip_weights(const std::int8_t* a, const std::int8_t* b) {
  return (Half)_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i*)a), _mm_loadl_epi64((const __m128i*)b)));
}
PENSTOCK_INLINE Byte16 shuffle(const void* from, const std::uint8_t* index) {
  return (Byte16)_mm_shuffle_epi8(load<__m128i>(from), load<__m128i>(index));
}
PENSTOCK_INLINE Byte16 larger_codes(Byte16 a, Byte16 b) { return (Byte16)_mm_max_epu8((__m128i)a, (__m128i)b); }
typedef std::int8_t Codes __attribute__((vector_size(32)));
PENSTOCK_INLINE Codes larger_codes(Codes a, Codes b) { return (Codes)_mm256_max_epu8((__m256i)a, (__m256i)b); }
PENSTOCK_INLINE Int codes_at(Byte16 codes, int lane) {
  return (Int)_mm256_cvtepu8_epi32(lane == 0 ? (__m128i)codes : _mm_srli_si128((__m128i)codes, 8));
}
PENSTOCK_INLINE Int pick_index(const std::uint8_t* mask) { return load_codes(mask) | static_cast<std::int32_t>(0x80808000u); }
PENSTOCK_INLINE Int pick_codes(const void* p, Int index) {
  return (Int)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(p)), (__m256i)index);
}
