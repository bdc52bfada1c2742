// Images in and out, summaries of channels, and products with rows of weights.
namespace penstock {
namespace PENSTOCK_ISA {

// Bits of the lanes of v that are infinite or not a number.
PENSTOCK_INLINE Int not_finite(Vec v) { return equal((Int)v & 0x7f800000, Int{} + 0x7f800000); }

PENSTOCK_INLINE bool is_zero(Int bits) {
  std::int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= bits[i];
  return any == 0;
}

static bool all_finite(const float* values, std::ptrdiff_t n) {
  Int bad = Int{}, bad_too = Int{};
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
  Int bad = Int{};
  bool good = true;
  for (int y = 0; y < shape.height; ++y) {
    const float* from = image + static_cast<std::ptrdiff_t>(y) * shape.width;
    float* to = plane + shape.origin() + static_cast<std::ptrdiff_t>(y) * shape.pitch();
    int x = 0;
    for (; x + kLanes <= shape.width; x += kLanes) {
      const Vec v = load(from + x);
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
PENSTOCK_INLINE Vec fold(const float* p, std::ptrdiff_t n, Step step, Join join) {
  Vec a = splat(0.0f), b = a, c = a, d = a;
  std::ptrdiff_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = step(a, load(p + i));
    b = step(b, load(p + i + kLanes));
    c = step(c, load(p + i + 2 * kLanes));
    d = step(d, load(p + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a = step(a, load(p + i));
  if (i < n) {
    const Int lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    const Int mask = less(lanes, Int{} + static_cast<std::int32_t>(n - i));
    b = step(b, (Vec)((Int)load(p + i) & mask));
  }
  return join(join(a, b), join(c, d));
}

// Sums run over pieces of this many values, so that rounding stays small on large planes.
constexpr std::ptrdiff_t kPiece = 4096;

template <typename Step>
PENSTOCK_INLINE double sum_pieces(const float* p, std::ptrdiff_t n, Step step) {
  double sum = 0.0;
  for (std::ptrdiff_t i = 0; i < n; i += kPiece)
    sum += total(fold(p + i, n - i < kPiece ? n - i : kPiece, step, [](Vec a, Vec b) { return a + b; }));
  return sum;
}

static float summarise(const float* plane, Planes shape, Summary kind) {
  // Between the first and the last value lies nothing but values and zeros of the padding.
  const float* p = plane + shape.origin();
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(shape.height - 1) * shape.pitch() + shape.width;
  const double area = static_cast<double>(shape.height) * shape.width;
  switch (kind) {
    case Summary::l1: return static_cast<float>(sum_pieces(p, n, [](Vec a, Vec v) { return a + magnitude(v); }) / area);
    case Summary::l2: return static_cast<float>(__builtin_sqrt(sum_pieces(p, n, [](Vec a, Vec v) { return a + v * v; })) / area);
    case Summary::linf:
      return static_cast<float>(greatest_magnitude(fold(
                                    p, n, [](Vec a, Vec v) { return larger_magnitude(a, magnitude(v)); },
                                    [](Vec a, Vec b) { return larger_magnitude(a, b); })) /
                                area);
    default: {
      const double mean = sum_pieces(p, n, [](Vec a, Vec v) { return a + v; }) / area;
      const Vec centre = splat(static_cast<float>(mean));
      double squares = 0.0;
      for (int y = 0; y < shape.height; ++y) {
        const float* row = p + static_cast<std::ptrdiff_t>(y) * shape.pitch();
        Vec sum = splat(0.0f);
        int x = 0;
        for (; x + kLanes <= shape.width; x += kLanes) {
          const Vec v = load(row + x) - centre;
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

// Adds kRows rows, times `x` each, to the sums of outputs [begin, end); the first rows find no sums yet. Each sum adds row after row,
// whatever the width of a vector.
template <int kRows>
PENSTOCK_INLINE void add_rows(const float* x, const float* const* rows, bool first, int begin, int end, float* sums) {
  int o = begin;
#ifdef PENSTOCK_SIXTEEN_FLOATS
  // Two whole cache lines of every row at a time: so more of them are on their way from L3 or memory.
  Wide wide[kRows];
  for (int r = 0; r < kRows; ++r) wide[r] = Wide{} + x[r];
  for (; o + 2 * kWideLanes <= end; o += 2 * kWideLanes) {
    Wide low = first ? Wide{} : load_wide(sums + o), high = first ? Wide{} : load_wide(sums + o + kWideLanes);
    for (int r = 0; r < kRows; ++r) {
      low += wide[r] * load_wide(rows[r] + o);
      high += wide[r] * load_wide(rows[r] + o + kWideLanes);
    }
    store_wide(sums + o, low);
    store_wide(sums + o + kWideLanes, high);
  }
#endif
  Vec by[kRows];
  for (int r = 0; r < kRows; ++r) by[r] = splat(x[r]);
  for (; o + kLanes <= end; o += kLanes) {
    Vec sum = first ? splat(0.0f) : load(sums + o);
    for (int r = 0; r < kRows; ++r) sum += by[r] * load(rows[r] + o);
    store(sums + o, sum);
  }
  if (o == end) return;
  Vec sum = first ? splat(0.0f) : load_some(sums + o, end - o);
  for (int r = 0; r < kRows; ++r) sum += by[r] * load_some(rows[r] + o, end - o);
  store_first(sums + o, sum, end - o);
}

static void combine_rows(const float* x, const std::int32_t* list, int count, const float* rows, const float* bias, int begin,
                         int end, std::int64_t width, float* out) {
  // This many rows are read side by side: the prefetcher follows each, and more cache lines are on their way than from one row.
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

static void dot_blocks(const float* x, const std::int32_t* list, int count, int block, const float* weights, const float* bias,
                       int begin, int end, std::int64_t width, float* out) {
  for (int o = begin; o < end; ++o) {
    Vec sum = splat(0.0f), more = sum;
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
  Int hits = Int{};
  const Int limit = Int{} + static_cast<std::int32_t>(threshold);  // values are bits of floats >= 0: no sign bit
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Int v;
    __builtin_memcpy(&v, values + i, sizeof v);
    hits -= at_least(v, limit);
  }
  int count = 0;
  for (int lane = 0; lane < kLanes; ++lane) count += hits[lane];
  for (; i < n; ++i) count += values[i] >= threshold;
  return count;
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
