// Vectors of whole numbers for the int8 kernels, of the width that the including file is compiled for.
//
// Besides gather_vbmi.inl, and vec_neon.h and multiply_neon.inl for ARM, this is the only file of the folder with intrinsics. The
// including file defines PENSTOCK_ISA (a namespace) and one of PENSTOCK_VEC_BASELINE, _AVX2, _AVX512, _NEON, and switches its target
// on before this header. PENSTOCK_VEC_VNNI beside _AVX512 says that the target has that extension too. Arithmetic, comparisons and shifts come with the compiler's vector types. Floats are never contracted into
// fused multiply-adds (the including file says fp-contract=off), so every set rounds alike.
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
#include <immintrin.h>
#elif defined(PENSTOCK_VEC_NEON)
#include <arm_neon.h>
#endif
#include <cstddef>
#include <cstdint>
#include <cstring>

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

namespace penstock {
namespace PENSTOCK_ISA {

#if defined(PENSTOCK_VEC_AVX512)
constexpr int kLanes = 16;
constexpr int kMostVectors = 4;  // of outputs in a register block
#elif defined(PENSTOCK_VEC_NEON)
constexpr int kLanes = 4;
constexpr int kMostVectors = 4;
#else
constexpr int kLanes = 8;
constexpr int kMostVectors = 2;
#endif
constexpr int kVectorBytes = 4 * kLanes;

typedef std::int32_t Int __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t Mod __attribute__((vector_size(4 * kLanes)));  // sums that may pass 2^31
typedef float Flo __attribute__((vector_size(4 * kLanes)));
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
PENSTOCK_INLINE Flo splat(float x) { return Flo{} + x; }
PENSTOCK_INLINE Flo choose(Int mask, Flo yes, Flo no) { return (Flo)(((Int)yes & mask) | ((Int)no & ~mask)); }
#if defined(PENSTOCK_VEC_NEON)
#include "int8/vec_neon.h"
#else
// Where word `which` of a lane's pair lies in its vector.
constexpr int pair_place(int lane, int which) { return 2 * lane + which; }
#endif

// Where either number is not a number (NaN), the result is b.
#if defined(PENSTOCK_VEC_NEON)
#elif defined(PENSTOCK_VEC_AVX512)
PENSTOCK_INLINE Flo larger(Flo a, Flo b) { return (Flo)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
PENSTOCK_INLINE Flo smaller(Flo a, Flo b) { return (Flo)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#elif defined(PENSTOCK_VEC_AVX2)
PENSTOCK_INLINE Flo larger(Flo a, Flo b) { return (Flo)_mm256_max_ps((__m256)a, (__m256)b); }
PENSTOCK_INLINE Flo smaller(Flo a, Flo b) { return (Flo)_mm256_min_ps((__m256)a, (__m256)b); }
#else
PENSTOCK_INLINE Flo larger(Flo a, Flo b) { return choose((Int)(a > b), a, b); }
PENSTOCK_INLINE Flo smaller(Flo a, Flo b) { return choose((Int)(a < b), a, b); }
#endif
PENSTOCK_INLINE Flo to_float(Int v) { return __builtin_convertvector(v, Flo); }
// Nearest whole number, half to even, of floats within +-2^22.
PENSTOCK_INLINE Int round(Flo v) {
#if defined(PENSTOCK_VEC_AVX512)
  return (Int)_mm512_maskz_cvtps_epi32(0xffff, (__m512)v);
#elif defined(PENSTOCK_VEC_AVX2)
  return (Int)_mm256_cvtps_epi32((__m256)v);
#else
  const Flo magic = splat(12582912.0f);  // 1.5 * 2^23
  return (Int)(v + magic) - (Int)magic;
#endif
}
PENSTOCK_INLINE Int magnitude(Int v) {
  const Int sign = v >> 31;
  return (v ^ sign) - sign;
}

#if defined(PENSTOCK_VEC_AVX512)

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
// The codes of kVectors vectors, side by side; no more than `room` bytes are written.
template <int kVectors>
PENSTOCK_INLINE void store_codes(std::uint8_t* p, const Int* v, int room) {
  if constexpr (kVectors == 1) {
    const __mmask16 bytes = room >= 16 ? 0xffffu : static_cast<__mmask16>((1u << room) - 1);
    _mm_mask_storeu_epi8(p, bytes, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v[0]));
  } else {
    const __m512i none = _mm512_setzero_si512();
    const __m512i low = _mm512_maskz_packs_epi32(~0u, (__m512i)v[0], (__m512i)v[1]);
    __m512i high = none;
    if constexpr (kVectors > 2) high = _mm512_maskz_packs_epi32(~0u, (__m512i)v[2], kVectors > 3 ? (__m512i)v[kVectors - 1] : none);
    // Packing leaves quarters of 4 codes of each vector.
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i codes = _mm512_maskz_permutexvar_epi32(0xffff, order, _mm512_maskz_packus_epi16(~0ull, low, high));
    constexpr std::uint64_t kAll = kVectors == 4 ? ~0ull : (1ull << (16 * (kVectors % 4))) - 1;
    _mm512_mask_storeu_epi8(p, room >= 16 * kVectors ? kAll : (1ull << room) - 1, codes);
  }
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

#elif defined(PENSTOCK_VEC_AVX2)

PENSTOCK_INLINE Int dot_pairs(Int sum, Int a, Int b) { return (Int)((Mod)sum + (Mod)_mm256_madd_epi16((__m256i)a, (__m256i)b)); }
PENSTOCK_INLINE Int splat_bytes(const void* p) { return (Int)_mm256_set1_epi32(load<std::int32_t>(p)); }
PENSTOCK_INLINE Int load_codes(const std::uint8_t* p) { return (Int)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
PENSTOCK_INLINE void store_codes(std::uint8_t* p, Int v) {
  const __m256i x = (__m256i)v;
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
}
template <int kVectors>
PENSTOCK_INLINE void store_codes(std::uint8_t* p, const Int* v, int room) {
  __m128i codes;
  if constexpr (kVectors == 1) {
    store_codes(reinterpret_cast<std::uint8_t*>(&codes), v[0]);
  } else {
    const __m256i words = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
    const __m256i order = _mm256_set_epi32(0, 0, 0, 0, 5, 1, 4, 0);
    codes = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words), order));
  }
  if (room >= 8 * kVectors) {
    if constexpr (kVectors == 1) _mm_storel_epi64((__m128i*)p, codes);
    else store(p, codes);
  } else if (kVectors == 2 && room == 8) {
    _mm_storel_epi64((__m128i*)p, codes);
  } else {
    std::memcpy(p, &codes, static_cast<std::size_t>(room));
  }
}
PENSTOCK_INLINE Half widen_codes(const std::uint8_t* p) { return (Half)_mm256_cvtepu8_epi16(load<__m128i>(p)); }
PENSTOCK_INLINE Half zip_codes(const std::uint8_t* a, const std::uint8_t* b) {
  return (Half)_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i*)a), _mm_loadl_epi64((const __m128i*)b)));
}
PENSTOCK_INLINE Half zip_weights(const std::int8_t* a, const std::int8_t* b) {
  return (Half)_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i*)a), _mm_loadl_epi64((const __m128i*)b)));
}

