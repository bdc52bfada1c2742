// A 7x7 convolution of stride 2 over few inputs (the first layer of most ResNets), by Winograd down the rows only.
//
// Rows of a channel are taken in two phases, even and odd. Four output rows need 7 rows of either phase, which become 7
// positions (points 1, -1, 2, -2, 1/2, -1/2, infinity): F(4, 4), half the products of the direct way. The odd phase
// has 3 taps, so that its last position is always zero and is left out. Across, columns are cut into even and
// odd ones, and taps are offsets as in the direct kernel. So vectors run along pixels, and any list of outputs is as
// fast as any other.
namespace penstock {
namespace PENSTOCK_ISA {

// Transformed rows of one slot: [phase][position][even or odd columns][pitch].
PENSTOCK_INLINE std::ptrdiff_t rows_at(const RowsArgs& a, int slot, int phase, int position) {
  return ((static_cast<std::ptrdiff_t>(slot) * 2 + phase) * kRowsPositions + position) * 2 * a.rows_pitch;
}

// Downwards: with M(x) = (x^2 - 1)(x^2 - 4)(x^2 - 1/4), position a is M(x) / (x - a) applied to the rows, infinity M(x).
// The pair of points a, -a shares an even polynomial q of degree 4.
PENSTOCK_INLINE void transform_pair(const Vec* d, float q0, float q2, float point, Vec& plus, Vec& minus) {
  const Vec odd = fma(splat(q0), d[1], fma(splat(q2), d[3], d[5]));
  const Vec even = splat(point) * fma(splat(q0), d[0], fma(splat(q2), d[2], d[4]));
  plus = odd + even;
  minus = odd - even;
}

static void transform_rows(const RowsArgs& a, int tile_y, int slot) {
  const float* plane = a.input + slot * a.in_stride + a.in_origin - a.pad_w;
  for (int phase = 0; phase < 2; ++phase) {
    const float* row[kRowsPositions];
    for (int r = 0; r < kRowsPositions; ++r) {
      const int y = (tile_y * kRowsOut + r) * 2 + phase - a.pad_h;
      row[r] = y < 0 || y >= a.height ? a.zero_row : plane + static_cast<std::ptrdiff_t>(y) * a.in_pitch;
    }
    float* to = a.rows + rows_at(a, slot, phase, 0);
    const std::ptrdiff_t step = 2 * a.rows_pitch;
    for (int x = 0; x < a.out.width + 3; x += kLanes) {
      for (int odd = 0; odd < 2; ++odd) {
        Vec d[kRowsPositions], v[kRowsPositions];
#pragma GCC unroll 7
        for (int r = 0; r < kRowsPositions; ++r) d[r] = load_even(row[r] + 2 * x + odd);
        transform_pair(d, 1.0f, -4.25f, 1.0f, v[0], v[1]);   // (x^2 - 4)(x^2 - 1/4)
        transform_pair(d, 0.25f, -1.25f, 2.0f, v[2], v[3]);  // (x^2 - 1)(x^2 - 1/4)
        transform_pair(d, 4.0f, -5.0f, 0.5f, v[4], v[5]);    // (x^2 - 1)(x^2 - 4)
        v[6] = fma(splat(5.25f), d[2] - d[4], d[6] - d[0]);
#pragma GCC unroll 7
        for (int r = 0; r < kRowsPositions; ++r) store(to + r * step + odd * a.rows_pitch + x, v[r]);
      }
    }
  }
}

// One position of O outputs and V vectors of pixels, over all inputs.
template <int O, int V>
PENSTOCK_INLINE void multiply_position(const RowsArgs& a, const float* const* weights, int position, int x, float* sums) {
  Vec acc[O][V];
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[o][v] = zero();
  }
  const float* w[O];
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) w[o] = weights[o] + static_cast<std::ptrdiff_t>(position) * a.in_channels * 2 * 7;
  const int phases = position + 1 < kRowsPositions ? 2 : 1;
  for (int slot = 0; slot < a.in_count; ++slot) {
    for (int phase = 0; phase < phases; ++phase) {
      const float* even = a.rows + rows_at(a, slot, phase, position) + x;
      const float* odd = even + a.rows_pitch;
      const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(a.in_list[slot]) * 2 + phase) * 7;
#pragma GCC unroll 7
      for (int tap = 0; tap < 7; ++tap) accumulate<O, V>(acc, (tap % 2 ? odd : even) + tap / 2, w, at + tap);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + (o * V + v) * kLanes, acc[o][v]);
  }
}

