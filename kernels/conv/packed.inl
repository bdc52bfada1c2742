// Convolution of any stride from packed pixels: a matrix product with weights in place and channel lists.
//
// Packing turns every stride and every tap into one run of memory that the caches and the prefetcher like; it is
// paid once for a block of pixels and repaid by every panel of outputs.
namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kStrip = 2 * kLanes;
// Weights are prefetched for kernels with this many taps, for at most this many inputs, in the first strips of a block. With
// wide vectors a pass takes half as long, and prefetching in it gains nothing.
constexpr bool kFetchPacked = !kWideVectors;
constexpr int kFetchTaps = 9, kFetchInputs = 512, kFetchStrips = 64;

// A run of output pixels of one row inside a strip.
struct StripRun {
  std::ptrdiff_t input, output;  // offsets of the first pixel's input and of the pixel itself in their planes
  int begin, count;              // inside the strip
};

// One vector of a run: where its input pixels start, and where it goes inside the strip.
struct StripCopy {
  std::ptrdiff_t input;
  int to, count;
};

struct Strip {
  StripRun runs[kStrip];
  int run_count = 0, pixels = 0;
};

// The strip that begins at pixel (y, x), which moves on to the next.
static void next_strip(const PackedArgs& a, int& y, int& x, Strip& strip) {
  strip.run_count = strip.pixels = 0;
  while (strip.pixels < kStrip && y < a.out.height) {
    const int row = a.out.width - x, room = kStrip - strip.pixels;
    const int count = row < room ? row : room;
    strip.runs[strip.run_count++] = {
        static_cast<std::ptrdiff_t>(y) * a.stride_h * a.in_pitch + static_cast<std::ptrdiff_t>(x) * a.stride_w,
        static_cast<std::ptrdiff_t>(y) * a.out.pitch + x, strip.pixels, count};
    strip.pixels += count;
    x += count;
    if (x == a.out.width) {
      x = 0;
      ++y;
    }
  }
}

// Every kStride-th float at p. Strides above 2 are rare enough to go lane by lane; they must not read past the
// last pixel they need, which the caller's slack does not cover.
template <int kStride>
PENSTOCK_INLINE Vec load_strided(const float* p, int stride, int count) {
  if (kStride == 1) return load(p);
  if (kStride == 2) return load_even(p);
  float lanes[kLanes] = {};
  for (int i = 0; i < kLanes && i < count; ++i) lanes[i] = p[static_cast<std::ptrdiff_t>(i) * stride];
  return load(lanes);
}

// Vectors may run past the end of a run: what follows is packed later and overwrites it. kCopies is the number of
// vectors when it is known, else 0.
template <int kStride, int kCopies>
static void pack_copies(const PackedArgs& a, const StripCopy* copies, int copy_count, int slot_begin, int slot_end, float* to) {
  const int n = kCopies ? kCopies : copy_count;
  for (int slot = slot_begin; slot < slot_end; ++slot) {
    const float* plane = a.input + slot * a.in_stride;
    for (int t = 0; t < a.tap_count; ++t, to += kStrip) {
      const float* from = plane + a.taps[t];
#pragma GCC unroll 4
      for (int c = 0; c < n; ++c) {
        store(to + copies[c].to, load_strided<kStride>(from + copies[c].input, a.stride_w, copies[c].count));
      }
    }
  }
}

template <int kStride>
static void pack_strip(const PackedArgs& a, const Strip& strip, int slot_begin, int slot_end, float* to) {
  StripCopy copies[kStrip];
  int n = 0;
  for (int r = 0; r < strip.run_count; ++r) {
    const StripRun& run = strip.runs[r];
    for (int i = 0; i < run.count; i += kLanes) {
      copies[n++] = {run.input + static_cast<std::ptrdiff_t>(i) * a.stride_w, run.begin + i, run.count - i};
    }
  }
  // Two when the strip lies in one row, three when it lies in two.
  if (n == 2) return pack_copies<kStride, 2>(a, copies, n, slot_begin, slot_end, to);
  if (n == 3) return pack_copies<kStride, 3>(a, copies, n, slot_begin, slot_end, to);
  pack_copies<kStride, 0>(a, copies, n, slot_begin, slot_end, to);
}

