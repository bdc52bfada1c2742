// What convolution kernels on planes share: the register tile, gain, bias and activation at the end, the zeros around a plane,
// list search.
#include "conv/curves.inl"

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

// The numbers one output channel needs at the end, splatted: (sum + bias) * gain as one step.
struct Finish {
  Vec gain, offset;
  Vec operator()(Vec sum) const { return fma(sum, gain, offset); }
};

PENSTOCK_INLINE Finish finish_of(const ConvOutput& out, int plane) {
  const float gain = out.gain ? out.gain[plane] : 1.0f;
  return {splat(gain), splat(gain * out.bias[out.list[plane]])};
}

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
