// Depthwise convolution with channels in the lanes: several pixels of a row share the weights of a vector of channels.
namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kDepthwisePixels = kRegisters == 32 ? 7 : 4;

struct DepthwiseTile {
  const float* input;  // under the first tap of the first pixel
  std::ptrdiff_t pixel, row;
  const float* weights;
  int taps;                           // of the kernel
  int rows, columns, weight_columns;  // taps that lie inside the map; taps of a row of weights
  std::ptrdiff_t tap_pixel, tap_row;  // dilated
  float* to;
  std::ptrdiff_t to_pixel;
};

// kColumns taps of every row for P neighbouring pixels, stride kStride.
template <int kColumns, int kStride, int P>
PENSTOCK_INLINE void depthwise_pixels(const DepthwiseTile& t, int c, Vec (&acc)[P]) {
  for (int p = 0; p < P; ++p) acc[p] = zero();
  const float* from = t.input + c;
  const float* weights = t.weights + static_cast<std::ptrdiff_t>(c) * t.taps;
  for (int ky = 0; ky < t.rows; ++ky, from += t.tap_row, weights += t.weight_columns * kLanes) {
    Vec w[kColumns];
#pragma GCC unroll 5
    for (int k = 0; k < kColumns; ++k) w[k] = load(weights + k * kLanes);
#pragma GCC unroll 20
    for (int x = 0; x < (P - 1) * kStride + kColumns; ++x) {
      const Vec value = load(from + x * t.pixel);
#pragma GCC unroll 5
      for (int k = 0; k < kColumns; ++k) {
        const int at = x - k;
        if (at >= 0 && at % kStride == 0 && at / kStride < P) acc[at / kStride] = fma(value, w[k], acc[at / kStride]);
      }
    }
  }
}

// Any kernel, one pixel.
struct DepthwiseOne {
  static constexpr int kPixels = 1;
  PENSTOCK_INLINE void run(const DepthwiseTile& t, int c, Vec (&acc)[1]) {
    acc[0] = zero();
    for (int ky = 0; ky < t.rows; ++ky) {
      const float* from = t.input + ky * t.tap_row + c;
      const float* weights = t.weights + static_cast<std::ptrdiff_t>(c) * t.taps + ky * t.weight_columns * kLanes;
      for (int k = 0; k < t.columns; ++k, from += t.tap_pixel, weights += kLanes) acc[0] = fma(load(from), load(weights), acc[0]);
    }
  }
};

template <int kColumns, int kStride, int P>
struct DepthwiseMany {
  static constexpr int kPixels = P;
  PENSTOCK_INLINE void run(const DepthwiseTile& t, int c, Vec (&acc)[P]) { depthwise_pixels<kColumns, kStride, P>(t, c, acc); }
};

template <typename Pixels, typename F>
PENSTOCK_INLINE void depthwise_as(const DepthwiseTile& t, const LanesOutput& out, int begin, int end, float* sums, F f) {
  constexpr int P = Pixels::kPixels;
  for (int c = begin; c < end; c += kLanes) {
    Vec acc[P];
    Pixels::run(t, c, acc);
    const Vec gain = load(out.gain + c), offset = load(out.offset + c);
    Vec sum = zero();
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const Vec value = f(fma(acc[p], gain, offset));
      store(t.to + p * t.to_pixel + c, value);
      sum = sum + abs(value);
    }
    if (sums) store(sums + c, load(sums + c) + sum);
  }
}

template <typename Pixels>
static void depthwise_tile(const DepthwiseTile& t, const LanesOutput& out, int begin, int end, float* sums) {
  const Vec low = splat(out.low), high = splat(out.high);
  if (out.activation < 0) {
    depthwise_as<Pixels>(t, out, begin, end, sums, [&](Vec v) __attribute__((always_inline)) { return clamp(v, low, high); });
  } else if (static_cast<Activation>(out.activation) == Activation::silu) {
    depthwise_as<Pixels>(t, out, begin, end, sums, Silu{});
  } else if (static_cast<Activation>(out.activation) == Activation::hardswish) {
    depthwise_as<Pixels>(t, out, begin, end, sums, Hardswish{});
  } else {
    depthwise_as<Pixels>(t, out, begin, end, sums, OtherCurve{out.activation, out.slope});
  }
}