// Outputs [plane, plane + O) at pixels [x, x + V vectors) of one tile row.
template <int O, int V>
static void rows_tile(const RowsArgs& a, const float* const* weights, int plane, int tile_y, int x) {
  constexpr int kStep = O * V * kLanes;
  float sums[kRowsPositions * kStep];
  for (int k = 0; k < kRowsPositions; ++k) multiply_position<O, V>(a, weights, k, x, sums + k * kStep);
  const int height = a.out.height - tile_y * kRowsOut;
  for (int o = 0; o < O; ++o) {
    const Finish f = finish_of(a.out, plane + o);
    float* to = a.out.planes + (plane + o) * a.out.stride + a.out.origin +
                static_cast<std::ptrdiff_t>(tile_y) * kRowsOut * a.out.pitch + x;
    for (int v = 0; v < V; ++v) {
      const float* m = sums + (o * V + v) * kLanes;
      const Vec p1 = load(m), n1 = load(m + kStep), p2 = load(m + 2 * kStep), n2 = load(m + 3 * kStep);
      const Vec p3 = load(m + 4 * kStep), n3 = load(m + 5 * kStep), last = load(m + 6 * kStep);
      const Vec s1 = p1 + n1, s2 = p2 + n2, s3 = p3 + n3, d1 = p1 - n1, d2 = p2 - n2, d3 = p3 - n3;
      const Vec y[kRowsOut] = {s1 + s2 + s3, fma(splat(2.0f), d2, fma(splat(0.5f), d3, d1)),
                               fma(splat(4.0f), s2, fma(splat(0.25f), s3, s1)),
                               fma(splat(8.0f), d2, fma(splat(0.125f), d3, d1)) + last};
      const int run = a.out.width - x - v * kLanes;
      if (run >= kLanes && height >= kRowsOut && a.out.activation < 0) {
#pragma GCC unroll 4
        for (int i = 0; i < kRowsOut; ++i) {
          store(to + i * static_cast<std::ptrdiff_t>(a.out.pitch) + v * kLanes, finish_clamped(y[i], f, a.out));
        }
        continue;
      }
      for (int i = 0; i < kRowsOut && i < height && run > 0; ++i) {
        store_first(to + i * static_cast<std::ptrdiff_t>(a.out.pitch) + v * kLanes, finish(y[i], f, a.out), run);
      }
    }
  }
}

using RowsFunction = void (*)(const RowsArgs&, const float* const*, int, int, int);

// Units are tile rows; each computes all outputs.
static void run_rows(const RowsArgs& a, int unit_begin, int unit_end) {
  // By number of outputs, as many vectors as registers hold.
  static constexpr RowsFunction kTable[kDirectPanel] = {rows_tile<1, 5>, rows_tile<2, 5>, rows_tile<3, 3>,
                                                        rows_tile<4, 3>, rows_tile<5, 2>, rows_tile<6, 2>};
  const int panels = (a.out.count + kDirectPanel - 1) / kDirectPanel;
  for (int tile_y = unit_begin; tile_y < unit_end; ++tile_y) {
    for (int slot = 0; slot < a.in_count; ++slot) transform_rows(a, tile_y, slot);
    for (int panel = 0; panel < panels; ++panel) {
      const int first = panel * a.out.count / panels, outs = (panel + 1) * a.out.count / panels - first;
      const float* weights[kDirectPanel];
      for (int o = 0; o < outs; ++o) {
        weights[o] = a.weights + static_cast<std::ptrdiff_t>(a.out.list[first + o]) * a.in_channels * kRowsPositions * 2 * 7;
      }
      const int vectors = kTileVectors[outs] < 5 ? kTileVectors[outs] : 5;
      for (int x = 0; x < a.out.width; x += vectors * kLanes) kTable[outs - 1](a, weights, first, tile_y, x);
    }
    const int begin = tile_y * kRowsOut, end = begin + kRowsOut < a.out.height ? begin + kRowsOut : a.out.height;
    for (int o = 0; o < a.out.count; ++o) zero_padding(a.out, o, begin, end, true);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
