// Pooling.
namespace penstock {
namespace PENSTOCK_ISA {

PENSTOCK_INLINE float pool_edge(const float* origin, std::ptrdiff_t pitch, int height, int width, int y0, int x0,
                                const PoolShape& s, Pool kind) {
  const PoolWindow window = pool_window(s, height, width, y0, x0);
  float best = -__builtin_inff(), sum = 0.0f;
  for (int y = window.down.begin; y < window.down.end; y += s.dilation_h)
    for (int x = window.across.begin; x < window.across.end; x += s.dilation_w) {
      const float v = origin[y * pitch + x];
      best = maximum(v, best);
      sum += v;
    }
  if (kind == Pool::max) return window.empty() ? 0.0f : best;
  const int divisor = window.divisor(s);
  return divisor ? sum / static_cast<float>(divisor) : 0.0f;
}

// Every other value of 2 * kLanes.
PENSTOCK_INLINE Vec load_even(const float* p) { return even_of(load(p), load(p + kLanes)); }

// One row of windows: first the rows under it are merged, then the merged row's columns. `merged` has the row with
// its padding on both sides (the neutral value) and room to read a vector too far.
template <bool Max>
PENSTOCK_INLINE Vec pool_columns(const float* p, const PoolShape& s) {
  Vec value = s.stride_w == 1 ? load(p) : load_even(p);
  for (int j = 1; j < s.kernel_w; ++j) {
    const float* q = p + j * s.dilation_w;
    const Vec v = s.stride_w == 1 ? load(q) : load_even(q);
    value = Max ? maximum(v, value) : value + v;
  }
  return value;
}

constexpr int kMergedRow = 2048;

template <bool Max>
PENSTOCK_INLINE void pool_rows(const float* from, Planes in, float* to, Planes out, const PoolShape& s) {
  float merged[kMergedRow];
  float shares[kMergedRow];  // average only: what a sum is multiplied with, by column
  const float neutral = Max ? -__builtin_inff() : 0.0f;
  const int length = (out.width - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1 + 2 * kLanes;
  for (int x = 0; x < kMergedRow && x < length + 3 * kLanes; ++x) merged[x] = neutral;
  int rows_before = -1;
  for (int oy = 0; oy < out.height; ++oy) {
    const int y0 = oy * s.stride_h - s.pad_h;
    const WindowSide down = window_side(y0, s.kernel_h, s.dilation_h, s.pad_h, in.height);
    float* const row = to + static_cast<std::ptrdiff_t>(oy) * out.pitch();
    if (!Max && !s.divisor) {
      const int rows = s.count_padding ? down.padded : down.values;
      for (int x = 0; rows != rows_before && x < out.width; ++x) {
        const WindowSide across = window_side(x * s.stride_w - s.pad_w, s.kernel_w, s.dilation_w, s.pad_w, in.width);
        const int count = PoolWindow{down, across}.divisor(s);
        shares[x] = count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
      }
      rows_before = rows;
    }
    const float* line = from + down.begin * static_cast<std::ptrdiff_t>(in.pitch());
    const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(s.dilation_h) * in.pitch();
    const auto merge = [&](const float* p) {
      Vec value = load(p);
      for (int i = 1; i < down.values; ++i) {
        p += step;
        value = Max ? maximum(load(p), value) : value + load(p);
      }
      return value;
    };
    if (down.values > 0) {
      int x = 0;
      for (; x + kLanes <= in.width; x += kLanes) store(merged + s.pad_w + x, merge(line + x));
      // A plane has floats to spare after its last row, so the last vector may be read whole.
      if (x < in.width) store_first(merged + s.pad_w + x, merge(line + x), in.width - x);
    }
    for (int x = 0; x < out.width; x += kLanes) {
      Vec value;
      if (s.stride_w <= 2) {
        value = pool_columns<Max>(merged + x * s.stride_w, s);
      } else {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int at = x + lane < out.width ? (x + lane) * s.stride_w : 0;
          float v = merged[at];
          for (int j = 1; j < s.kernel_w; ++j) {
            const float w = merged[at + j * s.dilation_w];
            v = Max ? maximum(w, v) : v + w;
          }
          value[lane] = v;
        }
      }
      if (!Max) {
        if (s.divisor) value = value * splat(1.0f / static_cast<float>(s.divisor));
        else value = value * (x + kLanes <= out.width ? load(shares + x) : load_some(shares + x, out.width - x));
      }
      if (x + kLanes <= out.width) store(row + x, value);
      else store_first(row + x, value, out.width - x);
    }
  }
}

// The maximum of kRows rows `pitch` apart, a vector of columns.
template <int kRows>
PENSTOCK_INLINE Vec largest_of_rows(const float* p, std::ptrdiff_t pitch) {
  Vec value = load(p);
  for (int i = 1; i < kRows; ++i) value = maximum(load(p + i * pitch), value);
  return value;
}

// A row of the two usual maxima, in registers: windows of 2x2, two apart (kSize 2), or of 3x3, two apart with one column
// of padding (kSize 3), over kRows rows from `line` on. A plane has floats to spare on both sides, so vectors may be
// read whole; what is not a value is kept out.
template <int kSize, int kRows>
PENSTOCK_INLINE void pool_row(const float* line, std::ptrdiff_t pitch, int in_width, float* to, int width) {
  const float none = -__builtin_inff();
  Vec before = splat(none);  // columns left of the vector
  for (int x = 0; x < width; x += kLanes) {
    Vec a = largest_of_rows<kRows>(line + 2 * x, pitch), b = largest_of_rows<kRows>(line + 2 * x + kLanes, pitch);
    if (kSize == 3 && 2 * x + 2 * kLanes > in_width) {
      const Int lanes = {0, 1, 2, 3, 4, 5, 6, 7};
      a = choose(less(lanes, Int{} + (in_width - 2 * x)), a, splat(none));
      b = choose(less(lanes, Int{} + (in_width - 2 * x - kLanes)), b, splat(none));
    }
    const Vec odd = odd_of(a, b);
    Vec value = maximum(odd, even_of(a, b));
    if (kSize == 3) {
      value = maximum(from_last_of(before, odd), value);
      before = odd;
    }
    if (x + kLanes <= width) store(to + x, value);
    else store_first(to + x, value, width - x);
  }
}

template <int kSize>
static void pool_usual(const float* from, Planes in, float* to, Planes out, const PoolShape& s) {
  for (int oy = 0; oy < out.height; ++oy, to += out.pitch()) {
    int y = oy * s.stride_h - s.pad_h, rows = kSize;
    if (y < 0) {
      rows += y;
      y = 0;
    }
    if (rows > in.height - y) rows = in.height - y;
    const float* line = from + static_cast<std::ptrdiff_t>(y) * in.pitch();
    if (rows == kSize) pool_row<kSize, kSize>(line, in.pitch(), in.width, to, out.width);
    else if (rows == 2) pool_row<kSize, 2>(line, in.pitch(), in.width, to, out.width);
    else pool_row<kSize, 1>(line, in.pitch(), in.width, to, out.width);
  }
}

// Whether pool_usual computes these windows. The last window of size 2 must lie inside the image. One of size 3 need only hold one value,
// because pool_row leaves out the columns that are not values.
static bool pools_usually(Planes in, Planes out, const PoolShape& s, int size) {
  const int pad = size == 3 ? 1 : 0, held = size == 3 ? 1 : 2;
  return s.kernel_h == size && s.kernel_w == size && s.stride_h == 2 && s.stride_w == 2 && s.pad_h == pad && s.pad_w == pad &&
         s.dilation_h == 1 && s.dilation_w == 1 && (out.height - 1) * 2 - pad + held <= in.height &&
         (out.width - 1) * 2 - pad + held <= in.width;
}

static void pool(const float* in, Planes in_shape, float* out, Planes out_shape, const PoolShape& s, Pool kind) {
  zero_padding(out, out_shape);
  const float* from = in + in_shape.origin();
  float* to = out + out_shape.origin();
  if (kind == Pool::max && pools_usually(in_shape, out_shape, s, 2)) return pool_usual<2>(from, in_shape, to, out_shape, s);
  if (kind == Pool::max && pools_usually(in_shape, out_shape, s, 3)) return pool_usual<3>(from, in_shape, to, out_shape, s);
  const std::int64_t reach = static_cast<std::int64_t>(out_shape.width - 1) * s.stride_w +
                             static_cast<std::int64_t>(s.kernel_w - 1) * s.dilation_w + s.stride_w * kLanes;
  // Every window of a maximum must hold a value; with dilation one may lie between the values altogether.
  const bool plain = s.dilation_h == 1 && s.dilation_w == 1;
  if (plain && reach + 8 * kLanes < kMergedRow && in_shape.width + s.pad_w + 4 * kLanes < kMergedRow) {
    if (kind == Pool::max) pool_rows<true>(from, in_shape, to, out_shape, s);
    else pool_rows<false>(from, in_shape, to, out_shape, s);
    return;
  }
  for (int oy = 0; oy < out_shape.height; ++oy)
    for (int x = 0; x < out_shape.width; ++x)
      to[static_cast<std::ptrdiff_t>(oy) * out_shape.pitch() + x] = pool_edge(
          from, in_shape.pitch(), in_shape.height, in_shape.width, oy * s.stride_h - s.pad_h, x * s.stride_w - s.pad_w, s, kind);
}

static float reduce_window(const float* plane, Planes shape, int y0, int y1, int x0, int x1, Pool kind) {
  const bool whole = x0 == 0 && x1 == shape.width;
  const float* p = plane + shape.origin() + static_cast<std::ptrdiff_t>(y0) * shape.pitch() + x0;
  if (kind == Pool::average) {
    double sum = 0.0;
    if (whole) {
      sum =
          sum_pieces(p, static_cast<std::ptrdiff_t>(y1 - y0 - 1) * shape.pitch() + shape.width, [](Vec a, Vec v) { return a + v; });
    } else {
      for (int y = y0; y < y1; ++y, p += shape.pitch())
        for (int x = 0; x < x1 - x0; ++x) sum += p[x];
    }
    return static_cast<float>(sum / (static_cast<double>(y1 - y0) * (x1 - x0)));
  }
  float best = p[0];
  for (int y = y0; y < y1; ++y, p += shape.pitch())
    for (int x = 0; x < x1 - x0; ++x) best = maximum(p[x], best);
  return best;
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