#elif !defined(PENSTOCK_VEC_NEON)  // plain loops, which any compiler can read

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

#endif

#if !defined(PENSTOCK_VEC_NEON)
// Bytes i of the result are from[index[i]], or 0 where the index is 128 or more.
PENSTOCK_INLINE Byte16 shuffle(const void* from, const std::uint8_t* index) {
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
  return (Byte16)_mm_shuffle_epi8(load<__m128i>(from), load<__m128i>(index));
#else
  const std::int8_t* p = static_cast<const std::int8_t*>(from);
  Byte16 v;
  for (int i = 0; i < 16; ++i) v[i] = index[i] & 0x80 ? std::int8_t{0} : p[index[i] & 15];
  return v;
#endif
}
#endif
PENSTOCK_INLINE Byte16 larger_codes(Byte16 a, Byte16 b) {
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
  return (Byte16)_mm_max_epu8((__m128i)a, (__m128i)b);
#else
  typedef std::uint8_t Unsigned __attribute__((vector_size(16)));
  const Unsigned x = (Unsigned)a, y = (Unsigned)b;
  return (Byte16)(x > y ? x : y);
#endif
}
// A whole vector of codes; where it would be no wider, 16 of them.
#if defined(PENSTOCK_VEC_AVX512)
typedef std::int8_t Codes __attribute__((vector_size(64)));
PENSTOCK_INLINE Codes larger_codes(Codes a, Codes b) { return (Codes)_mm512_maskz_max_epu8(~0ull, (__m512i)a, (__m512i)b); }
#elif defined(PENSTOCK_VEC_AVX2)
typedef std::int8_t Codes __attribute__((vector_size(32)));
PENSTOCK_INLINE Codes larger_codes(Codes a, Codes b) { return (Codes)_mm256_max_epu8((__m256i)a, (__m256i)b); }
#else
typedef Byte16 Codes;
#endif
// Codes [lane, lane + kLanes) of 16.
PENSTOCK_INLINE Int codes_at(Byte16 codes, int lane) {
#if defined(PENSTOCK_VEC_AVX512)
  (void)lane;
  return (Int)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)codes);
#elif defined(PENSTOCK_VEC_AVX2)
  return (Int)_mm256_cvtepu8_epi32(lane == 0 ? (__m128i)codes : _mm_srli_si128((__m128i)codes, 8));
#else
  Int v;
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<std::uint8_t>(codes[lane + i]);
  return v;
#endif
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
