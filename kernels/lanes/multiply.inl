// Outputs in the lanes: a register tile of up to 3 vectors of outputs x up to 14 pixels, with each pixel's input broadcast.
namespace penstock {
namespace PENSTOCK_ISA {

// Weights of a chunk of inputs and taps stay in L1 while a group of pixels passes: this many floats at most, and at most
// this many pixels.
constexpr int kChunkFloats = 4096, kGroupPixels = 96;

// Pixels of a register tile with so many vectors of outputs.
constexpr int lanes_pixels(int vectors) { return kRegisters == 32 ? (vectors == 3 ? 9 : 14) : (vectors == 3 ? 4 : 6); }
constexpr int kLanesPixels = lanes_pixels(1);
constexpr int kBeat = 8;

struct LanesTile {
  const float* input;
  std::ptrdiff_t step;
  const ptrdiff_t* places;  // from the input, of each row of weights
  int rows;
  const float* weights;
  const float *gain, *offset;
  Vec low, high;
  float* to[kLanesPixels];
  float* sums;
  int last;  // lanes of the last vector
  // Sums of the chunks before and after this one, [pixel][vector]; `begins` and `ends` say that there are none.
  float* partial;
  bool begins, ends;
  // Cache lines that are fetched for later, so many after every kBeat inputs.
  const float* const* lines;
  int line_count, beat_lines;
};

// The activations that are more than a clamp. They are applied afterwards to what has been stored, because the register tile leaves
// no registers for them.
PENSTOCK_INLINE Vec silu(Vec x) {
  // x / (1 + 2^t), 2^t to 1e-7. Between these bounds the reciprocal is a normal number; what they leave out is below 1e-32.
  const Vec t = min(splat(115.0f), max(splat(-126.0f), x * splat(-1.44269504f)));
  const Vec n = round(t), r = t - n;
  Vec p = splat(1.32647e-3f);
  p = fma(p, r, splat(9.67151e-3f));
  p = fma(p, r, splat(5.550734e-2f));
  p = fma(p, r, splat(0.24022242f));
  p = fma(p, r, splat(0.69314698f));
  p = fma(p, r, splat(1.0f));
  return x * reciprocal(fma(p, exp2_whole(n), splat(1.0f)));
}
PENSTOCK_INLINE Vec hardswish(Vec x) { return x * min(splat(6.0f), max(zero(), x + splat(3.0f))) * splat(1.0f / 6.0f); }

// Not lambdas: those without captures come with a function that is compiled for any machine.
struct Silu {
  Vec operator()(Vec x) const { return silu(x); }
};
struct Hardswish {
  Vec operator()(Vec x) const { return hardswish(x); }
};
struct OtherCurve {
  int activation;
  float slope;
  Vec operator()(Vec x) const { return activate_curve(x, activation, slope); }
};

PENSTOCK_INLINE void store_lanes_of(float* to, Vec value, int lanes) {
  if (lanes == kLanes) {
    store(to, value);
  } else {
    store_first(to, value, lanes);
  }
}

// One vector of `count` pixels becomes f(x); `sums` gets the magnitudes.
template <typename F>
PENSTOCK_INLINE void bend_vectors(float* const* to, int count, int v, int lanes, float* sums, F f) {
  Vec sum = sums ? load(sums) : zero();
  for (int p = 0; p < count; ++p) {
    const Vec value = f(load(to[p] + v * kLanes));
    store_lanes_of(to[p] + v * kLanes, value, lanes);
    sum = sum + abs(value);
  }
  if (sums) store(sums, sum);
}

static void bend(float* const* to, int count, int v, int lanes, int activation, float slope, float* sums) {
  switch (static_cast<Activation>(activation)) {
    case Activation::silu: return bend_vectors(to, count, v, lanes, sums, Silu{});
    case Activation::hardswish: return bend_vectors(to, count, v, lanes, sums, Hardswish{});
    default: return bend_vectors(to, count, v, lanes, sums, OtherCurve{activation, slope});
  }
}

template <int V, int P>
static void lanes_tile(const LanesTile& t) {
  Vec acc[P][V];
  if (t.begins) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[p][v] = zero();
    }
  } else {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[p][v] = load(t.partial + (p * V + v) * kLanes);
    }
  }
  // A few bases and one step reach all pixels without a register for each.
  constexpr int kFew = 5, kBases = (P + kFew - 1) / kFew;
  const float* weights = t.weights;
  const std::ptrdiff_t step = t.step;
  const float* const* line = t.lines;
  const float* const* const last_line = line + t.line_count;
  const float* const input = t.input;
  const std::ptrdiff_t* place = t.places;
  // One loop over taps and inputs: in groups of few channels the branch predictor would miss the end of a loop for each tap.
  for (int left = t.rows; left > 0; left -= kBeat) {
    for (int n = t.beat_lines; n > 0 && line < last_line; --n) fetch_far(*line++);
#pragma GCC unroll 1
    for (int i = left < kBeat ? left : kBeat; i > 0; --i, weights += V * kLanes, ++place) {
      const float* bases[kBases];
#pragma GCC unroll 4
      for (int b = 0; b < kBases; ++b) bases[b] = input + *place + b * kFew * step;
      Vec w[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) w[v] = load(weights + v * kLanes);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        const Vec x = splat(bases[p / kFew][p % kFew * step]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[p][v] = fma(w[v], x, acc[p][v]);
      }
    }
  }
  if (!t.ends) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) store(t.partial + (p * V + v) * kLanes, acc[p][v]);
    }
    return;
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const Vec gain = load(t.gain + v * kLanes), offset = load(t.offset + v * kLanes);
    const int lanes = v + 1 < V ? kLanes : t.last;
    Vec sum = zero();
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const Vec value = clamp(fma(acc[p][v], gain, offset), t.low, t.high);
      store_lanes_of(t.to[p] + v * kLanes, value, lanes);
      sum = sum + abs(value);
    }
    if (t.sums) store(t.sums + v * kLanes, load(t.sums + v * kLanes) + sum);
  }
}

