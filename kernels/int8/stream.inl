// Weights gathered piece by piece, as they are multiplied. Where few pixels use them, writing all of them and reading them again
// takes longer than the products; a piece stays in L1.
#if PENSTOCK_STREAMS

// For pieces of inputs and every panel of outputs: each(panel, weights, first pair, pairs). `turns` of the fetcher are expected for
// every piece of inputs.
template <typename Each>
static void stream_weights(const Int8Run& run, std::uint8_t* mine, bool with_transform, int turns, Each&& each) {
  const Int8Scratch& lay = run.lay;
  const int taps = run.plan.taps;
  const Gathering all(run, 0, with_transform, stream_pitch(run.task.out_count));
  const Panels panels(run.task.out_count, kLanes, kMostVectors);
  std::int8_t* const rows = reinterpret_cast<std::int8_t*>(mine + lay.rows);
  std::uint8_t* const room = mine + lay.panel;
  const std::ptrdiff_t input_bytes = all.size * taps * all.pitch;  // of a pair's rows
  const int piece = stream_piece(run.plan);
  run.fetcher->expect(static_cast<std::int64_t>(turns) * ((all.groups + piece - 1) / piece));
  for (int first = 0; first < all.groups; first += lay.streamed) {
    const int last = std::min(all.groups, first + lay.streamed);
    // Where no output is skipped the plan's own rows are used, except for the last input where their number is odd.
    const int whole = run.task.out_count == run.plan.shape.out_channels ? std::min(last, all.inputs / 2) : first;
    for (int q = whole; q < last; ++q) all.compact_inputs(q, rows + (q - first) * input_bytes);
    for (int p = 0; p < panels.n; ++p) {
      const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
      // The rows that come next, in equal shares.
      const int later = std::max(0, std::min(all.inputs, 2 * (last + lay.streamed)) - 2 * last);
      for (int i = later * p / panels.n; i < later * (p + 1) / panels.n; ++i) {
        const std::int8_t* const next = all.input_rows(2 * last + i);
        for (std::int64_t line = 0; line < static_cast<std::int64_t>(taps) * run.plan.row; line += 64) fetch_far(next + line);
      }
      for (int begin = first; begin < last; begin += piece) {
        const int count = std::min(piece, last - begin);
        const std::ptrdiff_t step = with_transform ? filter_position_bytes(count, vectors, kLanes)
                                                   : static_cast<std::ptrdiff_t>(count) * vectors * kGroupBytes;
        for (int q = 0; q < count; ++q) {
          const int pair = begin + q;
          const bool own = pair < whole;
          const std::int8_t* const from = own ? all.input_rows(2 * pair) : rows + (pair - first) * input_bytes;
          const std::ptrdiff_t pitch = own ? run.plan.row : all.pitch;
          const std::ptrdiff_t next = own ? all.input_rows(2 * pair + 1) - from : taps * pitch;
          for (int j = 0; j < vectors; ++j)
            pack_vector(from + (v0 + j) * kLanes, pitch, next, taps, with_transform, room + (q * vectors + j) * kVectorBytes, step);
        }
        each(p, room, begin, count);
      }
    }
  }
}

template <int kVectors, bool kMore>
static Multiply multiply_more_of(int pixels) {
  static constexpr Multiply kTable[8] = {[](auto... a) { multiply_add<kQuadCodes, kVectors, 1, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 2, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 3, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 4, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 5, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 6, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 7, kMore>(a...); },
                                         [](auto... a) { multiply_add<kQuadCodes, kVectors, 8, kMore>(a...); }};
  return kTable[pixels - 1];
}

static Multiply multiply_more_of(int vectors, int pixels, bool more) {
  if (!more) return multiply_of<kQuadCodes>(vectors, pixels);
  switch (vectors) {
#if defined(PENSTOCK_VEC_AVX512)
    case 4: return multiply_more_of<4, true>(pixels);
    case 3: return multiply_more_of<3, true>(pixels);
#endif
    case 2: return multiply_more_of<2, true>(pixels);
    default: return multiply_more_of<1, true>(pixels);
  }
}

// Direct sums of all pixels: [panel][pixel][vector].
static void stream_direct(const Int8Run& run, std::uint8_t* mine, const std::uint8_t* const* sources, const std::ptrdiff_t* taps,
                          int tap_count, int pixels, std::int32_t* sums) {
  const Panels panels(run.task.out_count, kLanes, kMostVectors);
  stream_weights(run, mine, false, panels.n, [&](int p, const std::uint8_t* weights, int first, int groups) {
    const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
    const Pieces pieces(pixels, most_pixels(vectors));
    const Multiply large = multiply_more_of(vectors, pieces.size, first > 0),
                   small = multiply_more_of(vectors, std::max(1, pieces.size - 1), first > 0);
    std::int32_t* to = sums + static_cast<std::int64_t>(v0) * pixels * kLanes;
    run.fetcher->some();
    for (int i = 0, at = 0; i < pieces.n; at += pieces.at(i++)) {
      const std::uint8_t* from[8];
      for (int k = 0; k < pieces.at(i); ++k) from[k] = sources[at + k] + 4 * static_cast<std::ptrdiff_t>(first);
      (i < pieces.large ? large : small)(weights, from, taps, tap_count, groups,
                                         to + static_cast<std::int64_t>(at) * vectors * kLanes, Int8Lines{});
    }
  });
}
#endif
