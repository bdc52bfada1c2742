// Convolutions by Winograd down the rows only: 3x3, and 3x3 and 7x7 of stride 2.
//
// Four output rows at a time. Their input rows become positions, where a column of the kernel is one product instead of
// three or seven; across, taps are offsets as in the direct kernel. So vectors run along pixels, any list of
// outputs is as fast as any other, and half the products are left, or fewer.
namespace penstock {
namespace PENSTOCK_ISA {

// 3x3: F(4, 3), as in Winograd's other direction.
struct Rows3 {
  static constexpr int kPositions = 6, kTaps = 3, kPhases = 1, kStride = 1, kReach = 2;
  static constexpr bool kManyInputs = false;
  static constexpr int phases(int) { return 1; }

  PENSTOCK_INLINE void forward(const Vec (&d)[6], Vec (&v)[6]) { Tile4::forward(d, v); }
  PENSTOCK_INLINE void backward(const Vec (&m)[6], Vec (&y)[kRowsOut]) { Tile4::backward(m, y); }
};

// 3x3 of stride 2: rows are taken in two phases, even and odd, of which four output rows need 5 and 4: F(4, 2) with the
// points 0, 1, -1, 2 and infinity. The odd phase has 1 tap, so that its last position is always zero and is left out.
// Columns are cut into even and odd ones.
struct Rows3By2 {
  static constexpr int kPositions = 5, kTaps = 3, kPhases = 2, kStride = 2, kReach = 1;
  static constexpr bool kManyInputs = true;
  static constexpr int phases(int position) { return position + 1 < kPositions ? 2 : 1; }

  // With M(x) = x (x^2 - 1)(x - 2), position a is M(x) / (x - a) applied to the rows, infinity is M(x).
  PENSTOCK_INLINE void forward(const Vec (&d)[5], Vec (&v)[5]) {
    const Vec two = splat(2.0f);
    v[3] = d[3] - d[1];
    v[0] = fma(two, d[0] - d[2], v[3]);
    v[1] = v[3] - d[1] - d[2];
    v[2] = fma(splat(3.0f), d[1] - d[2], v[3]);
    v[4] = fnma(two, v[3], d[4] - d[2]);
  }

  PENSTOCK_INLINE void backward(const Vec (&m)[5], Vec (&y)[kRowsOut]) {
    const Vec s = m[1] + m[2], d = m[1] - m[2];
    y[0] = m[0] + s + m[3];
    y[1] = fma(splat(2.0f), m[3], d);
    y[2] = fma(splat(4.0f), m[3], s);
    y[3] = fma(splat(8.0f), m[3], d) + m[4];
  }
};

// 7x7 of stride 2: rows are taken in two phases, even and odd, of which four output rows need 7 each: F(4, 4) with the
// points 1, -1, 2, -2, 1/2, -1/2 and infinity. The odd phase has 3 taps, so that its last position is always zero and
// is left out. Columns are cut into even and odd ones.
struct Rows7 {
  static constexpr int kPositions = 7, kTaps = 7, kPhases = 2, kStride = 2, kReach = 3;
  static constexpr bool kManyInputs = false;
  static constexpr int phases(int position) { return position + 1 < kPositions ? 2 : 1; }

  // With M(x) = (x^2 - 1)(x^2 - 4)(x^2 - 1/4), position a is M(x) / (x - a) applied to the rows, infinity is M(x). The
  // pair of points a, -a shares an even polynomial q of degree 4.
  PENSTOCK_INLINE void pair(const Vec (&d)[7], float q0, float q2, float point, Vec& plus, Vec& minus) {
    const Vec odd = fma(splat(q0), d[1], fma(splat(q2), d[3], d[5]));
    const Vec even = splat(point) * fma(splat(q0), d[0], fma(splat(q2), d[2], d[4]));
    plus = odd + even;
    minus = odd - even;
  }