using LanesFunction = void (*)(const LanesTile&);

template <int V, int... kPixels>
PENSTOCK_INLINE LanesFunction pick_tile(int pixels, std::integer_sequence<int, kPixels...>) {
  static constexpr LanesFunction kTable[] = {lanes_tile<V, kPixels + 1>...};
  return kTable[pixels - 1];
}

static LanesFunction tile_function(int vectors, int pixels) {
  switch (vectors) {
    case 1: return pick_tile<1>(pixels, std::make_integer_sequence<int, lanes_pixels(1)>());
    case 2: return pick_tile<2>(pixels, std::make_integer_sequence<int, lanes_pixels(2)>());
    default: return pick_tile<3>(pixels, std::make_integer_sequence<int, lanes_pixels(3)>());
  }
}

// Pixels that follow each other, cut into register tiles of about the same size. Where a row of a flat map ends, the next one begins.
struct LanesStrip {
  int first, y;       // the first pixel, counted from the beginning of row y
  const float* from;  // under the first
  int pixels, tiles;
  int begin_of(int tile) const { return pixels * tile / tiles; }
};

// Chunks of a panel's rows of weights, of about the same size.
static int chunks_of(int vectors, int rows) {
  const int most = kChunkFloats / (vectors * kLanes);
  return rows > most ? (rows + most - 1) / most : 1;
}

