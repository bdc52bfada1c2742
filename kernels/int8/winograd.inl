// Winograd F(4x4, 3x3) in whole numbers, exact (docs/int8.md): int16 products, sums modulo 2^32.

PENSTOCK_INLINE void forward(const Half* d, Half* t) {
  const Half a = d[4] - (d[2] << 2), b = d[3] - (d[1] << 2);
  const Half c = d[4] - d[2], e = (d[3] - d[1]) << 1;
  t[0] = ((d[0] - d[2]) << 2) + c;
  t[1] = a + b;
  t[2] = a - b;
  t[3] = c + e;
  t[4] = c - e;
  t[5] = d[5] - d[3] - (e << 1);
}

// Tiles of one row, 2 * kLanes channels: 6x6 pixels each, of which the next tile shares two columns. Column x of the first tile is
// rows[y] + offset + x * step. Position i goes to to + i * position, tiles are `words` apart.
class TileRow {
 public:
  TileRow(const std::uint8_t* const* rows, std::ptrdiff_t offset, std::ptrdiff_t step) : step_(step) {
    for (int y = 0; y < 6; ++y) rows_[y] = rows[y] + offset;
  }
  void transform(int tiles, std::int16_t* to, std::ptrdiff_t position, std::ptrdiff_t words) {
    column(0);
    column(1);
    for (int t = 0; t < tiles; ++t, to += words) {
      if (t % 2 == 0) tile<0>(to, position);
      else tile<4>(to, position);
    }
  }

 private:
  // Transforms the next column of pixels into place `x`.
  __attribute__((always_inline)) void column(int x) {
    Half d[6];
#pragma GCC unroll 6
    for (int y = 0; y < 6; ++y) d[y] = widen_codes(rows_[y] + at_);
    forward(d, columns_[x]);
    at_ += step_;
  }
  // The tile whose columns are kFirst and following.
  template <int kFirst>
  __attribute__((always_inline)) void tile(std::int16_t* to, std::ptrdiff_t position) {
    column((kFirst + 2) % 8);
    column((kFirst + 3) % 8);
    column((kFirst + 4) % 8);
    column((kFirst + 5) % 8);
#pragma GCC unroll 6
    for (int y = 0; y < 6; ++y) {
      Half d[6], t[6];
#pragma GCC unroll 6
      for (int x = 0; x < 6; ++x) d[x] = columns_[(kFirst + x) % 8][y];
      forward(d, t);
#pragma GCC unroll 6
      for (int x = 0; x < 6; ++x) store(to + (y * 6 + x) * position, t[x]);
    }
  }

  Half columns_[8][6];  // [column][row of the transform]
  const std::uint8_t* rows_[6];
  std::ptrdiff_t step_, at_ = 0;
};

// The four sums of a row or column are multiples of the true ones, modulo 2^32: 3 times 2^kShift[i].
constexpr int kShift[4] = {3, 2, 1, 1};

// The outer products have been taken six times already, with the filters.
PENSTOCK_INLINE void backward(const Mod* m, Mod* y) {
  const Mod s12 = m[1] + m[2], d12 = m[1] - m[2], s34 = m[3] + m[4], d34 = m[3] - m[4];
  y[0] = m[0] + s34 - (s12 << 2);
  y[1] = d34 - d12 - d12;
  y[2] = s34 - s12;
  y[3] = m[5] + d34 + d34 - d12;
}

// Products of one tile and one vector of outputs to 16 sums, `step` words apart: each position is `position` words from the last.
static void inverse_tile(const std::int32_t* products, std::ptrdiff_t position, std::int32_t* sums, std::ptrdiff_t step) {
  constexpr std::uint32_t kInverseOf9 = 0x38e38e39u;
  Mod half[4][6];
#pragma GCC unroll 6
  for (int x = 0; x < 6; ++x) {
    Mod m[6], y[4];
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) m[r] = load<Mod>(products + (r * 6 + x) * position);
    backward(m, y);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) half[r][x] = y[r];
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    Mod y[4];
    backward(half[r], y);
