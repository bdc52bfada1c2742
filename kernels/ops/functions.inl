// Activations of eight values at a time.
namespace penstock {
namespace PENSTOCK_ISA {

// exp by 2^n times a polynomial (relative error below 3e-7). Below -87 it stays at e^-87; from 88.4 on it is infinity.
PENSTOCK_INLINE V exponential(V x) {
  x = smaller(splat(88.8f), larger(splat(-87.0f), x));
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V n = (x * splat(1.44269504f) + magic) - magic;
  const V r = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  V p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const VI power = (__builtin_convertvector(n, VI) + 127) << 23;
  return p * (V)power;
}
PENSTOCK_INLINE V exponential_less_one(V x) {
  // Near zero e^x - 1 loses digits; the series does not.
  V p = splat(1.0f / 720.0f);
  p = p * x + splat(1.0f / 120.0f);
  p = p * x + splat(1.0f / 24.0f);
  p = p * x + splat(1.0f / 6.0f);
  p = p * x + splat(0.5f);
  p = p * x + splat(1.0f);
  return choose(less(magnitude(x), splat(0.25f)), p * x, exponential(x) - splat(1.0f));
}
PENSTOCK_INLINE V logistic(V x) { return splat(1.0f) / (splat(1.0f) + exponential(-x)); }
PENSTOCK_INLINE V hyperbolic_tangent(V x) {
  // Near zero 1 - 2 s(-2x) loses digits; the odd series does not.
  const V far = splat(1.0f) - splat(2.0f) / (splat(1.0f) + exponential(x * splat(2.0f)));
  const V q = x * x;
  const V near = x * (splat(1.0f) + q * (splat(-0.333333333f) + q * (splat(0.133333333f) + q * splat(-0.0539682540f))));
  return choose(less(magnitude(x), splat(0.15f)), near, far);
}
// Abramowitz and Stegun 7.1.26 away from zero, the series near it.
PENSTOCK_INLINE V error_function(V x) {
  const V a = magnitude(x);
  const V t = splat(1.0f) / (splat(1.0f) + splat(0.3275911f) * a);
  V p = splat(1.061405429f);
  p = p * t + splat(-1.453152027f);
  p = p * t + splat(1.421413741f);
  p = p * t + splat(-0.284496736f);
  p = p * t + splat(0.254829592f);
  const V far = splat(1.0f) - p * t * exponential(-(a * a));
  const V q = a * a;
  const V near = a * (splat(1.128379167f) + q * (splat(-0.376126389f) + q * (splat(0.112837917f) + q * splat(-0.0268661706f))));
  const V result = choose(less(a, splat(0.25f)), near, far);
  return choose(less(x, splat(0.0f)), -result, result);
}

PENSTOCK_INLINE V evaluate(Function f, float slope, V v) {
  const V zero = splat(0.0f);
  switch (f) {
    case Function::relu: return choose(less(v, zero), zero, v);  // keeps a NaN, as PyTorch does
    case Function::relu6: v = choose(less(v, zero), zero, v); return choose(less(splat(6.0f), v), splat(6.0f), v);
    case Function::silu: return v * logistic(v);
    case Function::gelu: return splat(0.5f) * v * (splat(1.0f) + error_function(v * splat(0.70710678f)));
    case Function::hardswish: return v * smaller(splat(6.0f), larger(zero, v + splat(3.0f))) * splat(1.0f / 6.0f);
    case Function::leaky_relu: return choose(less(v, zero), v * splat(slope), v);
    case Function::sigmoid: return logistic(v);
    case Function::hardsigmoid: return smaller(splat(6.0f), larger(zero, v + splat(3.0f))) * splat(1.0f / 6.0f);
    case Function::tanh: return hyperbolic_tangent(v);
    case Function::gelu_tanh:
      return splat(0.5f) * v * (splat(1.0f) + hyperbolic_tangent(splat(0.79788456f) * (v + splat(0.044715f) * v * v * v)));
    case Function::mish: {
      // tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2). As a reciprocal, e is 0 at minus infinity, which yields NaN, as in PyTorch.
      const V e = splat(1.0f) / exponential(-smaller(splat(20.0f), v));
      const V n = e * (e + splat(2.0f));
      return v * (n / (n + splat(2.0f)));
    }
    case Function::softsign: return v / (splat(1.0f) + magnitude(v));
    case Function::elu: return choose(less(v, zero), splat(slope) * exponential_less_one(v), v);
    default: return v;
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