  PENSTOCK_INLINE void forward(const Vec (&d)[7], Vec (&v)[7]) {
    pair(d, 1.0f, -4.25f, 1.0f, v[0], v[1]);   // (x^2 - 4)(x^2 - 1/4)
    pair(d, 0.25f, -1.25f, 2.0f, v[2], v[3]);  // (x^2 - 1)(x^2 - 1/4)
    pair(d, 4.0f, -5.0f, 0.5f, v[4], v[5]);    // (x^2 - 1)(x^2 - 4)
    v[6] = fma(splat(5.25f), d[2] - d[4], d[6] - d[0]);
  }

  PENSTOCK_INLINE void backward(const Vec (&m)[7], Vec (&y)[kRowsOut]) {
    const Vec s1 = m[0] + m[1], s2 = m[2] + m[3], s3 = m[4] + m[5];
    const Vec d1 = m[0] - m[1], d2 = m[2] - m[3], d3 = m[4] - m[5];
    y[0] = s1 + s2 + s3;
    y[1] = fma(splat(2.0f), d2, fma(splat(0.5f), d3, d1));
    y[2] = fma(splat(4.0f), s2, fma(splat(0.25f), s3, s1));
    y[3] = fma(splat(8.0f), d2, fma(splat(0.125f), d3, d1)) + m[6];
  }
};

// Transformed rows: [slot][phase][position][column phase][pitch], or with many inputs, of which a position is read in one
// run, [position][slot][phase][column phase][pitch].
template <typename Rows>
PENSTOCK_INLINE std::ptrdiff_t rows_at(const RowsArgs& a, int slot, int phase, int position) {
  const std::ptrdiff_t slots = Rows::kManyInputs ? static_cast<std::ptrdiff_t>(position) * a.in_count + slot : slot;
  const std::ptrdiff_t phases = slots * Rows::kPhases + phase;
  return (Rows::kManyInputs ? phases : phases * Rows::kPositions + position) * Rows::kStride * a.rows_pitch;
}

// `side` is the tile row's vector, when several are side by side.
template <typename Rows>
static void transform_rows(const RowsArgs& a, int tile_y, int side, int slot) {
  const float* plane = a.input + slot * a.in_stride + a.in_origin;
  // Vectors of bare rows that reach into a margin, those before `inner` and from `outer` on, are read from copies of the rows' ends.
  constexpr int kSpan = Rows::kStride * kLanes;
  const int steps = (a.out.width + Rows::kReach + kLanes - 1) / kLanes;
  const int inner = a.copies ? (a.pad_w + kSpan - 1) / kSpan : 0;
  const int reach = (a.in_pitch + a.pad_w) / kSpan;  // vectors that do not reach over the right end
  const int outer = !a.copies ? steps : reach > inner ? reach : inner;
  const int head = inner * kSpan < a.in_pitch ? inner * kSpan : a.in_pitch;
  const int tail = outer * kSpan - a.pad_w < a.in_pitch ? outer * kSpan - a.pad_w : a.in_pitch;
  for (int phase = 0; phase < Rows::kPhases; ++phase) {
    const float *row[Rows::kPositions], *ends[Rows::kPositions];
    for (int r = 0; r < Rows::kPositions; ++r) {
      const int y = (tile_y * kRowsOut + r) * Rows::kStride + phase - a.pad_h;
      if (y < 0 || y >= a.height) {
        row[r] = ends[r] = a.zero_row;
        continue;
      }
      const float* const from = plane + static_cast<std::ptrdiff_t>(y) * a.in_pitch;
      row[r] = from - a.pad_w;
      if (a.copies) {
        float* const copy = a.copies + r * a.copies_pitch;
        std::memcpy(copy + a.pad_w, from, head * sizeof(float));
        std::memcpy(copy + a.pad_w + tail, from + tail, (a.in_pitch - tail) * sizeof(float));
        ends[r] = copy;
      }
    }
    float* to = a.rows + rows_at<Rows>(a, slot, phase, 0) + side * kLanes;
    const std::ptrdiff_t step = rows_at<Rows>(a, 0, 0, 1);
    for (int step_x = 0; step_x < steps; ++step_x) {
      const int x = step_x * kLanes;
      const float* const* const from = step_x >= inner && step_x < outer ? row : ends;
      for (int odd = 0; odd < Rows::kStride; ++odd) {
        Vec d[Rows::kPositions], v[Rows::kPositions];
#pragma GCC unroll 7
        for (int r = 0; r < Rows::kPositions; ++r) {
          d[r] = Rows::kStride == 2 ? load_even(from[r] + 2 * x + odd) : load(from[r] + x);
        }
        Rows::forward(d, v);
#pragma GCC unroll 7
        for (int r = 0; r < Rows::kPositions; ++r) store(to + r * step + odd * a.rows_pitch + x, v[r]);
      }
    }
  }
}

// One position of O outputs and V vectors of pixels, over all inputs.
template <typename Rows, int O, int V>
PENSTOCK_INLINE void multiply_position(const RowsArgs& a, const float* const* weights, int position, int x, float* sums) {
  Vec acc[O][V];
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[o][v] = zero();
  }
  const float* w[O];
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
    w[o] = weights[o] + static_cast<std::ptrdiff_t>(position) * a.in_channels * Rows::kPhases * Rows::kTaps;
  }
  const int phases = Rows::phases(position);
  for (int slot = 0; slot < a.in_count; ++slot) {
    for (int phase = 0; phase < phases; ++phase) {
      const float* even = a.rows + rows_at<Rows>(a, slot, phase, position) + x;
      const float* odd = even + a.rows_pitch;
      const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(a.in_list[slot]) * Rows::kPhases + phase) * Rows::kTaps;
#pragma GCC unroll 7
      for (int tap = 0; tap < Rows::kTaps; ++tap) {
        const float* pixels = Rows::kStride == 1 ? even + tap : (tap % 2 ? odd : even) + tap / 2;
        accumulate<O, V>(acc, pixels, w, at + tap);
      }
    }
  }
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + (o * V + v) * kLanes, acc[o][v]);
  }
}

