// A vector of floats of the width that the including file is compiled for, and the few operations kernels need.
//
// The only place with intrinsics. A kernel source is written against this type once and included by one file per
// instruction set, which defines PENSTOCK_ISA (a namespace, so that nothing compiled for a wide set can be
// linked into the path of a narrow one) and one of PENSTOCK_VEC_BASELINE, _AVX2, _AVX512, and switches its target
// on before this header.
//
// A vector is kQuads quads of 4 lanes. Shuffles work inside each quad, so that code which treats quads as
// independent (one Winograd tile a quad) reads the same for every width. Loads and stores need no alignment.
// `+ - *` come with the compiler's vector types.
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
#include <immintrin.h>
#endif
#include <cstddef>
#include <cstdint>
#include <cstring>

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock {
namespace PENSTOCK_ISA {

#if defined(PENSTOCK_VEC_AVX512)

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;

PENSTOCK_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
PENSTOCK_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
PENSTOCK_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
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

#elif defined(PENSTOCK_VEC_AVX2)

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;

PENSTOCK_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
PENSTOCK_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
PENSTOCK_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
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
PENSTOCK_INLINE Vec splat_quad(const float* p) {
  return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
}
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

#else  // baseline: the compiler's own 4-lane vectors, so no intrinsics and no x86 either

typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t VecInt __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kRegisters = 16;

PENSTOCK_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
PENSTOCK_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
PENSTOCK_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return c - a * b; }
// Like the x86 instructions, these return b when either is not a number.
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
PENSTOCK_INLINE Vec keep(Vec v, const float* mask) {
  return reinterpret_cast<Vec>(reinterpret_cast<VecInt>(v) & reinterpret_cast<VecInt>(load(mask)));
}
PENSTOCK_INLINE void store_first(float* p, Vec v, int n) {
  for (int i = 0; i < 4 && i < n; ++i) p[i] = v[i];
}
PENSTOCK_INLINE void store_lanes(float* p, Vec v, int begin, int end) {
  for (int i = begin; i < end; ++i) p[i - begin] = v[i];
}
PENSTOCK_INLINE Vec splat_quad(const float* p) { return load(p); }
PENSTOCK_INLINE Vec load_quads(const float* const* p, std::ptrdiff_t offset) { return load(p[0] + offset); }
PENSTOCK_INLINE void load_lines(const float* const* p, std::ptrdiff_t offset, Vec (&v)[4]) {
  for (int g = 0; g < 4; ++g) v[g] = load(p[0] + offset + g * 4);
}
PENSTOCK_INLINE void store_quads(float* p, std::ptrdiff_t, Vec v) { store(p, v); }
PENSTOCK_INLINE Vec load_even(const float* p) { return Vec{p[0], p[2], p[4], p[6]}; }
PENSTOCK_INLINE Vec zip_lo(Vec a, Vec b) { return __builtin_shuffle(a, b, VecInt{0, 4, 1, 5}); }
PENSTOCK_INLINE Vec zip_hi(Vec a, Vec b) { return __builtin_shuffle(a, b, VecInt{2, 6, 3, 7}); }
PENSTOCK_INLINE Vec join_lo(Vec a, Vec b) { return __builtin_shuffle(a, b, VecInt{0, 1, 4, 5}); }
PENSTOCK_INLINE Vec join_hi(Vec a, Vec b) { return __builtin_shuffle(a, b, VecInt{2, 3, 6, 7}); }
PENSTOCK_INLINE Vec next_quads(Vec, Vec b) { return b; }
PENSTOCK_INLINE Vec round(Vec v) {
  for (int i = 0; i < 4; ++i) v[i] = __builtin_rintf(v[i]);
  return v;
}
PENSTOCK_INLINE Vec exp2_whole(Vec n) {
  return reinterpret_cast<Vec>((__builtin_convertvector(n, VecInt) + 127) << 23);
}

#endif

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
