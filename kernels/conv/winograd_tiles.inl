// The two Winograd transforms, on vectors whose quads are tiles (points 0, 1, -1 and for m = 4 also 2, -2).
//
// Positions (r, j), r down and j across, lie in groups of 4: group j < 4 (m = 2) or j < 6 (m = 4) holds r = 0..3;
// for m = 4 group 6 + k holds (4, 2k), (5, 2k), (4, 2k + 1), (5, 2k + 1). So both transforms need one
// transposition of quads each, and every lane works.
//
// Two vectors of tiles ("a" and "b") are transformed together. For m = 4, a holds the first kQuads of 2 * kQuads
// neighbouring tiles; for m = 2 it holds the even ones, so that results come out as consecutive pixels.
#include "conv/prefetch.inl"

namespace penstock {
namespace PENSTOCK_ISA {

// Place j of a series `step` apart. Three base addresses reach nine places; nine offsets would not fit in registers.
struct Series {
  const std::ptrdiff_t step;
  float* const base[3];
};
PENSTOCK_INLINE Series series(float* first, std::ptrdiff_t step) { return {step, {first, first + 3 * step, first + 6 * step}}; }
PENSTOCK_INLINE float* place(const Series& s, int j) { return s.base[j / 3] + j % 3 * s.step; }

// Rows 0..3 of three columns become three columns of four rows (lane 3 of the rows is not used).
PENSTOCK_INLINE void columns_of(const Vec* rows, Vec (&columns)[3]) {
  const Vec lo01 = zip_lo(rows[0], rows[1]), lo23 = zip_lo(rows[2], rows[3]);
  columns[0] = join_lo(lo01, lo23);
  columns[1] = join_hi(lo01, lo23);
  columns[2] = join_lo(zip_hi(rows[0], rows[1]), zip_hi(rows[2], rows[3]));
}

struct Tile2 {
  static constexpr int kOut = 2, kIn = 4, kGroups = 4;

  PENSTOCK_INLINE void forward(const Vec (&d)[4], Vec (&v)[4]) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
  }

  PENSTOCK_INLINE void backward(const Vec (&m)[4], Vec (&y)[2]) {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] - m[3];
  }

  // Weights of kQuads outputs (rows w) for the input at offset `at` of each: groups `step` apart.
  PENSTOCK_INLINE void filter(const float* const* w, std::ptrdiff_t at, float* to, std::ptrdiff_t step) {
    const Vec g0 = load_quads(w, at), g1 = load_quads(w, at + 3), g2 = load_quads(w, at + 6);
    Vec down[4], c[3], u[4];
    filter_axis(g0, g1, g2, down);
    columns_of(down, c);
    filter_axis(c[0], c[1], c[2], u);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) store(to + j * step, u[j]);
  }

  PENSTOCK_INLINE void filter_axis(Vec a, Vec b, Vec c, Vec (&u)[4]) {
    const Vec half = splat(0.5f);
    const Vec even = half * (a + c);
    u[0] = a;
    u[1] = fma(half, b, even);
    u[2] = fnma(half, b, even);
    u[3] = c;
  }

  // The tiles' columns are quads of `columns`; results go to groups `step` apart, a first, then b.
  template <typename Columns>
  PENSTOCK_INLINE void across(const Columns& columns, float* to, std::ptrdiff_t step) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vec d[4], v[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) d[r] = columns.overlapping(half, r);
      transpose_quads(d[0], d[1], d[2], d[3]);
      forward(d, v);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) store(to + j * step + half * kLanes, v[j]);
    }
  }

  // Sums of one output at `from`, groups `step` apart, become rows of 2 * kQuads * kOut pixels: put(v, rows) takes
  // vector v of each row.
  template <typename Put>
  PENSTOCK_INLINE void back(const float* from, std::ptrdiff_t step, const Put& put) {
    Vec t[2][2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vec m[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) m[j] = load(from + j * step + half * kLanes);
      backward(m, t[half]);
    }
    const Vec a01 = zip_lo(t[0][0], t[0][1]), a23 = zip_hi(t[0][0], t[0][1]);
    const Vec b01 = zip_lo(t[1][0], t[1][1]), b23 = zip_hi(t[1][0], t[1][1]);
    const Vec r[4] = {join_lo(a01, b01), join_hi(a01, b01), join_lo(a23, b23), join_hi(a23, b23)};
    Vec y[2];
    backward(r, y);
    put(0, y);
  }
};

struct Tile4 {
  static constexpr int kOut = 4, kIn = 6, kGroups = 9;

  PENSTOCK_INLINE void forward(const Vec (&d)[6], Vec (&v)[6]) {
    const Vec two = splat(2.0f), four = splat(4.0f), five = splat(5.0f);
    const Vec even = fnma(four, d[2], d[4]), odd = fnma(four, d[1], d[3]);
    v[1] = even + odd;
    v[2] = even - odd;
    const Vec even2 = d[4] - d[2], odd2 = d[3] - d[1];
    v[3] = fma(two, odd2, even2);
    v[4] = fnma(two, odd2, even2);
    v[0] = fma(four, d[0], fnma(five, d[2], d[4]));
    v[5] = fma(four, d[1], fnma(five, d[3], d[5]));
  }

  PENSTOCK_INLINE void backward(const Vec (&m)[6], Vec (&y)[4]) {
    const Vec two = splat(2.0f), four = splat(4.0f), eight = splat(8.0f);
    const Vec s = m[1] + m[2], d = m[1] - m[2];
    const Vec p = m[3] + m[4], q = m[3] - m[4];
    y[0] = m[0] + s + p;
    y[1] = fma(two, q, d);
    y[2] = fma(four, p, s);
    y[3] = fma(eight, q, d) + m[5];
  }

