// Convolution with outputs in the lanes: a pixel, read in place, is splatted and meets the weights of kLanes outputs.
//
// For planes of few pixels, which would not fill vectors of their own and would not repay packing. Weights of a chunk of
// inputs are turned first, so that outputs are neighbours; every pixel uses them again.
namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kOutputVectors = 3;                        // of outputs that are computed together
constexpr int kOutputPixels = kRegisters == 32 ? 8 : 4;  // neighbours in a row whose sums, with these, fill the registers

// Lines of weights that will be needed soon, handed out one by one: those in `places` of each row in turn, then those of the
// rows that whoever comes next will read.
struct WeightsAhead {
  const float* const* row;
  const std::int32_t *first, *last, *place;
  int left;
  LaterRows later;
  bool many;
  int later_line = 0;

  __attribute__((always_inline)) void next() {
    if (left > 0) {
      --left;
      fetch(*row + *place, many);
      if (++place == last) {
        place = first;
        ++row;
      }
    } else if (later.count > 0) {
      fetch(*later.rows + later_line * kLine, many);
      if (++later_line == later.lines) {
        later_line = 0;
        ++later.rows;
        --later.count;
      }
    }
  }
};

// One quad of taps of kLanes outputs, from `at` of their rows on, `step` apart. rows[j * kQuads + q] belongs to output 4 q + j.
PENSTOCK_INLINE void turn_quad(const float* const* rows, std::ptrdiff_t at, float* to, std::ptrdiff_t step) {
  Vec w[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) w[j] = load_quads(rows + j * kQuads, at);
  transpose_quads(w[0], w[1], w[2], w[3]);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) store(to + j * step, w[j]);
}

// Weights of V vectors of outputs for the inputs in `list`: [input][tap][output]. kTaps is the number of taps when it is
// known, else 0.
template <int V, int kTaps>
static void turn_weights(const float* const* rows, const std::int32_t* list, int count, int tap_count, float* to) {
  const int taps = kTaps ? kTaps : tap_count;
  constexpr std::ptrdiff_t kStep = V * kLanes;
  for (int i = 0; i < count; ++i, to += taps * kStep) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(list[i]) * taps;
#pragma GCC unroll 1
    for (int v = 0; v < V; ++v) {
      const float* const* of_vector = rows + v * kLanes;
      float* const to_vector = to + v * kLanes;
      if (taps < 4) {
        for (int t = 0; t < taps; ++t) {
#pragma GCC unroll 16
          for (int o = 0; o < kLanes; ++o) to_vector[t * kStep + o] = of_vector[o % 4 * kQuads + o / 4][at + t];
        }
        continue;
      }
#pragma GCC unroll 2
      for (int t = 0; t + 4 <= taps; t += 4) turn_quad(of_vector, at + t, to_vector + t * kStep, kStep);
      // The last quad ends with the filter.
      if (taps % 4 != 0) turn_quad(of_vector, at + taps - 4, to_vector + (taps - 4) * kStep, kStep);
    }
  }
}

// P neighbouring pixels for V vectors of outputs, over `count` inputs from `input` on; kTaps is the number of taps when it
// is known, else 0. Sums are [pixel][output].
template <int V, int P, int kTaps>
static void multiply_pixels(const OutputsArgs& a, const float* weights, const float* input, int count, bool first, float* sums,
                            WeightsAhead& ahead, int fetches) {
  Vec acc[P][V];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) acc[p][v] = first ? zero() : load(sums + (p * V + v) * kLanes);
  }
  const int taps = kTaps ? kTaps : a.tap_count;
  const std::ptrdiff_t stride = a.stride_w;
  for (int i = 0; i < count; ++i, input += a.in_stride) {
    for (int f = 0; f < fetches; ++f) ahead.next();
#pragma GCC unroll 1
    for (int t = 0; t < taps; ++t, weights += V * kLanes) {
      const float* pixels = input + a.taps[t];
      Vec w[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) w[v] = load(weights + v * kLanes);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const Vec pixel = splat(pixels[p * stride]);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) acc[p][v] = fma(w[v], pixel, acc[p][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) store(sums + (p * V + v) * kLanes, acc[p][v]);
  }
}

// Finishes `outs` outputs, one vector of the `wide` outputs in `sums`: [pixel][output] is transposed to lines of pixels, which are
// stored in their rows.
static void finish_outputs(const OutputsArgs& a, const float* sums, int wide, int plane, int outs) {
  const ConvOutput& out = a.out;
  const int pixels = out.height * out.width;
  const std::ptrdiff_t line = a.line_floats;
  for (int pixel = 0; pixel < pixels; pixel += 4) {
    Vec s[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) s[j] = load(sums + static_cast<std::ptrdiff_t>(pixel + j) * wide);
    transpose_quads(s[0], s[1], s[2], s[3]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) store_quads(a.lines + j * line + pixel, 4 * line, s[j]);
  }
  for (int o = 0; o < outs; ++o) {
    const Finish f = finish_of(out, plane + o);
    const float* from = a.lines + o * line;
    float* row = out.planes + (plane + o) * out.stride + out.origin;
    for (int y = 0; y < out.height; ++y, from += out.width, row += out.pitch) {
      // A whole vector may run over the end of a row where later rows have at least that many pixels: they are written afterwards.
      const bool over = (out.height - 1 - y) * out.width >= kLanes;
      for (int x = 0; x < out.width; x += kLanes) {
        const Vec value = finish(load(from + x), f, out);
        if (over) {
          store(row + x, value);
        } else {
          store_first(row + x, value, out.width - x);
        }
      }
    }
    zero_padding(out, plane + o, 0, out.height, true);
  }
}

