// Direct convolution: outputs in the lanes, a register block of vectors of outputs x pixels.

// What a product of `steps` steps fetches, each of which multiplies so many vectors and pixels.
PENSTOCK_INLINE Int8Lines fetch_with(Int8Fetcher& fetcher, [[maybe_unused]] int steps, [[maybe_unused]] int block) {
#if defined(PENSTOCK_VEC_AVX512)
  return fetcher.spread(steps, block);
#else
  fetcher.some();
  return {};
#endif
}

// sums[p][j] = over taps and groups of inputs: pixel p's bytes times the weights of vector j. Weights lie
// [tap][group][vector], kGroupBytes for each vector of outputs.
#if defined(PENSTOCK_VEC_NEON)
#include "int8/multiply_neon.inl"
#else
// kMore: the products are added to the sums that are there.
template <bool kQuads, int kVectors, int kPixels, bool kMore>
PENSTOCK_INLINE void multiply_add(const std::uint8_t* w, const std::uint8_t* const* pixels, const std::ptrdiff_t* taps,
                                  int tap_count, int groups, std::int32_t* sums, [[maybe_unused]] Int8Lines ahead) {
  Int acc[kPixels][kVectors] = {};
  if constexpr (kMore) {
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[p][j] = load<Int>(sums + (p * kVectors + j) * kLanes);
  }
  const std::uint8_t* at[kPixels];
  for (int p = 0; p < kPixels; ++p) at[p] = pixels[p];
  [[maybe_unused]] int wait = ahead.period;
  for (int t = 0; t < tap_count; ++t) {
    const std::ptrdiff_t first = taps[t], last = first + 4 * static_cast<std::ptrdiff_t>(groups);
    for (std::ptrdiff_t g = first; g < last; g += 4, w += kVectors * kVectorBytes) {
#if defined(PENSTOCK_VEC_AVX512)
      if (--wait == 0) {
        wait = ahead.period;
        fetch_far(*ahead.at++);
      }
#endif
      Int s[kVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) s[j] = load<Int>(w + j * kVectorBytes);
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        const Int u = splat_bytes(at[p] + g);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) {
#if defined(PENSTOCK_VEC_VNNI)
          if constexpr (kQuads) {
            acc[p][j] = dot_quads(acc[p][j], u, s[j]);
            continue;
          }
#endif
          acc[p][j] = dot_pairs(acc[p][j], u, s[j]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(sums + (p * kVectors + j) * kLanes, acc[p][j]);
}

template <bool kQuads, int kVectors, int kPixels>
static void multiply(const std::uint8_t* w, const std::uint8_t* const* pixels, const std::ptrdiff_t* taps, int tap_count,
                     int groups, std::int32_t* sums, [[maybe_unused]] Int8Lines ahead) {
  multiply_add<kQuads, kVectors, kPixels, false>(w, pixels, taps, tap_count, groups, sums, ahead);
}
#endif

using Multiply = void (*)(const std::uint8_t*, const std::uint8_t* const*, const std::ptrdiff_t*, int, int, std::int32_t*,
                          Int8Lines);

// The pixels of a register block that has this many vectors of outputs.
constexpr int most_pixels(int vectors) {
#if defined(PENSTOCK_VEC_MATRIX)
  return vectors == 4 ? 6 : 8;
#elif defined(PENSTOCK_VEC_NEON)
  return vectors == 4 ? 5 : vectors == 3 ? 6 : 8;
#else
  return vectors < kMostVectors ? 8 : kMostVectors == 4 ? 6 : 5;
#endif
}
constexpr int kMostPixels = 8;  // of any register block

template <bool kQuads, int kVectors, int... kLess>
static const Multiply* multiplies(std::integer_sequence<int, kLess...>) {
  static constexpr Multiply kTable[] = {multiply<kQuads, kVectors, kLess + 1>...};
  return kTable;
}

template <bool kQuads, int kVectors>
static Multiply multiply_of(int pixels) {
  return multiplies<kQuads, kVectors>(std::make_integer_sequence<int, most_pixels(kVectors)>())[pixels - 1];
}

template <bool kQuads>
static Multiply multiply_of(int vectors, int pixels) {
  switch (vectors) {
#if defined(PENSTOCK_VEC_AVX512) || defined(PENSTOCK_VEC_NEON)
    case 4: return multiply_of<kQuads, 4>(pixels);
    case 3: return multiply_of<kQuads, 3>(pixels);
#endif
    case 2: return multiply_of<kQuads, 2>(pixels);
    default: return multiply_of<kQuads, 1>(pixels);
  }
}

#include "int8/stream.inl"

static Int8Finish finish_of(const Int8Run& run, int member) {
  const Int8Shape& s = run.plan.shape;
  const Int8Scratch& lay = run.lay;
  Int8Finish f;
  f.mul = reinterpret_cast<const float*>(run.scratch + lay.mul);
  f.add = reinterpret_cast<const float*>(run.scratch + lay.add);
  f.init = reinterpret_cast<const std::int32_t*>(run.scratch + lay.init);
  f.sums = reinterpret_cast<std::int32_t*>(run.mine(member) + lay.sums);
  f.has_init = s.in.zero != 0 || run.task.constants != nullptr;
  set_limits(f, s.function, s.slope, s.out);
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
  const BoundTerm terms[] = {{f.mul, static_cast<float>(run.plan.sum_bound)}, {f.add, 1.0f}};
  f.stays_whole = stays_whole(terms, 2, lay.vectors);
#endif
  return f;
}

static void widen(const std::uint8_t* from, std::int64_t bytes, std::uint8_t* to) {
  for (std::int64_t i = 0; i < bytes; i += 2 * kLanes) store(to + 2 * i, widen_codes(from + i));
}

static void direct(const Int8Run& run, int unit, int member) {
  const Int8Plan& plan = run.plan;
  const Int8Shape& s = plan.shape;
  const Int8Task& task = run.task;
  const int element = kQuadCodes ? 1 : 2;
  const int in_bytes = pixel_bytes(s.in_channels, task.in_count), out_bytes = pixel_bytes(s.out_channels, task.out_count);
  const int chunk = unit / run.lay.panel_units, part = unit % run.lay.panel_units;
  const int y0 = chunk * run.lay.unit_rows, y1 = std::min(s.output.height, y0 + run.lay.unit_rows);
  std::uint8_t* const mine = run.mine(member);

  // The rows of the input under this unit, widened to words where the set multiplies words.
  const std::int64_t first_row = static_cast<std::int64_t>(y0) * s.stride_h - s.pad_h;
  const std::int64_t last_row =
      static_cast<std::int64_t>(y1 - 1) * s.stride_h - s.pad_h + static_cast<std::int64_t>(s.kernel_h - 1) * s.dilation_h;
  const std::int64_t start = s.input.origin() + first_row * s.input.pitch() - s.pad_w;
  const std::int64_t end = s.input.origin() + last_row * s.input.pitch() + s.input.width + s.pad_w;
  const std::uint8_t* input = task.input + start * in_bytes;
  if (!kQuadCodes) {
    widen(input, (end - start) * in_bytes, mine + run.lay.pixels);
    input = mine + run.lay.pixels;
  }
  std::ptrdiff_t taps[kMostTaps];
  const std::int64_t step = static_cast<std::int64_t>(in_bytes) * element;
  int tap_count = 0;
  for (int y = 0; y < s.kernel_h; ++y)
    for (int x = 0; x < (plan.image_rows ? 1 : s.kernel_w); ++x)
      taps[tap_count++] = (static_cast<std::int64_t>(y) * s.dilation_h * s.input.pitch() + x * s.dilation_w) * step;

  const int pixels = (y1 - y0) * s.output.width;
  const std::uint8_t** const sources = reinterpret_cast<const std::uint8_t**>(mine + run.lay.sources);
  std::uint8_t** const targets = reinterpret_cast<std::uint8_t**>(mine + run.lay.targets);
  for (int y = y0, i = 0; y < y1; ++y)
    for (int x = 0; x < s.output.width; ++x, ++i) {
      sources[i] =
          input +
          (static_cast<std::int64_t>(y - y0) * s.stride_h * s.input.pitch() + static_cast<std::int64_t>(x) * s.stride_w) * step;
      targets[i] = task.output + (s.output.origin() + static_cast<std::int64_t>(y) * s.output.pitch() + x) * out_bytes;
    }

  const Int8Finish f = finish_of(run, member);
#if PENSTOCK_STREAMS
  if (run.lay.streamed > 0) {
    std::int32_t* const partial = reinterpret_cast<std::int32_t*>(mine + run.lay.products);
    stream_direct(run, mine, sources, taps, tap_count, pixels, partial);
    const Panels panels(task.out_count, kLanes, kMostVectors);
    for (int p = 0; p < panels.n; ++p) {
      const int v0 = panels.first(p);
      finish_block(f, v0, panels.first(p + 1) - v0, partial + static_cast<std::int64_t>(v0) * pixels * kLanes, pixels, targets,
                   v0 * kLanes, out_bytes - v0 * kLanes);
    }
    return;
  }
#endif
  alignas(64) std::int32_t sums[kMostPixels * kMostVectors * kLanes];
  const std::uint8_t* const weights = run.weights();
  const bool far = s.groups == 1 && weights != run.scratch + run.lay.weights && plan.packed_bytes > plan.tuning.int8_near_bytes;
  for (int g = 0; g < s.groups; ++g) {
    const Int8Group& group = run.groups()[g];
    if (group.out_count == 0) continue;
    const int inputs = plan.image_rows ? plan.inputs : group.in_count;
    const int groups = (inputs + kGroup - 1) / kGroup;
    const Panels panels(group.out_count, kLanes, kMostVectors);
    // Threads divide the panels of a group, or the groups.
    const int begin = s.groups == 1 ? panels.n * part / run.lay.panel_units : 0;
    const int finish = s.groups == 1 ? panels.n * (part + 1) / run.lay.panel_units : panels.n;
    if (s.groups > 1 && g % run.lay.panel_units != part) continue;
    for (int p = begin; p < finish; ++p) {
      const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
      const std::uint8_t* const w = weights + group.weights + static_cast<std::int64_t>(v0) * tap_count * groups * kGroupBytes;
#if defined(PENSTOCK_VEC_DOT)
      Int lacking[kMostVectors];
      sum_weights(w, static_cast<std::int64_t>(tap_count) * groups, vectors, lacking);
#endif
      const Pieces pieces(pixels, most_pixels(vectors));
      const std::ptrdiff_t steps = static_cast<std::ptrdiff_t>(tap_count) * groups;
      if (p == begin) run.fetcher->expect(static_cast<std::int64_t>(finish - begin) * pieces.n);
      if (far && p + 1 < finish)
        run.fetcher->add_own(w + vectors * steps * kGroupBytes, (panels.first(p + 2) - v0 - vectors) * steps * kGroupBytes,
                             pieces.n);
      const Multiply large = multiply_of<kQuadCodes>(vectors, pieces.size);
      const Multiply small = multiply_of<kQuadCodes>(vectors, std::max(1, pieces.size - 1));
      for (int i = 0, at = 0; i < pieces.n; at += pieces.at(i++)) {
        const int count = pieces.at(i);
        const std::uint8_t* from[kMostPixels];
        for (int k = 0; k < count; ++k)
          from[k] = sources[at + k] + static_cast<std::int64_t>(group.in_begin) * element * (plan.image_rows ? 0 : 1);
        (i < pieces.large ? large : small)(w, from, taps, tap_count, groups, sums,
                                           fetch_with(*run.fetcher, static_cast<int>(steps), vectors * count));
#if defined(PENSTOCK_VEC_DOT)
        for (int k = 0; k < count * vectors; ++k)
          store(sums + k * kLanes, load<Mod>(sums + k * kLanes) + (Mod)lacking[k % vectors]);
#endif
        finish_block(f, group.vector + v0, vectors, sums, count, targets + at, group.out_begin + v0 * kLanes,
                     (s.groups == 1 ? out_bytes : group.out_count) - v0 * kLanes);
      }
    }
  }
}