// Sums of all positions: [position][output][vector].
template <typename Rows, int O, int V>
static void multiply_positions(const RowsArgs& a, const float* const* weights, int x, float* sums) {
#pragma GCC unroll 1
  for (int k = 0; k < Rows::kPositions; ++k) multiply_position<Rows, O, V>(a, weights, k, x, sums + k * O * V * kLanes);
}

// Transforms the sums of `outs` outputs x `vectors` vectors back and stores their pixels. One function for every size of the
// register tile: the sums are in memory by now.
template <typename Rows, int kBeside>
__attribute__((noinline)) static void store_rows(const RowsArgs& a, const float* sums, int outs, int vectors, int plane, int tile_y,
                                                 int x) {
  const ConvOutput out = a.out;  // a copy, which stores of vectors cannot change
  const std::ptrdiff_t next = kBeside > 1 ? static_cast<std::ptrdiff_t>(kRowsOut) * out.pitch : kLanes;
  const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(outs) * vectors * kLanes;
  for (int o = 0; o < outs; ++o) {
    const Finish f = finish_of(out, plane + o);
    float* to = out.planes + (plane + o) * out.stride + out.origin + static_cast<std::ptrdiff_t>(tile_y) * kRowsOut * out.pitch + x;
    for (int v = 0; v < vectors; ++v, to += next, sums += kLanes) {
      Vec m[Rows::kPositions], y[kRowsOut];
#pragma GCC unroll 7
      for (int k = 0; k < Rows::kPositions; ++k) m[k] = load(sums + k * step);
      Rows::backward(m, y);
      const int run = kBeside > 1 ? out.width : out.width - x - v * kLanes;
      const int height = out.height - (kBeside > 1 ? tile_y + v : tile_y) * kRowsOut;
      if (run >= kLanes && height >= kRowsOut && out.activation < 0) {
        // Nearly every vector, and no call inside.
#pragma GCC unroll 4
        for (int i = 0; i < kRowsOut; ++i) {
          store(to + i * static_cast<std::ptrdiff_t>(out.pitch), finish_clamped(y[i], f, out));
        }
        continue;
      }
      for (int i = 0; i < kRowsOut && i < height && run > 0; ++i) {
        store_first(to + i * static_cast<std::ptrdiff_t>(out.pitch), finish(y[i], f, out), run);
      }
    }
  }
}

