// Vectors of 8 floats: AVX2 and FMA.
//
// Included by vec.h, which says what each operation does. Intrinsics of one architecture stand in its own header and nowhere else.

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
constexpr bool kWideVectors = false;

PENSTOCK_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
PENSTOCK_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
PENSTOCK_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
PENSTOCK_INLINE Vec maximum(Vec a, Vec b) { return _mm256_blendv_ps(max(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
PENSTOCK_INLINE Vec keep(Vec v, const float* mask) { return _mm256_and_ps(v, load(mask)); }
// Not a masked store: that takes dozens of cycles on AMD.
PENSTOCK_INLINE void store_first(float* p, __m128 v, int n) {
  if (n >= 4) return _mm_storeu_ps(p, v);
  if (n & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), v);
    v = _mm_movehl_ps(v, v);
    p += 2;
  }
  if (n & 1) _mm_store_ss(p, v);
}
PENSTOCK_INLINE void store_first(float* p, Vec v, int n) {
  if (n >= 8) return store(p, v);
  if (n < 4) return store_first(p, _mm256_castps256_ps128(v), n);
  _mm_storeu_ps(p, _mm256_castps256_ps128(v));
  store_first(p + 4, _mm256_extractf128_ps(v, 1), n - 4);
}
PENSTOCK_INLINE void store_lanes(float* p, Vec v, int begin, int end) {
  if (begin == 0) return store_first(p, v, end);
  if (begin == 4) return store_first(p, _mm256_extractf128_ps(v, 1), end - 4);
  float lanes[8];
  store(lanes, v);
  for (int i = begin; i < end; ++i) p[i - begin] = lanes[i];
}
PENSTOCK_INLINE Vec splat_quad(const float* p) { return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p)); }
PENSTOCK_INLINE Vec load_quads(const float* const* p, std::ptrdiff_t offset) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p[0] + offset)), _mm_loadu_ps(p[1] + offset), 1);
}
PENSTOCK_INLINE void load_lines(const float* const* p, std::ptrdiff_t offset, Vec (&v)[4]) {
  for (int g = 0; g < 4; ++g) v[g] = load_quads(p, offset + g * 4);
}
PENSTOCK_INLINE void store_quads(float* p, std::ptrdiff_t step, Vec v) {
  _mm_storeu_ps(p, _mm256_castps256_ps128(v));
  _mm_storeu_ps(p + step, _mm256_extractf128_ps(v, 1));
}
PENSTOCK_INLINE Vec load_even(const float* p) {
  const Vec pairs = _mm256_shuffle_ps(load(p), load(p + 7), 0xd8);  // 0 2 | 8 10 | 4 6 | 12 14
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8));
}
PENSTOCK_INLINE Vec zip_lo(Vec a, Vec b) { return _mm256_unpacklo_ps(a, b); }
PENSTOCK_INLINE Vec zip_hi(Vec a, Vec b) { return _mm256_unpackhi_ps(a, b); }
PENSTOCK_INLINE Vec join_lo(Vec a, Vec b) { return _mm256_shuffle_ps(a, b, 0x44); }
PENSTOCK_INLINE Vec join_hi(Vec a, Vec b) { return _mm256_shuffle_ps(a, b, 0xee); }
PENSTOCK_INLINE Vec next_quads(Vec a, Vec b) { return _mm256_permute2f128_ps(a, b, 0x21); }
PENSTOCK_INLINE Vec round(Vec v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
PENSTOCK_INLINE Vec exp2_whole(Vec n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
PENSTOCK_INLINE Vec reciprocal(Vec v) { return splat(1.0f) / v; }
using LanePlaces = __m256i;
constexpr int kPickSpan = 8;
PENSTOCK_INLINE LanePlaces load_places(const std::int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
PENSTOCK_INLINE Vec pick(const float* p, LanePlaces places) {
  return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_srai_epi32(places, 31)), _mm256_permutevar8x32_ps(load(p), places));
}
PENSTOCK_INLINE Vec pick_near(const float* p, LanePlaces places) { return pick(p, places); }