using TurnFunction = void (*)(const float* const*, const std::int32_t*, int, int, float*);
using PixelsFunction = void (*)(const OutputsArgs&, const float*, const float*, int, bool, float*, WeightsAhead&, int);

template <int kTaps>
static TurnFunction turn_function(int vectors) {
  static constexpr TurnFunction kTurn[] = {turn_weights<1, kTaps>, turn_weights<2, kTaps>, turn_weights<3, kTaps>};
  return kTurn[vectors - 1];
}

template <int kTaps>
struct PickPixels {
  template <int kVectors, int kPixels>
  static constexpr PixelsFunction of() {
    return multiply_pixels<kVectors, kPixels, kTaps>;
  }
};

template <int kTaps>
static PixelsFunction pixels_function(int vectors, int pixels) {
  return pick_function<PickPixels<kTaps>, kOutputPixels>(vectors, pixels,
                                                         std::make_integer_sequence<int, kOutputVectors * kOutputPixels>());
}

// Output planes [plane_begin, plane_end), at most kOutputVectors vectors.
static void outputs_block(const OutputsArgs& a, int plane_begin, int plane_end) {
  const ConvOutput& out = a.out;
  constexpr int kWide = kOutputVectors * kLanes;
  const int outs = plane_end - plane_begin, vectors = (outs + kLanes - 1) / kLanes, wide = vectors * kLanes;
  const auto weights_of = [&](int plane) {
    return a.weights + static_cast<std::ptrdiff_t>(out.list[plane]) * a.in_channels * a.tap_count;
  };
  const float *rows[kWide], *next_rows[kWide];
  for (int o = 0; o < wide; ++o) {
    const int lane = o % kLanes;
    rows[o - lane + lane % 4 * kQuads + lane / 4] = weights_of(plane_begin + (o < outs ? o : outs - 1));
  }
  const int next_outs = out.count - plane_end < kWide ? out.count - plane_end : kWide;
  for (int o = 0; o < next_outs; ++o) next_rows[o] = weights_of(plane_end + o);
  const auto turn = a.tap_count == 9 ? turn_function<9> : a.tap_count == 1 ? turn_function<1> : turn_function<0>;
  const auto function = a.tap_count == 9 ? pixels_function<9> : a.tap_count == 1 ? pixels_function<1> : pixels_function<0>;
  const int chunks = a.in_count > a.chunk ? (a.in_count + a.chunk - 1) / a.chunk : 1;
  const auto begin_of = [&](int chunk) { return static_cast<int>(static_cast<std::int64_t>(chunk) * a.in_count / chunks); };
  const int runs = (out.width + kOutputPixels - 1) / kOutputPixels;
  const bool fetches_ahead = a.tap_count <= kLine;
  UsedLines<kOutputsChunk> used;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int begin = begin_of(chunk), count = begin_of(chunk + 1) - begin;
    turn(vectors)(rows, a.in_list + begin, count, a.tap_count, a.panel);
    // While these are multiplied the next ones arrive: of the next chunk, or of the outputs after these.
    const bool more = chunk + 1 < chunks;
    const int next = more ? chunk + 1 : 0;
    if (fetches_ahead) used.find(a.in_list + begin_of(next), begin_of(next + 1) - begin_of(next), 0, a.tap_count, 0);
    WeightsAhead ahead = {more ? rows : next_rows,
                          used.places,
                          used.places + used.count,
                          used.places,
                          used.count * (more ? outs : next_outs),
                          share_of(a.later, chunk, chunks),
                          a.fetches_many};
    const std::int64_t turns = static_cast<std::int64_t>(runs) * out.height * count;
    const std::int64_t lines = ahead.left + std::int64_t{ahead.later.count} * ahead.later.lines;
    const int fetches = turns == 0 ? 0 : static_cast<int>((lines + turns - 1) / turns);
    const float* plane = a.input + begin * a.in_stride;
    float* sums = a.sums;
    for (int y = 0; y < out.height; ++y) {
      for (int run = 0; run < runs; ++run) {
        const int x = run * out.width / runs, pixels = (run + 1) * out.width / runs - x;
        const float* input =
            plane + static_cast<std::ptrdiff_t>(y) * a.stride_h * a.in_pitch + static_cast<std::ptrdiff_t>(x) * a.stride_w;
        function(vectors, pixels)(a, a.panel, input, count, chunk == 0, sums, ahead, fetches);
        sums += pixels * wide;
      }
    }
  }
  for (int v = 0; v < vectors; ++v) {
    const int left = outs - v * kLanes;
    finish_outputs(a, a.sums + v * kLanes, wide, plane_begin + v * kLanes, left < kLanes ? left : kLanes);
  }
}

static void run_outputs(const OutputsArgs& a, int unit_begin, int unit_end) {
  const int vectors = (a.out.count + kLanes - 1) / kLanes;
  const auto first_of = [&](int unit) {
    const int first = static_cast<int>(static_cast<std::int64_t>(unit) * vectors / a.units) * kLanes;
    return first < a.out.count ? first : a.out.count;
  };
  for (int unit = unit_begin; unit < unit_end; ++unit) outputs_block(a, first_of(unit), first_of(unit + 1));
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