#pragma GCC unroll 4
    for (int x = 0; x < 4; ++x) store(sums + (r * 4 + x) * step, (Int)(y[x] * kInverseOf9) >> (kShift[r] + kShift[x]));
  }
}

// Turns of the fetcher with each position of so many tiles.
PENSTOCK_INLINE int position_turns([[maybe_unused]] int count, [[maybe_unused]] int vectors) {
#if defined(PENSTOCK_VEC_NEON)
  return 1;
#else
  return Pieces(count, most_pixels(vectors)).n;
#endif
}

// The products of a panel of outputs: 36 positions, in each the tiles, in each its vectors.
struct Positions {
  const std::uint8_t* weights;
  std::ptrdiff_t weight_step;  // bytes from one position to the next
  const std::int16_t* tiles;
  std::ptrdiff_t position;  // words from one position of the tiles to the next
  std::ptrdiff_t words;     // from one tile to the next
  std::int32_t* products;
  std::ptrdiff_t product_step;
  int pairs, count;  // of inputs, of tiles
  bool far;          // weights of the next position are fetched into L2
};

#if !defined(PENSTOCK_VEC_NEON)
#include "int8/positions.inl"
#else
// NEON gathers all weights before: there are no products to add to.
static void multiply_positions(const Positions& m, int vectors, Int8Fetcher& fetcher, bool) {
  const std::ptrdiff_t zero_tap[1] = {0};
  const Pieces pieces(m.count, most_pixels(vectors));
  const Multiply large = multiply_of<false>(vectors, pieces.size),
                 small = multiply_of<false>(vectors, std::max(1, pieces.size - 1));
  const std::uint8_t* w = m.weights;
  for (int i = 0; i < 36; ++i, w += m.weight_step) {
    fetcher.some();
    for (int piece = 0, at = 0; piece < pieces.n; at += pieces.at(piece++)) {
      const std::uint8_t* from[kMostPixels];
      for (int k = 0; k < pieces.at(piece); ++k)
        from[k] = reinterpret_cast<const std::uint8_t*>(m.tiles + i * m.position + (at + k) * m.words);
      (piece < pieces.large ? large : small)(w, from, zero_tap, 1, m.pairs,
                                             m.products + i * m.product_step + static_cast<std::int64_t>(at) * vectors * kLanes,
                                             Int8Lines{});
    }
  }
}
#endif

// Where the products of panel p begin, whose first vector is v0, if those of all panels are kept.
PENSTOCK_INLINE std::ptrdiff_t panel_products(int v0, int p, int count) {
  return 36 * (static_cast<std::ptrdiff_t>(v0) * count * kLanes + p * kLanes);
}

