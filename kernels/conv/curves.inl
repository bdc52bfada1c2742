// Activations of one vector.
namespace penstock {
namespace PENSTOCK_ISA {

// e^x to about 2 units in the last place. Below -87 it stays at e^-87; from 88.4 on it is infinity.
PENSTOCK_INLINE Vec exp(Vec x) {
  x = min(splat(88.8f), max(splat(-87.0f), x));
  const Vec n = round(x * splat(1.44269504f));
  // ln 2 in two parts, so that x - n ln 2 loses nothing.
  Vec r = fnma(n, splat(0.693359375f), x);
  r = fnma(n, splat(-2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return p * exp2_whole(n);
}

PENSTOCK_INLINE Vec abs(Vec x) { return max(x, zero() - x); }

// erf to 1.5e-7 absolute (Abramowitz and Stegun 7.1.26).
PENSTOCK_INLINE Vec erf(Vec x) {
  const Vec a = abs(x);
  const Vec t = splat(1.0f) / fma(splat(0.3275911f), a, splat(1.0f));
  Vec p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const Vec e = splat(1.0f) - p * t * exp(zero() - a * a);
  // The sign of x without a branch: |e| <= 1, so clamping a steep line through 0 would round; select instead.
  const Vec big = x * splat(3.0e38f);
  return e * min(splat(1.0f), max(splat(-1.0f), big));
}

// The activations that need more than a clamp. Out of line: they are rare, and registers are scarce in the loops.
__attribute__((noinline)) static Vec activate_curve(Vec x, int activation, float slope) {
  switch (static_cast<Activation>(activation)) {
    case Activation::silu: return x / (splat(1.0f) + exp(zero() - x));
    case Activation::gelu: return splat(0.5f) * x * (splat(1.0f) + erf(x * splat(0.70710678f)));
    case Activation::hardswish: return x * min(splat(6.0f), max(zero(), x + splat(3.0f))) * splat(1.0f / 6.0f);
    default: return max(zero(), x) + splat(slope) * min(zero(), x);  // leaky_relu
  }
}

// The value comes second: min and max then pass on what is not a number, as the framework does.
PENSTOCK_INLINE Vec clamp(Vec v, Vec low, Vec high) { return min(high, max(low, v)); }

}  // namespace PENSTOCK_ISA
}  // namespace penstock