// Tiles [begin, end) of a strip, kGroupPixels at most.
static void multiply_group(const LanesArgs& a, const LanesPanel& panel, LanesTile t, const float* weights, int chunks,
                           const LanesStrip& strip, int begin, int end, LanesAhead& ahead, float* sums) {
  const LanesOutput& out = a.out;
  const bool curved = out.activation >= 0;
  const std::ptrdiff_t wide = std::ptrdiff_t{panel.vectors} * kLanes;
  float* const to = out.pixels + panel.first;
  alignas(64) float partial[kGroupPixels * kLanesVectors * kLanes];
  const int rows = t.rows, start = strip.begin_of(begin);
  const std::ptrdiff_t* const places = t.places;
  for (int c = 0; c < chunks; ++c) {
    const int row = static_cast<int>(std::int64_t{rows} * c / chunks);
    t.begins = c == 0;
    t.ends = c + 1 == chunks;
    t.places = places + row;
    t.rows = static_cast<int>(std::int64_t{rows} * (c + 1) / chunks) - row;
    t.weights = weights + row * wide;
    const int x = (strip.first + start) % out.width, y = strip.y + (strip.first + start) / out.width;
    float* pixel = to + y * out.row + x * out.pixel;
    int left = out.width - x;  // of this row
    for (int n = begin, first = start, next; n < end; ++n, first = next) {
      next = strip.begin_of(n + 1);
      const int pixels = next - first;
      for (int p = 0; t.ends && p < pixels; ++p, pixel += out.pixel) {
        t.to[p] = pixel;
        if (--left == 0) {
          left = out.width;
          pixel += out.row - out.width * out.pixel;
        }
      }
      t.input = strip.from + first * a.step;
      t.partial = partial + (first - start) * wide;
      t.line_count = ahead.fill();
      t.lines = ahead.lines();
      const int beats = (t.rows + kBeat - 1) / kBeat;
      t.beat_lines = beats > 0 ? (t.line_count + beats - 1) / beats : 0;
      tile_function(panel.vectors, pixels)(t);
      for (int v = 0; t.ends && curved && v < panel.vectors; ++v)
        bend(t.to, pixels, v, v + 1 < panel.vectors ? kLanes : t.last, out.activation, out.slope,
             sums ? sums + v * kLanes : nullptr);
    }
  }
}

static void multiply_panel(const LanesArgs& a, const LanesPanel& panel, const float* weights, int begin, int end, float* sums) {
  const LanesOutput& out = a.out;
  LanesTile t;
  t.step = a.step;
  t.places = a.places + static_cast<std::ptrdiff_t>(panel.in_first) * a.taps;
  t.rows = a.taps * panel.in_count;
  t.gain = out.gain + panel.vector * kLanes;
  t.offset = out.offset + panel.vector * kLanes;
  t.low = splat(out.low);
  t.high = splat(out.high);
  t.sums = out.activation >= 0 ? nullptr : sums;
  t.last = a.whole ? kLanes : panel.outs - (panel.vectors - 1) * kLanes;
  const float* const input = a.planes ? a.input : a.input + panel.in_first;
  const int chunks = chunks_of(panel.vectors, t.rows);
  const int most = lanes_pixels(panel.vectors), together = kGroupPixels / most;
  const auto run = [&](const LanesStrip& strip, LanesAhead& ahead) {
    const int groups = (strip.tiles + together - 1) / together;
    for (int g = 0; g < groups; ++g)
      multiply_group(a, panel, t, weights, chunks, strip, strip.tiles * g / groups, strip.tiles * (g + 1) / groups, ahead, sums);
  };
  if (a.flat) {
    const LanesStrip strip = {begin, 0, input + begin * a.step, end - begin, (end - begin + most - 1) / most};
    LanesAhead ahead(a.next, a.later, strip.tiles * chunks);
    return run(strip, ahead);
  }
  const int tiles = (out.width + most - 1) / most, steps = tiles * chunks;
  LanesAhead weights_ahead(a.next, a.later, (end - begin) * steps);
  for (int y = begin; y < end; ++y) {
    const LanesStrip strip = {0, y, input + y * a.row, out.width, tiles};
    if (a.fetch_rows && panel.first == 0 && t.rows > 0) {
      // What the next row of outputs reads, and this one does not, lies after this row's last window.
      const float* const behind = a.input + y * a.row + t.places[t.rows - 1] + out.width * a.step;
      LanesFetch rows{};
      rows.from = behind;
      rows.rows = static_cast<int>(a.row / kLineFloats);
      LanesAhead rows_ahead(rows, LaterRows{}, steps);
      run(strip, rows_ahead);
    } else {
      run(strip, weights_ahead);
    }
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
