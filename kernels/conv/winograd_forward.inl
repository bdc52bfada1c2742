// Winograd, first step: the active inputs of a block of tiles are transformed, rows first, then columns.
namespace penstock {
namespace PENSTOCK_ISA {

// Where the columns of a group of tiles lie, transformed downwards: a quad of each tile.
//
// In one row of tiles they are neighbours. Rows have just been written a vector at a time and are read likewise: a load
// across two stores would wait for both to reach the cache.
struct ColumnsInRow {
  const float* rows;
  std::ptrdiff_t pitch;
  // Columns 0..3 and 4..7 of tiles of 4, 4 apart.
  Vec first(int half, int r) const { return load(rows + r * pitch + half * kLanes); }
  Vec next(int half, int r) const { return next_quads(first(half, r), first(half + 1, r)); }
  // Columns of tiles of 2: the even ones, or the odd ones.
  Vec overlapping(int half, int r) const { return load(rows + r * pitch + 2 * half); }
};

// Anywhere: a group that begins in one row of tiles and ends in another. Often each half of it still lies in one row.
template <bool kFirstInRow, bool kSecondInRow>
struct ColumnsAnywhere {
  const float* const* tiles;
  std::ptrdiff_t pitch;
  static constexpr bool in_row(int half) { return half == 0 ? kFirstInRow : kSecondInRow; }
  Vec first(int half, int r) const {
    const float* const* of_half = tiles + half * kQuads;
    return in_row(half) ? load(*of_half + r * pitch) : load_quads(of_half, r * pitch);
  }
  Vec next(int half, int r) const {
    const float* const* of_half = tiles + half * kQuads;
    return in_row(half) ? next_quads(load(*of_half + r * pitch), load(*of_half + r * pitch + kLanes))
                        : load_quads(of_half, r * pitch + 4);
  }
  Vec overlapping(int half, int r) const {
    const float* alternate[kQuads];
    for (int q = 0; q < kQuads; ++q) alternate[q] = tiles[2 * q + half];
    return load_quads(alternate, r * pitch);
  }
};

// Bits that keep the first n lanes of a vector: kLanes of them from kLanes - n on.
struct FirstLanes {
  std::uint32_t bits[2 * kLanes];
  constexpr FirstLanes() : bits() {
    for (int i = 0; i < kLanes; ++i) bits[i] = 0xffffffffu;
  }
};
static constexpr FirstLanes kFirstLanes;

PENSTOCK_INLINE Vec keep_first(Vec v, int n) {
  return keep(v, reinterpret_cast<const float*>(kFirstLanes.bits + kLanes - n));  // read as vectors only
}

// The downward half of the transform, for the columns of tiles [x_begin, x_end) of tile row `tile_y`.
template <typename Tile>
__attribute__((noinline)) static void transform_down(const WinogradArgs& a, const float* pixels, int tile_y, int x_begin, int x_end,
                                                     float* rows, std::ptrdiff_t pitch) {
  const float* row[Tile::kIn];
  const int first_x = x_begin * Tile::kOut - a.pad_w;
  for (int r = 0; r < Tile::kIn; ++r) {
    const int y = tile_y * Tile::kOut + r - a.pad_h;
    row[r] = y < 0 || y >= a.height ? a.zero_row : pixels + static_cast<std::ptrdiff_t>(y) * a.in_pitch + first_x;
  }
  const std::ptrdiff_t next_channel = a.in_stride;
  const Series down = series(rows, pitch);
  const auto transform = [&](int x, Vec(&v)[Tile::kIn]) __attribute__((always_inline)) {
    Vec d[Tile::kIn];
#pragma GCC unroll 6
    for (int r = 0; r < Tile::kIn; ++r) {
      d[r] = load(row[r] + x);
      // The same rows of the next channel, which is far away. (Past the last channel this fetches in vain.)
      fetch_near(row[r] + x + next_channel);
    }
    Tile::forward(d, v);
  };
  const auto put = [&](int x, const Vec(&v)[Tile::kIn]) __attribute__((always_inline)) {
#pragma GCC unroll 6
    for (int r = 0; r < Tile::kIn; ++r) store(place(down, r) + x, v[r]);
  };
  Vec v[Tile::kIn];
  // What lies after the last tile's columns is read with them and not used. But columns past the right padding belong
  // to no output of this plane; where tiles reach over it, zeros keep what lies there out.
  const int columns = (x_end - x_begin) * Tile::kOut + 2;
  const int inside = a.width + a.pad_w - first_x;
  const int clear = columns <= inside ? columns : inside / kLanes * kLanes;
  int x = 0;
  for (; x < clear; x += kLanes) {
    transform(x, v);
    put(x, v);
  }
  for (; x < columns; x += kLanes) {
    transform(x, v);
    for (int r = 0; r < Tile::kIn; ++r) v[r] = keep_first(v[r], x < inside ? inside - x : 0);
    put(x, v);
  }
}

// Both halves are out of line: together they want more registers than there are.
template <typename Tile, typename Columns>
__attribute__((noinline)) static void transform_across(Columns columns, float* to, std::ptrdiff_t step) {
  Tile::across(columns, to, step);
}

// A group of tiles whose columns begin at `tiles`, wherever that is.
template <typename Tile>
static void transform_across_rows(const float* const* tiles, std::ptrdiff_t pitch, float* to, std::ptrdiff_t step) {
  const auto in_row = [&](int half) {
    const float* const* of_half = tiles + half * kQuads;
    return of_half[kQuads - 1] == of_half[0] + (kQuads - 1) * Tile::kOut;
  };
  // Tiles of 2 are cut into even and odd ones, not into halves.
  if (Tile::kOut == 2 || (!in_row(0) && !in_row(1))) {
    transform_across<Tile>(ColumnsAnywhere<false, false>{tiles, pitch}, to, step);
  } else if (!in_row(0)) {
    transform_across<Tile>(ColumnsAnywhere<false, true>{tiles, pitch}, to, step);
  } else if (!in_row(1)) {
    transform_across<Tile>(ColumnsAnywhere<true, false>{tiles, pitch}, to, step);
  } else {
    transform_across<Tile>(ColumnsAnywhere<true, true>{tiles, pitch}, to, step);
  }
}

// The filters that the first panel of outputs has for an input; a filter may begin in one cache line and end in the next.
static void fetch_first_filters(const WinogradArgs& a, int slot) {
  if (slot >= a.chunk) return;
  for (int o = 0; o < a.first_outs; ++o) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(a.out.list[o]) * a.in_channels + a.in_list[slot];
    if (a.weight_format == WeightFormat::lines) {
      fetch(a.weights + at * 16, true);
    } else {
      fetch(a.weights + at * 9, true);
      fetch(a.weights + at * 9 + 8, true);
    }
  }
}

template <typename Tile>
static void winograd_transform(const WinogradArgs& a, int slot_begin, int slot_end) {
  const int tiles = a.tile_end - a.tile_begin;
  const int groups = (tiles + kTileGroup - 1) / kTileGroup;
  const std::ptrdiff_t tiles_step = a.tiles_step;
  const std::ptrdiff_t group_step = groups * tiles_step;
  const std::ptrdiff_t pitch = a.rows_pitch;
  for (int slot = slot_begin; slot < slot_end; ++slot) {
    const float* pixels = a.input + slot * a.in_stride + a.in_origin;
    float* to = a.transformed + static_cast<std::ptrdiff_t>(slot) * kGroupFloats;
    fetch_first_filters(a, slot);
    // Tiles that wait for the next row of tiles to fill their group. Their own rows must stay for so long, so rows go
    // to `row_banks` places in turn.
    const float* waiting[kTileGroup];
    int count = 0, bank = 0;
    int tile_y = a.tile_begin / a.tiles_x, x_begin = a.tile_begin % a.tiles_x;
    for (int tile = a.tile_begin; tile < a.tile_end; ++tile_y, x_begin = 0) {
      const int left = a.tile_end - tile;
      const int x_end = x_begin + left < a.tiles_x ? x_begin + left : a.tiles_x;
      const int row_tiles = x_end - x_begin;
      float* const rows = a.rows + bank * Tile::kIn * pitch;
      transform_down<Tile>(a, pixels, tile_y, x_begin, x_end, rows, pitch);
      bank = bank + 1 < a.row_banks ? bank + 1 : 0;
      tile += row_tiles;
      int x = 0;
      while (x < row_tiles) {
        if (count == 0 && x + kTileGroup <= row_tiles) {
          transform_across<Tile>(ColumnsInRow{rows + x * Tile::kOut, pitch}, to, group_step);
          x += kTileGroup;
          to += tiles_step;
          continue;
        }
        for (; x < row_tiles && count < kTileGroup; ++x, ++count) waiting[count] = rows + x * Tile::kOut;
        if (count < kTileGroup && tile < a.tile_end) break;
        // The last group may be part full, and what its other lanes hold is not used: an empty half repeats the other.
        const int repeat = count <= kQuads ? kQuads : 1;
        for (; count < kQuads; ++count) waiting[count] = waiting[0];
        for (; count < kTileGroup; ++count) waiting[count] = waiting[count - repeat];
        transform_across_rows<Tile>(waiting, pitch, to, group_step);
        to += tiles_step;
        count = 0;
      }
    }
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
