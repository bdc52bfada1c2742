// One value in, one value out; and the norm over channels.
namespace penstock {
namespace PENSTOCK_ISA {

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
    if (x < width) store_first(to + at + x, value(from + x, from2 + x), static_cast<int>(width - x));
  }
  zero_padding(to, out);
}

template <Function F>
PENSTOCK_INLINE void affine_with(const float* a, Planes a_shape, float scale, float shift, float slope, float* out,
                                 Planes out_shape) {
  const Vec times = splat(scale), plus = splat(shift);
  fill_rows(a_shape, a_shape, out_shape, out, [&](std::ptrdiff_t at, std::ptrdiff_t) __attribute__((always_inline)) {
    return evaluate(F, slope, load(a + at) * times + plus);
  });
}

template <Function F>
PENSTOCK_INLINE void add_with(const float* a, Planes a_shape, const float* b, Planes b_shape, float slope, float* out,
                              Planes out_shape) {
  fill_rows(a_shape, b_shape, out_shape, out, [&](std::ptrdiff_t at, std::ptrdiff_t at2) __attribute__((always_inline)) {
    return evaluate(F, slope, load(a + at) + load(b + at2));
  });
}

template <Function F>
PENSTOCK_INLINE void apply_with(const float* a, int n, float slope, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, evaluate(F, slope, load(a + i)));
  if (i < n) store_first(out + i, evaluate(F, slope, load_some(a + i, n - i)), n - i);
}

// Every function of the schema with a loop of its own.
#define PENSTOCK_CASE(name) \
  case Function::name: PENSTOCK_CALL(Function::name); break;
#define PENSTOCK_EACH_FUNCTION(f) \
  switch (f) { PENSTOCK_FUNCTIONS(PENSTOCK_CASE) }

static void affine(const float* a, Planes a_shape, float scale, float shift, Function f, float slope, float* out,
                   Planes out_shape) {
#define PENSTOCK_CALL(F) affine_with<F>(a, a_shape, scale, shift, slope, out, out_shape)
  PENSTOCK_EACH_FUNCTION(f)
#undef PENSTOCK_CALL
}

static void add(const float* a, Planes a_shape, const float* b, Planes b_shape, Function f, float slope, float* out,
                Planes out_shape) {
#define PENSTOCK_CALL(F) add_with<F>(a, a_shape, b, b_shape, slope, out, out_shape)
  PENSTOCK_EACH_FUNCTION(f)
#undef PENSTOCK_CALL
}

static void apply(const float* a, int n, Function f, float slope, float* out) {
#define PENSTOCK_CALL(F) apply_with<F>(a, n, slope, out)
  PENSTOCK_EACH_FUNCTION(f)
#undef PENSTOCK_CALL
}

#undef PENSTOCK_EACH_FUNCTION
#undef PENSTOCK_CASE

static void channel_norm(const float* in, Planes in_shape, int count, const float* scale, const float* shift, float eps, int y0,
                         int y1, float* out, Planes out_shape) {
  const std::ptrdiff_t step = in_shape.stride(), out_step = out_shape.stride();
  const float share = 1.0f / static_cast<float>(count);
  for (int y = y0; y < y1; ++y) {
    const float* from = in + in_shape.origin() + static_cast<std::ptrdiff_t>(y) * in_shape.pitch();
    float* to = out + out_shape.origin() + static_cast<std::ptrdiff_t>(y) * out_shape.pitch();
    for (int x = 0; x < in_shape.width; x += kLanes) {
      const int n = in_shape.width - x < kLanes ? in_shape.width - x : kLanes;
      Vec sum = splat(0.0f);
      for (int c = 0; c < count; ++c) sum += load_some(from + c * step + x, n);
      const Vec mean = sum * splat(share);
      Vec squares = splat(0.0f);
      for (int c = 0; c < count; ++c) {
        const Vec v = load_some(from + c * step + x, n) - mean;
        squares += v * v;
      }
      Vec inverse = squares * splat(share) + splat(eps);
      for (int i = 0; i < kLanes; ++i) inverse[i] = 1.0f / __builtin_sqrtf(inverse[i]);
      for (int c = 0; c < count; ++c) {
        const Vec v = (load_some(from + c * step + x, n) - mean) * inverse;
        store_first(to + c * out_step + x, v * splat(scale[c]) + splat(shift[c]), n);
      }
    }
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
