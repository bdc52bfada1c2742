// e^x and the error function where products and sums are rounded one by one (no_contraction.h), the same on every instruction set.
//
// Of any vector with choose, less and magnitude: the eight floats of vec8.h, or those beside codes (codes.h). Convolutions of floats
// fuse products and sums, and have their own (conv/curves.inl).
namespace penstock {
namespace PENSTOCK_ISA {

// exp by 2^n times a polynomial (relative error below 3e-7). Below -87 it stays at e^-87; from 88.4 on it is infinity.
PENSTOCK_INLINE Vec exponential(Vec x) {
  x = min(splat(88.8f), max(splat(-87.0f), x));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * splat(1.44269504f) + magic) - magic;
  const Vec r = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  Vec p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const Int power = (__builtin_convertvector(n, Int) + 127) << 23;
  return p * (Vec)power;
}
// Abramowitz and Stegun 7.1.26 away from zero, the series near it.
PENSTOCK_INLINE Vec error_function(Vec x) {
  const Vec a = magnitude(x);
  const Vec t = splat(1.0f) / (splat(1.0f) + splat(0.3275911f) * a);
  Vec p = splat(1.061405429f);
  p = p * t + splat(-1.453152027f);
  p = p * t + splat(1.421413741f);
  p = p * t + splat(-0.284496736f);
  p = p * t + splat(0.254829592f);
  const Vec far = splat(1.0f) - p * t * exponential(-(a * a));
  const Vec q = a * a;
  const Vec near = a * (splat(1.128379167f) + q * (splat(-0.376126389f) + q * (splat(0.112837917f) + q * splat(-0.0268661706f))));
  const Vec result = choose(less(a, splat(0.25f)), near, far);
  return choose(less(x, splat(0.0f)), -result, result);
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
