// The source of ops.h's kernels; included once per instruction set inside a namespace of its own.
// Written with the compiler's vector type of eight floats, which every set can express.

typedef float V __attribute__((vector_size(32)));
typedef std::int32_t VI __attribute__((vector_size(32)));
typedef std::uint32_t VU __attribute__((vector_size(32)));
constexpr int kLanes = 8;

#define PENSTOCK_INLINE static inline __attribute__((always_inline))

PENSTOCK_INLINE V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
PENSTOCK_INLINE void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
PENSTOCK_INLINE V splat(float x) { return V{x, x, x, x, x, x, x, x}; }
PENSTOCK_INLINE V magnitude(V v) { return (V)((VI)v & 0x7fffffff); }
PENSTOCK_INLINE V larger(V a, V b) { return (V)(((VI)a & (VI)(a > b)) | ((VI)b & ~(VI)(a > b))); }
PENSTOCK_INLINE V smaller(V a, V b) { return (V)(((VI)a & (VI)(a < b)) | ((VI)b & ~(VI)(a < b))); }
PENSTOCK_INLINE V choose(VI mask, V yes, V no) { return (V)(((VI)yes & mask) | ((VI)no & ~mask)); }
PENSTOCK_INLINE float total(V v) {
  return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}
PENSTOCK_INLINE float greatest(V v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}
// The first n values, zeros after them; reads nothing beyond.
PENSTOCK_INLINE V load_some(const float* p, int n) {
  V v = splat(0.0f);
  __builtin_memcpy(&v, p, sizeof(float) * static_cast<unsigned>(n));
  return v;
}
PENSTOCK_INLINE void store_some(float* p, V v, int n) {
  __builtin_memcpy(p, &v, sizeof(float) * static_cast<unsigned>(n));
}

// exp by 2^n times a polynomial (relative error below 3e-7), saturating outside [-87, 88].
PENSTOCK_INLINE V exponential(V x) {
  x = smaller(larger(x, splat(-87.0f)), splat(88.0f));
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
PENSTOCK_INLINE V logistic(V x) { return splat(1.0f) / (splat(1.0f) + exponential(-x)); }
PENSTOCK_INLINE V hyperbolic_tangent(V x) {
  // Near zero 1 - 2 s(-2x) loses digits; the odd series does not.
  const V far = splat(1.0f) - splat(2.0f) / (splat(1.0f) + exponential(x * splat(2.0f)));
  const V q = x * x;
  const V near = x * (splat(1.0f) + q * (splat(-0.333333333f) + q * (splat(0.133333333f) + q * splat(-0.0539682540f))));
  return choose((VI)(magnitude(x) < splat(0.15f)), near, far);
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
  const V result = choose((VI)(a < splat(0.25f)), near, far);
  return choose((VI)(x < splat(0.0f)), -result, result);
}

PENSTOCK_INLINE V evaluate(Function f, float slope, V v) {
  const V zero = splat(0.0f);
  switch (f) {
    case Function::relu:
      return choose((VI)(v < zero), zero, v);  // keeps a NaN, as PyTorch does
    case Function::relu6:
      v = choose((VI)(v < zero), zero, v);
      return choose((VI)(v > splat(6.0f)), splat(6.0f), v);
    case Function::silu:
      return v * logistic(v);
    case Function::gelu:
      return splat(0.5f) * v * (splat(1.0f) + error_function(v * splat(0.70710678f)));
    case Function::hardswish:
      return v * smaller(larger(v + splat(3.0f), zero), splat(6.0f)) * splat(1.0f / 6.0f);
    case Function::leaky_relu:
      return choose((VI)(v < zero), v * splat(slope), v);
    case Function::sigmoid:
      return logistic(v);
    case Function::hardsigmoid:
      return smaller(larger(v + splat(3.0f), zero), splat(6.0f)) * splat(1.0f / 6.0f);
    case Function::tanh:
      return hyperbolic_tangent(v);
    case Function::gelu_tanh:
      return splat(0.5f) * v *
             (splat(1.0f) + hyperbolic_tangent(splat(0.79788456f) * (v + splat(0.044715f) * v * v * v)));
    default:
      return v;
  }
}

// Bits of the lanes of v that are infinite or not a number.
PENSTOCK_INLINE VI not_finite(V v) { return (VI)(((VI)v & 0x7f800000) == 0x7f800000); }

PENSTOCK_INLINE bool is_zero(VI bits) {
  std::int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= bits[i];
  return any == 0;
}

static bool all_finite(const float* values, std::ptrdiff_t n) {
  VI bad = VI{}, bad_too = VI{};
  std::ptrdiff_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    bad |= not_finite(load(values + i));
    bad_too |= not_finite(load(values + i + kLanes));
  }
  for (; i < n; ++i)
    if (values[i] - values[i] != 0.0f) return false;
  return is_zero(bad | bad_too);
}