using RowsFunction = void (*)(const RowsArgs&, const float* const*, int, float*);

constexpr int kRowsVectors = kRegisters == 32 ? 3 : 5;  // of a strip, at most

// Vectors whose sums, with what they are made of, fit in registers.
constexpr int rows_vectors(int outs) {
  const int fit = (kRegisters - 1) / (outs + 1);
  return fit < kRowsVectors ? fit : kRowsVectors;
}

// Tile rows side by side are a vector each, so that there is no other number of them.
template <typename Rows, int kBeside>
struct PickRows {
  template <int kOuts, int kVectors>
  static constexpr RowsFunction of() {
    if constexpr (kVectors <= rows_vectors(kOuts) && (kBeside == 1 || kVectors == kBeside))
      return multiply_positions<Rows, kOuts, kVectors>;
    return nullptr;
  }
};

template <typename Rows, int kBeside>
static RowsFunction rows_function(int outs, int vectors) {
  return pick_function<PickRows<Rows, kBeside>, kRowsVectors>(outs, vectors);
}

// Units are tile rows, or as many as lie side by side; each computes all outputs.
template <typename Rows, int kBeside>
static void run_rows_beside(const RowsArgs& a, int unit_begin, int unit_end) {
  const int panels = (a.out.count + kPanel - 1) / kPanel;
  float sums[Rows::kPositions * kRegisters * kLanes];  // of a register tile
  // Copies of rows have their margins from here on.
  if (a.copies) clear(a.copies, Rows::kPositions * a.copies_pitch);
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    const int tile_y = unit * kBeside;
    for (int slot = 0; slot < a.in_count; ++slot) {
      for (int side = 0; side < kBeside; ++side) transform_rows<Rows>(a, tile_y + side, side, slot);
    }
    for (int panel = 0; panel < panels; ++panel) {
      const int first = panel * a.out.count / panels, outs = (panel + 1) * a.out.count / panels - first;
      const float* weights[kPanel];
      for (int o = 0; o < outs; ++o) {
        weights[o] = a.weights + static_cast<std::ptrdiff_t>(a.out.list[first + o]) * Rows::kPositions * a.in_channels *
                                     Rows::kPhases * Rows::kTaps;
      }
      const int widest = rows_vectors(outs);
      int vectors = widest;
      for (int x = 0; x < a.out.width; x += vectors * kLanes) {
        const int left = (a.out.width - x + kLanes - 1) / kLanes * kBeside;
        // Two near-equal last strips beat a full one and a sliver.
        vectors = left <= widest ? left : left < 2 * widest ? (left + 1) / 2 : widest;
        fetch_next_strip(a.out, first, outs, tile_y, x + vectors * kLanes);
        rows_function<Rows, kBeside>(outs, vectors)(a, weights, x, sums);
        store_rows<Rows, kBeside>(a, sums, outs, vectors, first, tile_y, x);
      }
    }
    const int begin = tile_y * kRowsOut, most = begin + kBeside * kRowsOut;
    const int end = most < a.out.height ? most : a.out.height;
    for (int o = 0; o < a.out.count; ++o) zero_padding(a.out, o, begin, end, true);
  }
}

// Only rows with many inputs are planned side by side (beside_fits).
template <typename Rows>
static void run_rows(const RowsArgs& a, int unit_begin, int unit_end) {
  if constexpr (Rows::kManyInputs) {
    if (a.beside == 2) return run_rows_beside<Rows, 2>(a, unit_begin, unit_end);
  }
  run_rows_beside<Rows, 1>(a, unit_begin, unit_end);
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