using DepthwiseFunction = void (*)(const DepthwiseTile&, const LanesOutput&, int, int, float*);

template <int kColumns, int kStride, int... kPixels>
PENSTOCK_INLINE DepthwiseFunction pick_depthwise(int pixels, std::integer_sequence<int, kPixels...>) {
  static constexpr DepthwiseFunction kTable[] = {depthwise_tile<DepthwiseMany<kColumns, kStride, kPixels + 1>>...};
  return kTable[pixels - 1];
}

// Null: none for such kernels.
static DepthwiseFunction depthwise_function(int columns, int stride, int pixels) {
  const auto all = std::make_integer_sequence<int, kDepthwisePixels>();
  if (columns == 3) return stride == 1 ? pick_depthwise<3, 1>(pixels, all) : pick_depthwise<3, 2>(pixels, all);
  return stride == 1 ? pick_depthwise<5, 1>(pixels, all) : pick_depthwise<5, 2>(pixels, all);
}

static void convolve_depthwise(const DepthwiseArgs& a, int row_begin, int row_end, int vector_begin, int vector_end, float* sums) {
  const LanesOutput& out = a.out;
  const bool usual = (a.kernel_w == 3 || a.kernel_w == 5) && (a.stride_w == 1 || a.stride_w == 2) && a.dilation_w == 1;
  // Columns whose windows lie inside the map.
  int inner = (a.pad_w + a.stride_w - 1) / a.stride_w;
  int outer = a.width + a.pad_w - (a.kernel_w - 1) * a.dilation_w - 1;
  outer = outer < 0 ? 0 : outer / a.stride_w + 1;
  if (outer > out.width) outer = out.width;
  if (!usual || inner >= outer) inner = outer = out.width;
  const int begin = vector_begin * kLanes, end = vector_end * kLanes;
  DepthwiseTile t;
  t.pixel = a.pixel;
  t.row = a.row;
  t.taps = a.kernel_h * a.kernel_w;
  t.weight_columns = a.kernel_w;
  t.tap_pixel = a.dilation_w * a.pixel;
  t.tap_row = a.dilation_h * a.row;
  t.to_pixel = out.pixel;
  // Taps of a window from `start` on that lie in [0, size): the first, and their number.
  const auto inside = [](int start, int kernel, int dilation, int size, int& first) {
    first = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
    const int last = size - 1 - start < 0 ? -1 : (size - 1 - start) / dilation;
    const int count = (last < kernel - 1 ? last : kernel - 1) - first + 1;
    return count < 0 ? 0 : count;
  };
  for (int y = row_begin; y < row_end; ++y) {
    int ky;
    t.rows = inside(y * a.stride_h - a.pad_h, a.kernel_h, a.dilation_h, a.height, ky);
    const float* const line = a.input + (y * a.stride_h - a.pad_h + ky * a.dilation_h) * a.row;
    const float* const weights = a.weights + std::ptrdiff_t{ky} * a.kernel_w * kLanes;
    const auto one = [&](int x) {
      int kx;
      t.columns = inside(x * a.stride_w - a.pad_w, a.kernel_w, a.dilation_w, a.width, kx);
      t.input = line + (x * a.stride_w - a.pad_w + kx * a.dilation_w) * a.pixel;
      t.weights = weights + kx * kLanes;
      t.to = out.pixels + y * out.row + x * out.pixel;
      depthwise_tile<DepthwiseOne>(t, out, begin, end, sums);
    };
    for (int x = 0; x < inner; ++x) one(x);
    const int count = outer - inner, tiles = (count + kDepthwisePixels - 1) / kDepthwisePixels;
    for (int i = 0; i < tiles; ++i) {
      const int x = inner + count * i / tiles, last = inner + count * (i + 1) / tiles;
      t.columns = a.kernel_w;
      t.input = line + (x * a.stride_w - a.pad_w) * a.pixel;
      t.weights = weights;
      t.to = out.pixels + y * out.row + x * out.pixel;
      depthwise_function(a.kernel_w, a.stride_w, last - x)(t, out, begin, end, sums);
    }
    for (int x = outer; x < out.width; ++x) one(x);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
