// What all convolution kernels share: the register tile, gain, bias and activation at the end, the zeros around a plane, list
// search.
namespace penstock {
namespace PENSTOCK_ISA {

// Output channels that an inner loop computes together: with two vectors each, their sums fill the registers.
constexpr int kPanel = kRegisters == 32 ? 12 : 6;

template <typename Pick, int kVectors, int... kCells>
PENSTOCK_INLINE auto pick_function(int outs, int vectors, std::integer_sequence<int, kCells...>) {
  static constexpr decltype(Pick::template of<1, 1>()) kTable[] = {
      Pick::template of<kCells / kVectors + 1, kCells % kVectors + 1>()...};
  return kTable[(outs - 1) * kVectors + vectors - 1];
}

// Pick::of<outs, vectors>() for numbers known only at run time (outs <= kPanel, vectors <= kVectors). Each size of the register
// tile is a kernel of its own.
template <typename Pick, int kVectors>
PENSTOCK_INLINE auto pick_function(int outs, int vectors) {
  return pick_function<Pick, kVectors>(outs, vectors, std::make_integer_sequence<int, kPanel * kVectors>());
}

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

// The numbers one output channel needs at the end, splatted: (sum + bias) * gain as one step.
struct Finish {
  Vec gain, offset;
  Vec operator()(Vec sum) const { return fma(sum, gain, offset); }
};

PENSTOCK_INLINE Finish finish_of(const ConvOutput& out, int plane) {
  const float gain = out.gain ? out.gain[plane] : 1.0f;
  return {splat(gain), splat(gain * out.bias[out.list[plane]])};
}

// The value comes second: min and max then pass on what is not a number, as the framework does.
PENSTOCK_INLINE Vec clamp(Vec v, Vec low, Vec high) { return min(high, max(low, v)); }

// With a clamp, which is all that most networks need.
PENSTOCK_INLINE Vec finish_clamped(Vec acc, const Finish& f, const ConvOutput& out) {
  return clamp(f(acc), splat(out.low), splat(out.high));
}

PENSTOCK_INLINE Vec finish(Vec acc, const Finish& f, const ConvOutput& out) {
  if (__builtin_expect(out.activation >= 0, 0)) return activate_curve(f(acc), out.activation, out.slope);
  return finish_clamped(acc, f, out);
}

// Margins are short, so a call would take longer than the zeros.
PENSTOCK_INLINE void clear(float* p, std::ptrdiff_t count) {
  if (count < kLanes) {
    for (std::ptrdiff_t i = 0; i < count; ++i) p[i] = 0.0f;
    return;
  }
  for (std::ptrdiff_t i = 0; i + kLanes < count; i += kLanes) store(p + i, zero());
  store(p + count - kLanes, zero());
}

// Zeroes the padding that belongs to rows [row_begin, row_end): the gap after each, the margin above the first
// row and the margin below the last.
static void zero_padding(const ConvOutput& out, int plane, int row_begin, int row_end, bool gaps) {
  float* base = out.planes + plane * out.stride;
  if (out.halo == 0) return;
  if (row_begin == 0) clear(base, out.origin);
  if (gaps) {
    float* gap = base + out.origin + static_cast<std::ptrdiff_t>(row_begin) * out.pitch + out.width;
    if (out.halo == 1) {
      for (int y = row_begin; y < row_end; ++y, gap += out.pitch) *gap = 0.0f;
    } else {
      for (int y = row_begin; y < row_end; ++y, gap += out.pitch) {
        for (int i = 0; i < out.halo; ++i) gap[i] = 0.0f;
      }
    }
  }
  if (row_end == out.height) {
    float* below = base + out.origin + static_cast<std::ptrdiff_t>(out.height - 1) * out.pitch + out.width;
    float* end = base + static_cast<std::ptrdiff_t>(out.height + 2 * out.halo) * out.pitch + 2 * out.halo;
    clear(below, end - below);
  }
}

// First position in the increasing list whose value is not below `value`.
static int lower_bound(const std::int32_t* list, int count, int value) {
  int low = 0;
  while (count > 0) {
    const int half = count / 2;
    if (list[low + half] < value) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