  PENSTOCK_INLINE void filter_axis(Vec a, Vec b, Vec c, Vec (&u)[6]) {
    const Vec sixth = splat(-1.0f / 6), twelfth = splat(1.0f / 12);
    const Vec sum = a + c;
    u[0] = splat(0.25f) * a;
    u[1] = sixth * (sum + b);
    u[2] = sixth * (sum - b);
    const Vec even = fma(splat(1.0f / 24), a, splat(1.0f / 6) * c);
    u[3] = fma(twelfth, b, even);
    u[4] = fnma(twelfth, b, even);
    u[5] = c;
  }

  PENSTOCK_INLINE void filter(const float* const* w, std::ptrdiff_t at, float* to, std::ptrdiff_t step) {
    const Series out = series(to, step);
    const Vec g0 = load_quads(w, at), g1 = load_quads(w, at + 3), g2 = load_quads(w, at + 6);
    Vec down[6], c[3], u[6];
    filter_axis(g0, g1, g2, down);
    columns_of(down, c);
    filter_axis(c[0], c[1], c[2], u);
#pragma GCC unroll 6
    for (int j = 0; j < 6; ++j) store(place(out, j), u[j]);
    // Rows 4 and 5: lanes are (row 4, row 5) of an even and of an odd position across.
    static const float kAcross[3][3][4] = {
        {{0.25f, 0.25f, -1.0f / 6, -1.0f / 6}, {0, 0, -1.0f / 6, -1.0f / 6}, {0, 0, -1.0f / 6, -1.0f / 6}},
        {{-1.0f / 6, -1.0f / 6, 1.0f / 24, 1.0f / 24},
         {1.0f / 6, 1.0f / 6, 1.0f / 12, 1.0f / 12},
         {-1.0f / 6, -1.0f / 6, 1.0f / 6, 1.0f / 6}},
        {{1.0f / 24, 1.0f / 24, 0, 0}, {-1.0f / 12, -1.0f / 12, 0, 0}, {1.0f / 6, 1.0f / 6, 1, 1}}};
    const Vec lo = zip_lo(down[4], down[5]), hi = zip_hi(down[4], down[5]);
    const Vec x0 = join_lo(lo, lo), x1 = join_hi(lo, lo), x2 = join_lo(hi, hi);
#pragma GCC unroll 3
    for (int k = 0; k < 3; ++k) {
      Vec v = splat_quad(kAcross[k][0]) * x0;
      v = fma(splat_quad(kAcross[k][1]), x1, v);
      store(place(out, 6 + k), fma(splat_quad(kAcross[k][2]), x2, v));
    }
  }

  template <typename Columns>
  PENSTOCK_INLINE void across(const Columns& columns, float* to, std::ptrdiff_t step) {
    const Series out = series(to, step);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vec d[6], next[4], v[6];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        d[r] = columns.first(half, r);
        next[r] = columns.next(half, r);
      }
      transpose_quads(d[0], d[1], d[2], d[3]);
      const Vec next01 = zip_lo(next[0], next[1]), next23 = zip_lo(next[2], next[3]);
      d[4] = join_lo(next01, next23);
      d[5] = join_hi(next01, next23);
      forward(d, v);
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) {
        if (half == 0) fetch_to_write(place(out, j) + 2 * kLanes);
        store(place(out, j) + half * kLanes, v[j]);
      }
    }
    // Rows 4 and 5 of both halves share vectors.
    Vec d[6], v[6];
    {
      const Vec a4 = columns.first(0, 4), b4 = columns.first(1, 4), a5 = columns.first(0, 5), b5 = columns.first(1, 5);
      const Vec a = zip_lo(a4, a5), b = zip_lo(b4, b5);
      d[0] = join_lo(a, b);
      d[1] = join_hi(a, b);
      const Vec c = zip_hi(a4, a5), e = zip_hi(b4, b5);
      d[2] = join_lo(c, e);
      d[3] = join_hi(c, e);
    }
    {
      const Vec a = zip_lo(columns.next(0, 4), columns.next(0, 5)), b = zip_lo(columns.next(1, 4), columns.next(1, 5));
      d[4] = join_lo(a, b);
      d[5] = join_hi(a, b);
    }
    forward(d, v);
#pragma GCC unroll 3
    for (int k = 0; k < 3; ++k) {
      fetch_to_write(place(out, 6 + k) + 2 * kLanes);
      store(place(out, 6 + k), join_lo(v[2 * k], v[2 * k + 1]));
      store(place(out, 6 + k) + kLanes, join_hi(v[2 * k], v[2 * k + 1]));
    }
  }

  template <typename Put>
  PENSTOCK_INLINE void back(const float* from, std::ptrdiff_t step, const Put& put) {
    const Series in = series(const_cast<float*>(from), step);
    Vec z[4];
    {
      Vec m[6];
#pragma GCC unroll 3
      for (int k = 0; k < 3; ++k) {
        const Vec a = load(place(in, 6 + k)), b = load(place(in, 6 + k) + kLanes);
        m[2 * k] = join_lo(a, b);
        m[2 * k + 1] = join_hi(a, b);
      }
      backward(m, z);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vec m[6], t[4];
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) m[j] = load(place(in, j) + half * kLanes);
      backward(m, t);
      transpose_quads(t[0], t[1], t[2], t[3]);
      const Vec z01 = half == 0 ? zip_lo(z[0], z[1]) : zip_hi(z[0], z[1]);
      const Vec z23 = half == 0 ? zip_lo(z[2], z[3]) : zip_hi(z[2], z[3]);
      const Vec r[6] = {t[0], t[1], t[2], t[3], join_lo(z01, z23), join_hi(z01, z23)};
      Vec y[4];
      backward(r, y);
      put(half, y);
    }
  }
};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