static void winograd(const Int8Run& run, int unit, int member) {
  const Int8Shape& s = run.plan.shape;
  const Int8Task& task = run.task;
  const Int8Scratch& lay = run.lay;
  const int in_bytes = pixel_bytes(s.in_channels, task.in_count), out_bytes = pixel_bytes(s.out_channels, task.out_count);
  const int across = (s.output.width + 3) / 4, down = (s.output.height + 3) / 4;
  const int first = unit * lay.unit_rows, count = std::min(lay.unit_rows, across * down - first);
  const int pairs = (task.in_count + 1) / 2, words = round_words(task.in_count);
  std::uint8_t* const mine = run.mine(member);
  std::int16_t* const transformed = reinterpret_cast<std::int16_t*>(mine + lay.transformed);
  std::int32_t* const products = reinterpret_cast<std::int32_t*>(mine + lay.products);

  // Rows below the last padding row only make pixels that are not stored: any row serves.
  const std::int64_t last_row = s.input.height - 1 + s.input.halo;
  for (int t = 0, tiles; t < count; t += tiles) {
    const int ty = (first + t) / across, tx = (first + t) % across;
    tiles = std::min(count - t, across - tx);
    const std::uint8_t* rows[6];
    for (int y = 0; y < 6; ++y) {
      const std::int64_t row = std::min<std::int64_t>(ty * 4 + y - s.pad_h, last_row);
      rows[y] = task.input + (s.input.origin() + row * s.input.pitch() + tx * 4 - s.pad_w) * in_bytes;
    }
    for (int c = 0; c < words; c += 2 * kLanes)
      TileRow(rows, c, in_bytes).transform(tiles, transformed + static_cast<std::int64_t>(t) * words + c, lay.position, words);
  }

  const Int8Finish f = finish_of(run, member);
#if PENSTOCK_STREAMS
  const bool streamed = lay.streamed > 0;
  if (streamed) stream_winograd(run, mine, transformed, count, words, products);
#else
  constexpr bool streamed = false;
#endif
  const std::uint8_t* const weights = streamed || lay.panel_pairs > 0 ? nullptr : run.weights();
  const Panels panels(task.out_count, kLanes, kMostVectors);
  const bool far = weights && filter_bytes(pairs, panels.vectors, kLanes, kMostVectors) >
                                  static_cast<std::int64_t>(run.plan.tuning.int8_near_bytes);
  alignas(64) std::int32_t sums[16 * kMostVectors * kLanes];
  for (int p = 0; p < panels.n; ++p) {
    const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
    const std::ptrdiff_t product_step = static_cast<std::ptrdiff_t>(count) * vectors * kLanes + kLanes;
    const std::int32_t* made = products;  // of this panel
    if (streamed) {
      made += panel_products(v0, p, count);
    } else {
      const auto multiply = [&](const std::uint8_t* filters, int begin, int end) {
        const Positions some{filters,
                             filter_position_bytes(end - begin, vectors, kLanes),
                             transformed + 2 * begin,
                             lay.position,
                             words,
                             products,
                             product_step,
                             end - begin,
                             count,
                             far};
        multiply_positions(some, vectors, *run.fetcher, begin > 0);
      };
      const int piece = lay.panel_pairs > 0 ? lay.panel_pairs : pairs;
      if (p == 0)
        run.fetcher->expect(std::int64_t{36} * panels.n * ((pairs + piece - 1) / std::max(1, piece)) *
                            position_turns(count, vectors));
      if (lay.panel_pairs == 0) multiply(weights + panel_filters(v0, p, pairs), 0, pairs);
      for (int begin = 0; lay.panel_pairs > 0 && begin < pairs; begin += piece) {
        const int end = std::min(pairs, begin + piece);
        run.plan.kernels->gather_panel(run, p, begin, end, mine + lay.panel);
        multiply(mine + lay.panel, begin, end);
      }
    }
    for (int t = 0; t < count; ++t) {
      const int ty = (first + t) / across * 4, tx = (first + t) % across * 4;
      for (int j = 0; j < vectors; ++j)
        inverse_tile(made + (static_cast<std::int64_t>(t) * vectors + j) * kLanes, product_step, sums + j * kLanes,
                     vectors * kLanes);
      const int wide = std::min(4, s.output.width - tx), high = std::min(4, s.output.height - ty);
      std::uint8_t* const to =
          task.output + (s.output.origin() + static_cast<std::int64_t>(ty) * s.output.pitch() + tx) * out_bytes + v0 * kLanes;
      std::uint8_t* targets[16];
      for (int i = 0; i < 16; ++i) targets[i] = to + (static_cast<std::int64_t>(i / 4) * s.output.pitch() + i % 4) * out_bytes;
      const int room = out_bytes - v0 * kLanes;
      if (wide == 4) {
        finish_block(f, v0, vectors, sums, 4 * high, targets, 0, room);
        continue;
      }
      for (int y = 0; y < high; ++y) finish_block(f, v0, vectors, sums + y * 4 * vectors * kLanes, wide, targets + 4 * y, 0, room);
    }
  }
}
