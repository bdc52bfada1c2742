// Vectors of 16 floats: AVX-512 (F, DQ, VL).
//
// Included by vec.h, which says what each operation does. Intrinsics of one architecture stand in its own header and nowhere else.

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
constexpr bool kWideVectors = true;

PENSTOCK_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
PENSTOCK_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
PENSTOCK_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
PENSTOCK_INLINE Vec maximum(Vec a, Vec b) { return _mm512_mask_mov_ps(max(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a); }
PENSTOCK_INLINE Vec keep(Vec v, const float* mask) { return _mm512_and_ps(v, load(mask)); }
PENSTOCK_INLINE void store_first(float* p, Vec v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u), v);
}
// Lanes [begin, end), the first of them at p.
PENSTOCK_INLINE void store_lanes(float* p, Vec v, int begin, int end) {
  _mm512_mask_storeu_ps(p - begin, static_cast<__mmask16>((1u << end) - (1u << begin)), v);
}
PENSTOCK_INLINE Vec splat_quad(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
// Quad q is the 4 floats at p[q] + offset.
PENSTOCK_INLINE Vec load_quads(const float* const* p, std::ptrdiff_t offset) {
  Vec v = _mm512_castps128_ps512(_mm_loadu_ps(p[0] + offset));
  // Not inserted: that takes the one port that shuffles.
  v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(p[1] + offset));
  v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(p[2] + offset));
  return _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(p[3] + offset));
}
// Quad q of vector g is quad g of the 16 floats at p[q] + offset.
PENSTOCK_INLINE void load_lines(const float* const* p, std::ptrdiff_t offset, Vec (&v)[4]) {
  const Vec a = load(p[0] + offset), b = load(p[1] + offset), c = load(p[2] + offset), d = load(p[3] + offset);
  const Vec ab_lo = _mm512_shuffle_f32x4(a, b, 0x44), ab_hi = _mm512_shuffle_f32x4(a, b, 0xee);
  const Vec cd_lo = _mm512_shuffle_f32x4(c, d, 0x44), cd_hi = _mm512_shuffle_f32x4(c, d, 0xee);
  v[0] = _mm512_shuffle_f32x4(ab_lo, cd_lo, 0x88);
  v[1] = _mm512_shuffle_f32x4(ab_lo, cd_lo, 0xdd);
  v[2] = _mm512_shuffle_f32x4(ab_hi, cd_hi, 0x88);
  v[3] = _mm512_shuffle_f32x4(ab_hi, cd_hi, 0xdd);
}
// Quad q goes to p + q * step.
PENSTOCK_INLINE void store_quads(float* p, std::ptrdiff_t step, Vec v) {
  _mm_storeu_ps(p, _mm512_castps512_ps128(v));
  _mm_storeu_ps(p + step, _mm512_extractf32x4_ps(v, 1));
  _mm_storeu_ps(p + 2 * step, _mm512_extractf32x4_ps(v, 2));
  _mm_storeu_ps(p + 3 * step, _mm512_extractf32x4_ps(v, 3));
}
// Lanes 0, 2, 4, ... of the 2 * kLanes - 1 floats at p.
PENSTOCK_INLINE Vec load_even(const float* p) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_ps(load(p), even, load(p + 15));
}
PENSTOCK_INLINE Vec zip_lo(Vec a, Vec b) { return _mm512_unpacklo_ps(a, b); }
PENSTOCK_INLINE Vec zip_hi(Vec a, Vec b) { return _mm512_unpackhi_ps(a, b); }
PENSTOCK_INLINE Vec join_lo(Vec a, Vec b) { return _mm512_shuffle_ps(a, b, 0x44); }
PENSTOCK_INLINE Vec join_hi(Vec a, Vec b) { return _mm512_shuffle_ps(a, b, 0xee); }
// Quads 1, 2, ... of a, then quad 0 of b.
PENSTOCK_INLINE Vec next_quads(Vec a, Vec b) {
  return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(b), _mm512_castps_si512(a), 4));
}
PENSTOCK_INLINE Vec round(Vec v) { return _mm512_roundscale_ps(v, 8); }
// 2^n for whole n in the range of normal numbers.
PENSTOCK_INLINE Vec exp2_whole(Vec n) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
PENSTOCK_INLINE Vec reciprocal(Vec v) {
  const Vec r = _mm512_rcp14_ps(v);
  return fma(fnma(v, r, splat(1.0f)), r, r);
}
using LanePlaces = __m512i;
constexpr int kPickSpan = 32;
PENSTOCK_INLINE LanePlaces load_places(const std::int32_t* p) { return _mm512_loadu_si512(p); }
PENSTOCK_INLINE Vec pick(const float* p, LanePlaces places) {
  return _mm512_maskz_permutex2var_ps(_mm512_cmpge_epi32_mask(places, _mm512_setzero_si512()), load(p), places, load(p + 16));
}
PENSTOCK_INLINE Vec pick_near(const float* p, LanePlaces places) {
  return _mm512_maskz_permutexvar_ps(_mm512_cmpge_epi32_mask(places, _mm512_setzero_si512()), places, load(p));
}
