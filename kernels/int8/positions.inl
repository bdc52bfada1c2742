// Winograd's products without a call for every position and few tiles, and for weights that are gathered piece by piece.

template <int kVectors, int kLarge, bool kMore>
static void multiply_pieces(const Positions& m, const Pieces& pieces, Int8Fetcher& fetcher) {
  const std::ptrdiff_t zero_tap[1] = {0};
  const std::uint8_t* w = m.weights;
  for (int i = 0; i < 36; ++i, w += m.weight_step) {
    if (m.far) fetcher.add_own(w + m.weight_step, m.pairs * kVectors * kVectorBytes, pieces.n);
    const std::int16_t* from = m.tiles + i * m.position;
    std::int32_t* to = m.products + i * m.product_step;
    const auto some = [&](auto tiles) {
      constexpr int kTiles = decltype(tiles)::value;
      const std::uint8_t* at[kTiles];
      for (int k = 0; k < kTiles; ++k) at[k] = reinterpret_cast<const std::uint8_t*>(from + k * m.words);
      multiply_add<false, kVectors, kTiles, kMore>(w, at, zero_tap, 1, m.pairs, to,
                                                   fetch_with(fetcher, m.pairs, kVectors * kTiles));
      from += kTiles * m.words;
      to += kTiles * kVectors * kLanes;
    };
    for (int piece = 0; piece < pieces.n; ++piece) {
      if (piece < pieces.large) some(std::integral_constant<int, kLarge>());
      else some(std::integral_constant<int, (kLarge > 1 ? kLarge - 1 : 1)>());
    }
  }
}

using MultiplyPieces = void (*)(const Positions&, const Pieces&, Int8Fetcher&);

template <int kVectors, bool kMore, int... kLess>
static const MultiplyPieces* multiply_sizes(std::integer_sequence<int, kLess...>) {
  static constexpr MultiplyPieces kTable[] = {multiply_pieces<kVectors, kLess + 1, kMore>...};
  return kTable;
}

template <int kVectors, bool kMore>
static void multiply_vectors(const Positions& m, Int8Fetcher& fetcher) {
  const Pieces pieces(m.count, most_pixels(kVectors));
  multiply_sizes<kVectors, kMore>(std::make_integer_sequence<int, most_pixels(kVectors)>())[pieces.size - 1](m, pieces, fetcher);
}

// more: the products are added to those that are there.
static void multiply_positions(const Positions& m, int vectors, Int8Fetcher& fetcher, bool more) {
  switch (vectors) {
#if defined(PENSTOCK_VEC_AVX512)
    case 4: return (more ? multiply_vectors<4, true> : multiply_vectors<4, false>)(m, fetcher);
    case 3: return (more ? multiply_vectors<3, true> : multiply_vectors<3, false>)(m, fetcher);
#endif
    case 2: return (more ? multiply_vectors<2, true> : multiply_vectors<2, false>)(m, fetcher);
    default: return (more ? multiply_vectors<1, true> : multiply_vectors<1, false>)(m, fetcher);
  }
}

#if PENSTOCK_STREAMS
PENSTOCK_INLINE std::ptrdiff_t panel_products(int v0, int p, int count);

static void stream_winograd(const Int8Run& run, std::uint8_t* mine, const std::int16_t* tiles, int count, int words,
                            std::int32_t* products) {
  const Panels panels(run.task.out_count, kLanes, kMostVectors);
  const int turns = 36 * panels.n * position_turns(count, kMostVectors);
  stream_weights(run, mine, true, turns, [&](int p, const std::uint8_t* weights, int first, int pairs) {
    const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
    const Positions some{weights,
                         filter_position_bytes(pairs, vectors, kLanes),
                         tiles + 2 * first,
                         run.lay.position,
                         words,
                         products + panel_products(v0, p, count),
                         static_cast<std::ptrdiff_t>(count) * vectors * kLanes + kLanes,
                         pairs,
                         count,
                         false};
    multiply_positions(some, vectors, *run.fetcher, first > 0);
  });
}
#endif
