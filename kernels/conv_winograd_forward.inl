// Winograd, first step: the active inputs of a block of tiles are transformed, rows first, then columns.
namespace penstock {
namespace PENSTOCK_ISA {

// Where the block's tile number `index` has its quad inside its group of tiles.
template <typename Tile>
PENSTOCK_INLINE int quad_of(int index) {
  const int in_group = index % kTileGroup;
  return Tile::kOut == 2 ? in_group % 2 * kQuads + in_group / 2 : in_group;
}

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

// The downward half of the transform, for the columns of tiles [x_begin, x_end) of tile row `tile_y`; the half across
// will read `end` columns.
template <typename Tile>
static void transform_down(const WinogradArgs& a, const float* pixels, int tile_y, int x_begin, int x_end, int end,
                           float* rows, std::ptrdiff_t pitch) {
  const float* row[Tile::kIn];
  const int first_x = x_begin * Tile::kOut - a.pad_w;
  for (int r = 0; r < Tile::kIn; ++r) {
    const int y = tile_y * Tile::kOut + r - a.pad_h;
    row[r] = y < 0 || y >= a.height ? a.zero_row : pixels + static_cast<std::ptrdiff_t>(y) * a.in_pitch + first_x;
  }
  const std::ptrdiff_t next_channel = a.in_stride;
  const Series down = series(rows, pitch);
  // Columns past the right padding belong to no output of this plane; zeros keep what lies there out.
  const int columns = (x_end - x_begin) * Tile::kOut + 2;
  const int inside = a.width + a.pad_w - first_x;
  const int used = columns < inside ? columns : inside;
  const auto transform = [&](int x, bool whole) __attribute__((always_inline)) {
    Vec d[Tile::kIn], v[Tile::kIn];
#pragma GCC unroll 6
    for (int r = 0; r < Tile::kIn; ++r) {
      d[r] = load(row[r] + x);
      // The same rows of the next channel, which is far away. (Past the last channel this fetches in vain.)
      __builtin_prefetch(row[r] + x + next_channel);
    }
    Tile::forward(d, v);
#pragma GCC unroll 6
    for (int r = 0; r < Tile::kIn; ++r) store(place(down, r) + x, whole ? v[r] : keep_first(v[r], used - x));
  };
  int x = 0;
  for (; x + kLanes <= used; x += kLanes) transform(x, true);
  if (x < used) {
    transform(x, false);
    x += kLanes;
  }
  for (; x < end; x += kLanes) {
    for (int r = 0; r < Tile::kIn; ++r) store(rows + r * pitch + x, zero());
  }
}

// Copies the quads of `count` tiles, computed as one whole group, to where the block keeps them.
template <typename Tile>
static void scatter_tiles(const float* from, int index, int count, float* to, std::ptrdiff_t group_step,
                          std::ptrdiff_t tiles_step) {
  for (int t = 0; t < count; ++t) {
    const int at = index + t;
    float* quad = to + at / kTileGroup * tiles_step + quad_of<Tile>(at) * 4;
    const float* source = from + quad_of<Tile>(t) * 4;
    for (int g = 0; g < Tile::kGroups; ++g) {
      std::memcpy(quad + g * group_step, source + g * kGroupFloats, 4 * sizeof(float));
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
    int tile = a.tile_begin;
    while (tile < a.tile_end) {
      const int tile_y = tile / a.tiles_x, x_begin = tile % a.tiles_x;
      const int left = a.tile_end - tile;
      const int x_end = x_begin + left < a.tiles_x ? x_begin + left : a.tiles_x;
      // The last tile, or group of tiles where they begin with groups, begins here.
      const int row_tiles = x_end - x_begin;
      const int last = (tile - a.tile_begin) % kTileGroup == 0 ? (row_tiles - 1) / kTileGroup * kTileGroup : row_tiles - 1;
      transform_down<Tile>(a, pixels, tile_y, x_begin, x_end, last * Tile::kOut + Tile::kReach, a.rows, pitch);
      for (int x = x_begin; x < x_end;) {
        const int index = tile + (x - x_begin) - a.tile_begin;
        const int room = kTileGroup - index % kTileGroup;
        const int count = x_end - x < room ? x_end - x : room;
        const float* rows = a.rows + (x - x_begin) * Tile::kOut;
        // A whole group, or the block's last tiles, which nothing follows.
        if (room == kTileGroup && (count == kTileGroup || tile + (x_end - x_begin) == a.tile_end)) {
          Tile::across(rows, pitch, to + index / kTileGroup * tiles_step, group_step);
        } else {
          float group[Tile::kGroups * kGroupFloats];
          Tile::across(rows, pitch, group, kGroupFloats);
          scatter_tiles<Tile>(group, index, count, to, group_step, tiles_step);
        }
        x += count;
      }
      tile += x_end - x_begin;
    }
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
