// Vectors of 4 floats: NEON with fused multiply-adds, which every 64-bit ARM core has.
//
// Included by vec.h, which says what each operation does. Intrinsics of one architecture stand in its own header and nowhere else.

using Vec = float32x4_t;
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
constexpr bool kWideVectors = false;

PENSTOCK_INLINE Vec splat(float x) { return vdupq_n_f32(x); }
PENSTOCK_INLINE Vec load(const float* p) { return vld1q_f32(p); }
PENSTOCK_INLINE void store(float* p, Vec v) { vst1q_f32(p, v); }
PENSTOCK_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
PENSTOCK_INLINE Vec fnma(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
// Not vminq and vmaxq, which give NaN where either is not a number.
PENSTOCK_INLINE Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
PENSTOCK_INLINE Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
PENSTOCK_INLINE Vec maximum(Vec a, Vec b) { return vmaxq_f32(a, b); }
PENSTOCK_INLINE Vec keep(Vec v, const float* mask) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vreinterpretq_u32_f32(load(mask))));
}
PENSTOCK_INLINE void store_first(float* p, Vec v, int n) {
  if (n >= 4) return store(p, v);
  if (n & 2) {
    vst1_f32(p, vget_low_f32(v));
    v = vcombine_f32(vget_high_f32(v), vget_high_f32(v));
    p += 2;
  }
  if (n & 1) vst1q_lane_f32(p, v, 0);
}
PENSTOCK_INLINE void store_lanes(float* p, Vec v, int begin, int end) {
  if (begin == 0) return store_first(p, v, end);
  float lanes[4];
  store(lanes, v);
  for (int i = begin; i < end; ++i) p[i - begin] = lanes[i];
}
// Not vld2q, which would read the float after the last one.
PENSTOCK_INLINE Vec load_even(const float* p) {
  const float32x4_t high = vld1q_f32(p + 3);
  return vuzp1q_f32(load(p), vextq_f32(high, high, 1));
}
PENSTOCK_INLINE Vec zip_lo(Vec a, Vec b) { return vzip1q_f32(a, b); }
PENSTOCK_INLINE Vec zip_hi(Vec a, Vec b) { return vzip2q_f32(a, b); }
PENSTOCK_INLINE Vec join_lo(Vec a, Vec b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
PENSTOCK_INLINE Vec join_hi(Vec a, Vec b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
PENSTOCK_INLINE Vec round(Vec v) { return vrndnq_f32(v); }
PENSTOCK_INLINE Vec exp2_whole(Vec n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
#include "machine/vec_plain.h"