// The activations that are more than a clamp, over a finished strip. Out of line, so that the loops before keep their sums in
// registers.
__attribute__((noinline)) static void activate_strip(const ConvOutput& out, int outs, int vectors, float* to, std::ptrdiff_t step) {
  for (int o = 0; o < outs; ++o) {
    for (int v = 0; v < vectors; ++v) {
      float* at = to + o * step + v * kLanes;
      store(at, activate_curve(load(at), out.activation, out.slope));
    }
  }
}

// O outputs x V vectors from `packed`, finished, to `to`; kTaps is the number of taps when it is known, else 0. With kFetch
// every input's turn fetches two lines of weights where `ahead` says.
template <int O, int V, int kTaps, bool kFetch>
static void multiply_strip(const PackedArgs& a, const float* const* rows, const std::int32_t* list, int count, int first_channel,
                           const float* packed, int plane, float* to, std::ptrdiff_t step, const Ahead* ahead) {
  Vec acc[O][V];
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[o][v] = zero();
  }
  const float* weights[O];
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) weights[o] = rows[o];
  const int taps = kTaps ? kTaps : a.tap_count;
  const float* const ahead_row = kFetch ? ahead->row : nullptr;
  const std::int32_t* ahead_places = kFetch ? ahead->places : nullptr;
  for (const std::int32_t* end = list + count; list != end; ++list) {
    if (kFetch) {
      fetch(ahead_row + ahead_places[0], false);
      fetch(ahead_row + ahead_places[1], false);
      ahead_places += 2;
    }
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(*list - first_channel) * taps;
#pragma GCC unroll 9
    for (int t = 0; t < taps; ++t) {
      accumulate<O, V>(acc, packed, weights, first + t);
      packed += kStrip;
    }
  }
  const bool clamps = a.out.activation < 0;
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
    const Finish f = finish_of(a.out, plane + o);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const Vec value = f(acc[o][v]);
      store(to + o * step + v * kLanes, clamps ? clamp(value, splat(a.out.low), splat(a.out.high)) : value);
    }
  }
  if (!clamps) activate_strip(a.out, O, V, to, step);
}

using StripFunction = void (*)(const PackedArgs&, const float* const*, const std::int32_t*, int, int, const float*, int, float*,
                               std::ptrdiff_t, const Ahead*);

template <int kTaps, bool kFetch>
struct PickStrip {
  template <int kOuts, int kVectors>
  static constexpr StripFunction of() {
    return multiply_strip<kOuts, kVectors, kTaps, kFetch>;
  }
};

template <int kTaps, bool kFetch>
static StripFunction strip_function(int outs, int vectors) {
  return pick_function<PickStrip<kTaps, kFetch>, 2>(outs, vectors);
}

static StripFunction strip_function(int taps, bool fetches, int outs, int vectors) {
  if (taps == 1) return strip_function<1, false>(outs, vectors);
  if (taps == kFetchTaps && fetches) return strip_function<kFetchTaps, kFetchPacked>(outs, vectors);
  if (taps == kFetchTaps) return strip_function<kFetchTaps, false>(outs, vectors);
  return strip_function<0, false>(outs, vectors);
}

// Copies finished pixels from a buffer of one strip to the rows they belong to. Whole vectors may run over a run's end as
// long as `later` pixels of the block follow the strip: they, and the gap before them, are written afterwards.
static void store_runs(const Strip& strip, const float* values, float* to, int later) {
  for (int r = 0; r < strip.run_count; ++r) {
    const StripRun& run = strip.runs[r];
    const bool over = strip.pixels - run.begin - run.count + later >= kLanes;
    for (int i = 0; i < run.count; i += kLanes) {
      const Vec value = load(values + run.begin + i);
      if (over) {
        store(to + run.output + i, value);
      } else {
        store_first(to + run.output + i, value, run.count - i);
      }
    }
  }
}