static bool import_plane(const float* image, Planes shape, float* plane) {
  zero_padding(plane, shape);
  VI bad = VI{};
  bool good = true;
  for (int y = 0; y < shape.height; ++y) {
    const float* from = image + static_cast<std::ptrdiff_t>(y) * shape.width;
    float* to = plane + shape.origin() + static_cast<std::ptrdiff_t>(y) * shape.pitch();
    int x = 0;
    for (; x + kLanes <= shape.width; x += kLanes) {
      const V v = load(from + x);
      bad |= not_finite(v);
      store(to + x, v);
    }
    for (; x < shape.width; ++x) {
      const float v = from[x];
      good = good && v - v == 0.0f;
      to[x] = v;
    }
  }
  return good && is_zero(bad);
}

static void export_plane(const float* plane, Planes shape, float* image) {
  for (int y = 0; y < shape.height; ++y)
    __builtin_memcpy(image + static_cast<std::ptrdiff_t>(y) * shape.width,
                     plane + shape.origin() + static_cast<std::ptrdiff_t>(y) * shape.pitch(),
                     sizeof(float) * static_cast<unsigned>(shape.width));
}

// Folds `step(accumulator, v)` over n values of a plane with four accumulators, then joins them with `join`. The last
// vector is read whole (a plane has kVectorSlack floats to spare) and what is not a value is masked out.
template <typename Step, typename Join>
PENSTOCK_INLINE V fold(const float* p, std::ptrdiff_t n, Step step, Join join) {
  V a = splat(0.0f), b = a, c = a, d = a;
  std::ptrdiff_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = step(a, load(p + i));
    b = step(b, load(p + i + kLanes));
    c = step(c, load(p + i + 2 * kLanes));
    d = step(d, load(p + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a = step(a, load(p + i));
  if (i < n) {
    const VI lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    const VI mask = (VI)(lanes < VI{} + static_cast<std::int32_t>(n - i));
    b = step(b, (V)((VI)load(p + i) & mask));
  }
  return join(join(a, b), join(c, d));
}

// Sums run over pieces of this many values, so that rounding stays small on large planes.
constexpr std::ptrdiff_t kPiece = 4096;

template <typename Step>
PENSTOCK_INLINE double sum_pieces(const float* p, std::ptrdiff_t n, Step step) {
  double sum = 0.0;
  for (std::ptrdiff_t i = 0; i < n; i += kPiece)
    sum += total(fold(p + i, n - i < kPiece ? n - i : kPiece, step, [](V a, V b) { return a + b; }));
  return sum;
}

static float summarise(const float* plane, Planes shape, Summary kind) {
  // Between the first and the last value lies nothing but values and zeros of the padding.
  const float* p = plane + shape.origin();
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(shape.height - 1) * shape.pitch() + shape.width;
  const double area = static_cast<double>(shape.height) * shape.width;
  switch (kind) {
    case Summary::l1:
      return static_cast<float>(sum_pieces(p, n, [](V a, V v) { return a + magnitude(v); }) / area);
    case Summary::l2:
      return static_cast<float>(__builtin_sqrt(sum_pieces(p, n, [](V a, V v) { return a + v * v; })) / area);
    case Summary::linf:
      return static_cast<float>(
          greatest(fold(p, n, [](V a, V v) { return larger(a, magnitude(v)); }, [](V a, V b) { return larger(a, b); })) /
          area);
    default: {
      const double mean = sum_pieces(p, n, [](V a, V v) { return a + v; }) / area;
      const V centre = splat(static_cast<float>(mean));
      double squares = 0.0;
      for (int y = 0; y < shape.height; ++y) {
        const float* row = p + static_cast<std::ptrdiff_t>(y) * shape.pitch();
        V sum = splat(0.0f);
        int x = 0;
        for (; x + kLanes <= shape.width; x += kLanes) {
          const V v = load(row + x) - centre;
          sum += v * v;
        }
        for (; x < shape.width; ++x) {
          const float v = row[x] - static_cast<float>(mean);
          sum[0] += v * v;
        }
        squares += total(sum);
      }
      return static_cast<float>(squares / area / area);
    }
  }
}

// Adds kRows rows, times `x` each, to the sums of outputs [begin, end); the first rows find no sums yet.
template <int kRows>
PENSTOCK_INLINE void add_rows(const float* x, const float* const* rows, bool first, int begin, int end, float* sums) {
  V by[kRows];
  for (int r = 0; r < kRows; ++r) by[r] = splat(x[r]);
  int o = begin;
  for (; o + kLanes <= end; o += kLanes) {
    V sum = first ? splat(0.0f) : load(sums + o);
    for (int r = 0; r < kRows; ++r) sum += by[r] * load(rows[r] + o);
    store(sums + o, sum);
  }
  if (o == end) return;
  V sum = first ? splat(0.0f) : load_some(sums + o, end - o);
  for (int r = 0; r < kRows; ++r) sum += by[r] * load_some(rows[r] + o, end - o);
  store_some(sums + o, sum, end - o);
}

static void combine_rows(const float* x, const std::int32_t* list, int count, const float* rows, const float* bias,
                         int begin, int end, std::int64_t width, float* out) {
  // So many rows side by side: the hardware follows each, and more lines are on their way than from one row after the other.
  constexpr int kTogether = 12;
  const float* at[kTogether];
  int p = 0;
  for (; p + kTogether <= count; p += kTogether) {
    for (int r = 0; r < kTogether; ++r) at[r] = rows + (list ? list[p + r] : p + r) * width;
    add_rows<kTogether>(x + p, at, p == 0, begin, end, out);
  }
  constexpr int kSome = 4;
  for (; p + kSome <= count; p += kSome) {
    for (int r = 0; r < kSome; ++r) at[r] = rows + (list ? list[p + r] : p + r) * width;
    add_rows<kSome>(x + p, at, p == 0, begin, end, out);
  }
  for (; p < count; ++p) {
    at[0] = rows + (list ? list[p] : p) * width;
    add_rows<1>(x + p, at, p == 0, begin, end, out);
  }
  for (int o = begin; o < end; ++o) out[o] = (count > 0 ? out[o] : 0.0f) + bias[o];
}

static void dot_blocks(const float* x, const std::int32_t* list, int count, int block, const float* weights,
                       const float* bias, int begin, int end, std::int64_t width, float* out) {
  for (int o = begin; o < end; ++o) {
    V sum = splat(0.0f), more = sum;
    for (int p = 0; p < count; ++p) {
      const float* a = x + static_cast<std::ptrdiff_t>(p) * block;
      const float* w = weights + o * width + static_cast<std::int64_t>(list ? list[p] : p) * block;
      int i = 0;
      for (; i + 2 * kLanes <= block; i += 2 * kLanes) {
        sum += load(a + i) * load(w + i);
        more += load(a + i + kLanes) * load(w + i + kLanes);
      }
      for (; i + kLanes <= block; i += kLanes) sum += load(a + i) * load(w + i);
      if (i < block) more += load_some(a + i, block - i) * load_some(w + i, block - i);
    }
    out[o] = total(sum + more) + bias[o];
  }
}

static int count_at_least(const std::uint32_t* values, int n, std::uint32_t threshold) {
  VI hits = VI{};
  const VI limit = VI{} + static_cast<std::int32_t>(threshold);  // values are bits of floats >= 0: no sign bit
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VI v;
    __builtin_memcpy(&v, values + i, sizeof v);
    hits -= (VI)(v >= limit);
  }
  int count = 0;
  for (int lane = 0; lane < kLanes; ++lane) count += hits[lane];
  for (; i < n; ++i) count += values[i] >= threshold;
  return count;
}

PENSTOCK_INLINE float pool_edge(const float* origin, std::ptrdiff_t pitch, int height, int width, int y0, int x0,
                                const PoolShape& s, Pool kind) {
  float best = -__builtin_inff(), sum = 0.0f;
  int values = 0;
  for (int i = 0; i < s.kernel_h; ++i) {
    const int y = y0 + i * s.dilation_h;
    if (y < 0 || y >= height) continue;
    for (int j = 0; j < s.kernel_w; ++j) {
      const int x = x0 + j * s.dilation_w;
      if (x < 0 || x >= width) continue;
      const float v = origin[y * pitch + x];
      best = v > best || v != v ? v : best;
      sum += v;
      ++values;
    }
  }
  if (kind == Pool::max) return values ? best : 0.0f;
  if (s.divisor) return sum / static_cast<float>(s.divisor);
  if (s.count_padding) {
    // A window may hang over the padded edge (ceil mode); PyTorch counts up to that edge and no further.
    const int bottom = y0 + s.kernel_h < height + s.pad_h ? y0 + s.kernel_h : height + s.pad_h;
    const int right = x0 + s.kernel_w < width + s.pad_w ? x0 + s.kernel_w : width + s.pad_w;
    values = (bottom - y0) * (right - x0);
  }
  return values ? sum / static_cast<float>(values) : 0.0f;
}

PENSTOCK_INLINE V even_of(V a, V b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
PENSTOCK_INLINE V odd_of(V a, V b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }

// Every other value of 2 * kLanes.
PENSTOCK_INLINE V load_even(const float* p) { return even_of(load(p), load(p + kLanes)); }

// One row of windows: first the rows under it are merged, then the merged row's columns. `merged` has the row with
// its padding on both sides (the neutral value) and room to read a vector too far.
template <bool Max>
PENSTOCK_INLINE V pool_columns(const float* p, const PoolShape& s) {
  V value = s.stride_w == 1 ? load(p) : load_even(p);
  for (int j = 1; j < s.kernel_w; ++j) {
    const float* q = p + j * s.dilation_w;
    const V v = s.stride_w == 1 ? load(q) : load_even(q);
    value = Max ? larger(v, value) : value + v;
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
    int i0 = 0, i1 = s.kernel_h;
    while (i0 < i1 && y0 + i0 * s.dilation_h < 0) ++i0;
    while (i1 > i0 && y0 + (i1 - 1) * s.dilation_h >= in.height) --i1;
    float* const row = to + static_cast<std::ptrdiff_t>(oy) * out.pitch();
    if (!Max && !s.divisor) {
      const int bottom = y0 + s.kernel_h < in.height + s.pad_h ? y0 + s.kernel_h : in.height + s.pad_h;
      const int rows = s.count_padding ? bottom - y0 : i1 - i0;
      for (int x = 0; rows != rows_before && x < out.width; ++x) {
        int left = x * s.stride_w - s.pad_w, right = left + s.kernel_w;
        const int edge = in.width + (s.count_padding ? s.pad_w : 0);
        if (!s.count_padding && left < 0) left = 0;
        if (right > edge) right = edge;
        const int count = rows * (right - left);
        shares[x] = count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
      }
      rows_before = rows;
    }
    const float* line = from + (y0 + i0 * s.dilation_h) * static_cast<std::ptrdiff_t>(in.pitch());
    const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(s.dilation_h) * in.pitch();
    const auto merge = [&](const float* p) {
      V value = load(p);
      for (int i = i0 + 1; i < i1; ++i) {
        p += step;
        value = Max ? larger(load(p), value) : value + load(p);
      }
      return value;
    };
    if (i0 < i1) {
      int x = 0;
      for (; x + kLanes <= in.width; x += kLanes) store(merged + s.pad_w + x, merge(line + x));
      // A plane has floats to spare after its last row, so the last vector may be read whole.
      if (x < in.width) store_some(merged + s.pad_w + x, merge(line + x), in.width - x);
    }
    for (int x = 0; x < out.width; x += kLanes) {
      V value;
      if (s.stride_w <= 2) {
        value = pool_columns<Max>(merged + x * s.stride_w, s);
      } else {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int at = x + lane < out.width ? (x + lane) * s.stride_w : 0;
          float v = merged[at];
          for (int j = 1; j < s.kernel_w; ++j) {
            const float w = merged[at + j * s.dilation_w];
            v = Max ? (w > v ? w : v) : v + w;
          }
          value[lane] = v;
        }
      }
      if (!Max) {
        if (s.divisor) value = value * splat(1.0f / static_cast<float>(s.divisor));
        else value = value * (x + kLanes <= out.width ? load(shares + x) : load_some(shares + x, out.width - x));
      }
      if (x + kLanes <= out.width) store(row + x, value);
      else store_some(row + x, value, out.width - x);
    }
  }
}

// The maximum of kRows rows `pitch` apart, a vector of columns.
template <int kRows>
PENSTOCK_INLINE V largest_of_rows(const float* p, std::ptrdiff_t pitch) {
  V value = load(p);
  for (int i = 1; i < kRows; ++i) value = larger(load(p + i * pitch), value);
  return value;
}

// A row of the two usual maxima, in registers: windows of 2x2, two apart (kSize 2), or of 3x3, two apart with one column
// of padding (kSize 3), over kRows rows from `line` on. A plane has floats to spare on both sides, so vectors may be
// read whole; what is not a value is kept out.
template <int kSize, int kRows>
PENSTOCK_INLINE void pool_row(const float* line, std::ptrdiff_t pitch, int in_width, float* to, int width) {
  const float none = -__builtin_inff();
  V before = splat(none);  // columns left of the vector
  for (int x = 0; x < width; x += kLanes) {
    V a = largest_of_rows<kRows>(line + 2 * x, pitch), b = largest_of_rows<kRows>(line + 2 * x + kLanes, pitch);
    if (kSize == 3 && 2 * x + 2 * kLanes > in_width) {
      const VI lanes = {0, 1, 2, 3, 4, 5, 6, 7};
      a = choose((VI)(lanes < VI{} + (in_width - 2 * x)), a, splat(none));
      b = choose((VI)(lanes < VI{} + (in_width - 2 * x - kLanes)), b, splat(none));
    }
    const V odd = odd_of(a, b);
    V value = larger(odd, even_of(a, b));
    if (kSize == 3) {
      value = larger(__builtin_shufflevector(before, odd, 7, 8, 9, 10, 11, 12, 13, 14), value);
      before = odd;
    }
    if (x + kLanes <= width) store(to + x, value);
    else store_some(to + x, value, width - x);
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

// Whether windows are the usual ones, and the last of them hold a value (size 3, whose columns are kept apart from what
// is not one) or are full (size 2).
static bool pools_usually(Planes in, Planes out, const PoolShape& s, int size) {
  const int pad = size == 3 ? 1 : 0, held = size == 3 ? 1 : 2;
  return s.kernel_h == size && s.kernel_w == size && s.stride_h == 2 && s.stride_w == 2 && s.pad_h == pad &&
         s.pad_w == pad && s.dilation_h == 1 && s.dilation_w == 1 && (out.height - 1) * 2 - pad + held <= in.height &&
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
      to[static_cast<std::ptrdiff_t>(oy) * out_shape.pitch() + x] =
          pool_edge(from, in_shape.pitch(), in_shape.height, in_shape.width, oy * s.stride_h - s.pad_h,
                    x * s.stride_w - s.pad_w, s, kind);
}

static float reduce_window(const float* plane, Planes shape, int y0, int y1, int x0, int x1, Pool kind) {
  const bool whole = x0 == 0 && x1 == shape.width;
  const float* p = plane + shape.origin() + static_cast<std::ptrdiff_t>(y0) * shape.pitch() + x0;
  if (kind == Pool::average) {
    double sum = 0.0;
    if (whole) {
      sum = sum_pieces(p, static_cast<std::ptrdiff_t>(y1 - y0 - 1) * shape.pitch() + shape.width,
                       [](V a, V v) { return a + v; });
    } else {
      for (int y = y0; y < y1; ++y, p += shape.pitch())
        for (int x = 0; x < x1 - x0; ++x) sum += p[x];
    }
    return static_cast<float>(sum / (static_cast<double>(y1 - y0) * (x1 - x0)));
  }
  float best = p[0];
  for (int y = y0; y < y1; ++y, p += shape.pitch())
    for (int x = 0; x < x1 - x0; ++x) best = p[x] > best ? p[x] : best;
  return best;
}

// out = value(offset in a, offset in b) for all values of a plane, a vector at a time, padding zero. Vectors run over
// the ends of rows: what they write there is the next row's, or is zeroed afterwards.
template <typename Value>
PENSTOCK_INLINE void fill_rows(Planes a, Planes b, Planes out, float* to, Value value) {
  const std::ptrdiff_t end = out.origin() + static_cast<std::ptrdiff_t>(out.height - 1) * out.pitch() + out.width;
  // Rows that lie alike are one line. In place every value must be read before it is written, so the last vector is
  // not one that begins early.
  const bool alike = a.halo == out.halo && b.halo == out.halo;
  const int rows = alike ? 1 : out.height;
  const std::ptrdiff_t width = alike ? end - out.origin() : out.width;
  std::ptrdiff_t from = a.origin(), from2 = b.origin(), at = out.origin();
  for (int y = 0; y < rows; ++y, from += a.pitch(), from2 += b.pitch(), at += out.pitch()) {
    std::ptrdiff_t x = 0;
    for (; x < width && at + x + kLanes <= end; x += kLanes) store(to + at + x, value(from + x, from2 + x));
    if (x < width) store_some(to + at + x, value(from + x, from2 + x), static_cast<int>(width - x));
  }
  zero_padding(to, out);
}

template <Function F>
PENSTOCK_INLINE void affine_with(const float* a, Planes a_shape, float scale, float shift, float slope, float* out,
                                 Planes out_shape) {
  const V times = splat(scale), plus = splat(shift);
  fill_rows(a_shape, a_shape, out_shape, out, [&](std::ptrdiff_t at, std::ptrdiff_t) __attribute__((always_inline)) {
    return evaluate(F, slope, load(a + at) * times + plus);
  });
}

template <Function F>
PENSTOCK_INLINE void add_with(const float* a, Planes a_shape, const float* b, Planes b_shape, float slope, float* out,
                              Planes out_shape) {
  fill_rows(a_shape, b_shape, out_shape, out,
            [&](std::ptrdiff_t at, std::ptrdiff_t at2) __attribute__((always_inline)) {
              return evaluate(F, slope, load(a + at) + load(b + at2));
            });
}

template <Function F>
PENSTOCK_INLINE void apply_with(const float* a, int n, float slope, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, evaluate(F, slope, load(a + i)));
  if (i < n) store_some(out + i, evaluate(F, slope, load_some(a + i, n - i)), n - i);
}

#define PENSTOCK_EACH_FUNCTION(f, CALL)                  \
  switch (f) {                                           \
    case Function::relu: CALL(Function::relu); break;    \
    case Function::relu6: CALL(Function::relu6); break;  \
    case Function::silu: CALL(Function::silu); break;    \
    case Function::gelu: CALL(Function::gelu); break;    \
    case Function::hardswish: CALL(Function::hardswish); break;     \
    case Function::leaky_relu: CALL(Function::leaky_relu); break;   \
    case Function::sigmoid: CALL(Function::sigmoid); break;         \
    case Function::hardsigmoid: CALL(Function::hardsigmoid); break; \
    case Function::tanh: CALL(Function::tanh); break;               \
    case Function::gelu_tanh: CALL(Function::gelu_tanh); break;     \
    default: CALL(Function::none); break;                           \
  }

static void affine(const float* a, Planes a_shape, float scale, float shift, Function f, float slope, float* out,
                   Planes out_shape) {
#define PENSTOCK_CALL(F) affine_with<F>(a, a_shape, scale, shift, slope, out, out_shape)
  PENSTOCK_EACH_FUNCTION(f, PENSTOCK_CALL)
#undef PENSTOCK_CALL
}

static void add(const float* a, Planes a_shape, const float* b, Planes b_shape, Function f, float slope, float* out,
                Planes out_shape) {
#define PENSTOCK_CALL(F) add_with<F>(a, a_shape, b, b_shape, slope, out, out_shape)
  PENSTOCK_EACH_FUNCTION(f, PENSTOCK_CALL)
#undef PENSTOCK_CALL
}

static void apply(const float* a, int n, Function f, float slope, float* out) {
#define PENSTOCK_CALL(F) apply_with<F>(a, n, slope, out)
  PENSTOCK_EACH_FUNCTION(f, PENSTOCK_CALL)
#undef PENSTOCK_CALL
}

static void channel_norm(const float* in, Planes in_shape, int count, const float* scale, const float* shift,
                         float eps, int y0, int y1, float* out, Planes out_shape) {
  const std::ptrdiff_t step = in_shape.stride(), out_step = out_shape.stride();
  const float share = 1.0f / static_cast<float>(count);
  for (int y = y0; y < y1; ++y) {
    const float* from = in + in_shape.origin() + static_cast<std::ptrdiff_t>(y) * in_shape.pitch();
    float* to = out + out_shape.origin() + static_cast<std::ptrdiff_t>(y) * out_shape.pitch();
    for (int x = 0; x < in_shape.width; x += kLanes) {
      const int n = in_shape.width - x < kLanes ? in_shape.width - x : kLanes;
      V sum = splat(0.0f);
      for (int c = 0; c < count; ++c) sum += load_some(from + c * step + x, n);
      const V mean = sum * splat(share);
      V squares = splat(0.0f);
      for (int c = 0; c < count; ++c) {
        const V v = load_some(from + c * step + x, n) - mean;
        squares += v * v;
      }
      V inverse = squares * splat(share) + splat(eps);
      for (int i = 0; i < kLanes; ++i) inverse[i] = 1.0f / __builtin_sqrtf(inverse[i]);
      for (int c = 0; c < count; ++c) {
        const V v = (load_some(from + c * step + x, n) - mean) * inverse;
        store_some(to + c * out_step + x, v * splat(scale[c]) + splat(shift[c]), n);
      }
    }
  }
}

static const OpKernels kTable = {all_finite, import_plane, export_plane, summarise, combine_rows, dot_blocks,
                                 count_at_least, pool, reduce_window, affine, add, apply, channel_norm};
