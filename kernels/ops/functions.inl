// Activations of eight values at a time; e^x and erf are those of machine/curves.inl.
namespace penstock {
namespace PENSTOCK_ISA {

PENSTOCK_INLINE Vec exponential_less_one(Vec x) {
  // Near zero e^x - 1 loses digits; the series does not.
  Vec p = splat(1.0f / 720.0f);
  p = p * x + splat(1.0f / 120.0f);
  p = p * x + splat(1.0f / 24.0f);
  p = p * x + splat(1.0f / 6.0f);
  p = p * x + splat(0.5f);
  p = p * x + splat(1.0f);
  return choose(less(magnitude(x), splat(0.25f)), p * x, exponential(x) - splat(1.0f));
}
PENSTOCK_INLINE Vec logistic(Vec x) { return splat(1.0f) / (splat(1.0f) + exponential(-x)); }
PENSTOCK_INLINE Vec hyperbolic_tangent(Vec x) {
  // Near zero 1 - 2 s(-2x) loses digits; the odd series does not.
  const Vec far = splat(1.0f) - splat(2.0f) / (splat(1.0f) + exponential(x * splat(2.0f)));
  const Vec q = x * x;
  const Vec near = x * (splat(1.0f) + q * (splat(-0.333333333f) + q * (splat(0.133333333f) + q * splat(-0.0539682540f))));
  return choose(less(magnitude(x), splat(0.15f)), near, far);
}
PENSTOCK_INLINE Vec evaluate(Function f, float slope, Vec v) {
  const Vec zero = splat(0.0f);
  switch (f) {
    case Function::relu: return choose(less(v, zero), zero, v);  // keeps a NaN, as PyTorch does
    case Function::relu6: v = choose(less(v, zero), zero, v); return choose(less(splat(6.0f), v), splat(6.0f), v);
    case Function::silu: return v * logistic(v);
    case Function::gelu: return splat(0.5f) * v * (splat(1.0f) + error_function(v * splat(0.70710678f)));
    case Function::hardswish: return v * min(splat(6.0f), max(zero, v + splat(3.0f))) * splat(1.0f / 6.0f);
    case Function::leaky_relu: return choose(less(v, zero), v * splat(slope), v);
    case Function::sigmoid: return logistic(v);
    case Function::hardsigmoid: return min(splat(6.0f), max(zero, v + splat(3.0f))) * splat(1.0f / 6.0f);
    case Function::tanh: return hyperbolic_tangent(v);
    case Function::gelu_tanh:
      return splat(0.5f) * v * (splat(1.0f) + hyperbolic_tangent(splat(0.79788456f) * (v + splat(0.044715f) * v * v * v)));
    case Function::mish: {
      // tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2). As a reciprocal, e is 0 at minus infinity, which yields NaN, as in PyTorch.
      const Vec e = splat(1.0f) / exponential(-min(splat(20.0f), v));
      const Vec n = e * (e + splat(2.0f));
      return v * (n / (n + splat(2.0f)));
    }
    case Function::softsign: return v / (splat(1.0f) + magnitude(v));
    case Function::elu: return choose(less(v, zero), splat(slope) * exponential_less_one(v), v);
    case Function::selu: return splat(1.05070098f) * choose(less(v, zero), splat(1.67326324f) * exponential_less_one(v), v);
    default: return v;
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