// Outputs [plane_begin, plane_end) of one group, pixels [pixel_begin, pixel_end), inputs [slot_begin, slot_end).
static void packed_block(const PackedArgs& a, int plane_begin, int plane_end, int group, int slot_begin, int slot_end,
                         int pixel_begin, int pixel_end) {
  const std::ptrdiff_t strip_floats = static_cast<std::ptrdiff_t>(slot_end - slot_begin) * a.tap_count * kStrip;
  Strip strip;
  const int first_y = pixel_begin / a.out.width, first_x = pixel_begin % a.out.width;
  int y = first_y, x = first_x;
  float* to = a.packed;
  for (int pixel = pixel_begin; pixel < pixel_end; pixel += kStrip, to += strip_floats) {
    next_strip(a, y, x, strip);
    if (a.stride_w == 1) {
      pack_strip<1>(a, strip, slot_begin, slot_end, to);
    } else if (a.stride_w == 2) {
      pack_strip<2>(a, strip, slot_begin, slot_end, to);
    } else {
      pack_strip<0>(a, strip, slot_begin, slot_end, to);
    }
  }
  const int outs = plane_end - plane_begin;
  const int panels = (outs + kPanel - 1) / kPanel;
  const ConvOutput& out = a.out;
  const int inputs = slot_end - slot_begin, strips = (pixel_end - pixel_begin + kStrip - 1) / kStrip;
  const bool fetches = kFetchPacked && a.far && a.tap_count == kFetchTaps && inputs < a.in_group && inputs <= kFetchInputs;
  UsedLines<kFetchInputs> used;
  if (fetches) used.find(a.in_list + slot_begin, inputs, group * a.in_group, kFetchTaps, 2 * inputs);
  const auto weights_of = [&](int plane) {
    return a.weights + static_cast<std::ptrdiff_t>(out.list[plane]) * a.in_group * a.tap_count;
  };
  for (int p = 0; p < panels; ++p) {
    const int first = plane_begin + p * outs / panels, last = plane_begin + (p + 1) * outs / panels;
    const float* rows[kPanel];
    for (int o = first; o < last; ++o) rows[o - first] = weights_of(o);
    // While this panel is multiplied the weights of the next one arrive.
    AheadOf<kFetchStrips> ahead(strips, 2 * inputs);
    if (fetches && p + 1 < panels) {
      const int next_last = plane_begin + (p + 2) * outs / panels;
      for (int o = last; o < next_last; ++o) ahead.add(weights_of(o), used);
    }
    float* plane = out.planes + first * out.stride + out.origin;
    const float* packed = a.packed;
    y = first_y;
    x = first_x;
    int pass = 0;
    for (int pixel = pixel_begin; pixel < pixel_end; pixel += kStrip, packed += strip_floats, ++pass) {
      next_strip(a, y, x, strip);
      const Ahead* to_fetch = pass < ahead.count ? ahead.passes + pass : nullptr;
      const StripFunction multiply = strip_function(a.tap_count, to_fetch != nullptr, last - first, strip.pixels > kLanes ? 2 : 1);
      const bool whole = strip.runs[0].count == kStrip;
      // Runs are read a vector at a time, so the buffer has one more vector than the strips.
      float buffer[kPanel * kStrip + kLanes];
      multiply(a, rows, a.in_list + slot_begin, slot_end - slot_begin, group * a.in_group, packed, first,
               whole ? plane + strip.runs[0].output : buffer, whole ? out.stride : kStrip, to_fetch);
      if (whole) continue;
      const int later = pixel_end - pixel - strip.pixels;
      for (int o = 0; o < last - first; ++o) store_runs(strip, buffer + o * kStrip, plane + o * out.stride, later);
    }
  }
  // Rows that end in this block.
  const int row_begin = pixel_begin / a.out.width, row_end = pixel_end / a.out.width;
  if (row_begin == row_end) return;
  for (int o = plane_begin; o < plane_end; ++o) zero_padding(a.out, o, row_begin, row_end, true);
}

static void run_packed(const PackedArgs& a, int unit_begin, int unit_end) {
  const int parts = a.groups == 1 ? a.splits : a.groups;
  const int pixels = a.out.height * a.out.width;
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    const int part = unit % parts;
    const int pixel_begin = unit / parts * a.block_pixels;
    const int pixel_end = pixel_begin + a.block_pixels < pixels ? pixel_begin + a.block_pixels : pixels;
    int plane_begin = static_cast<int>(static_cast<std::int64_t>(part) * a.out.count / parts);
    int plane_end = static_cast<int>(static_cast<std::int64_t>(part + 1) * a.out.count / parts);
    int group = 0, slot_begin = 0, slot_end = a.in_count;
    if (a.groups > 1) {
      group = part;
      plane_begin = lower_bound(a.out.list, a.out.count, group * a.out_group);
      plane_end = lower_bound(a.out.list, a.out.count, (group + 1) * a.out_group);
      slot_begin = lower_bound(a.in_list, a.in_count, group * a.in_group);
      slot_end = lower_bound(a.in_list, a.in_count, (group + 1) * a.in_group);
    }
    if (plane_begin == plane_end) continue;
    packed_block(a, plane_begin, plane_end, group, slot_begin, slot_end, pixel_begin, pixel_end);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
