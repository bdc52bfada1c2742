// Winograd convolution with channel lists: transform active inputs, multiply position by position, transform back.
//
// Weights lie as [out][position group][in][4], so that one output's weights for a group are a run through which the
// input list steps, and a quad is splatted to all tiles of a vector: skipping costs nothing on either side, and
// blocks of any number of tiles are used to the last vector.
#include "conv_winograd_tiles.inl"

namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kTileGroup = 2 * kQuads;   // tiles of the two vectors that the inner loop works on
constexpr int kGroupFloats = 2 * kLanes;
// A packed panel of weights has whole vectors of outputs.
constexpr int kPanelQuads = (kWinogradPanel + kQuads - 1) / kQuads * kQuads;
constexpr int kPanelFloats = kPanelQuads * 4;

// Where the block's tile number `index` has its quad inside its group of tiles.
template <typename Tile>
PENSTOCK_INLINE int quad_of(int index) {
  const int in_group = index % kTileGroup;
  return Tile::kOut == 2 ? in_group % 2 * kQuads + in_group / 2 : in_group;
}

// The downward half of the transform, for the columns of tiles [x_begin, x_end) of tile row `tile_y`.
template <typename Tile>
static void transform_down(const WinogradArgs& a, const float* pixels, int tile_y, int x_begin, int x_end,
                           float* rows, std::ptrdiff_t pitch) {
  const float* row[Tile::kIn];
  const int first_x = x_begin * Tile::kOut - a.pad_w;
  for (int r = 0; r < Tile::kIn; ++r) {
    const int y = tile_y * Tile::kOut + r - a.pad_h;
    row[r] = y < 0 || y >= a.height ? a.zero_row : pixels + static_cast<std::ptrdiff_t>(y) * a.in_pitch + first_x;
  }
  const std::ptrdiff_t next_channel = a.in_stride;
  // Columns past the right padding belong to no output of this plane; zeros keep what lies there out.
  const int columns = (x_end - x_begin) * Tile::kOut + 2;
  const int inside = a.width + a.pad_w - first_x;
  const int used = columns < inside ? columns : inside;
  for (int x = 0; x < used; x += kLanes) {
    Vec d[Tile::kIn], v[Tile::kIn];
#pragma GCC unroll 6
    for (int r = 0; r < Tile::kIn; ++r) {
      d[r] = load(row[r] + x);
      // The same rows of the next channel, which is far away. (Past the last channel this fetches in vain.)
      __builtin_prefetch(row[r] + x + next_channel);
    }
    Tile::forward(d, v);
#pragma GCC unroll 6
    for (int r = 0; r < Tile::kIn; ++r) store(rows + r * pitch + x, v[r]);
  }
  const int end = columns + kGroupFloats;
  for (int r = 0; r < Tile::kIn; ++r) {
    for (int x = used; x < end; x += kLanes) store(rows + r * pitch + x, zero());
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
  const std::ptrdiff_t tiles_step = static_cast<std::ptrdiff_t>(a.in_count) * kGroupFloats;
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
      transform_down<Tile>(a, pixels, tile_y, x_begin, x_end, a.rows, pitch);
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

// One position group of O outputs and V vectors of tiles, over all active inputs. `next` are rows of weights that
// will be needed soon: the list leaves gaps in them that the hardware cannot foresee.
template <int O, int V>
static void multiply_tile(const float* const* weights, const float* const* next, const float* transformed,
                          const std::int32_t* list, int count, float* sums, std::ptrdiff_t out_step) {
  Vec acc[O][V];
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[o][v] = zero();
  }
  const float* w[O];
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) w[o] = weights[o];
  const float* next0 = next[0];
  const float* next1 = next[1];
  for (const std::int32_t* end = list + count; list != end; ++list, transformed += kGroupFloats) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(*list) * 4;
    __builtin_prefetch(next0 + at);
    __builtin_prefetch(next1 + at);
    Vec tiles[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) tiles[v] = load(transformed + v * kLanes);
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) {
      const Vec quad = splat_quad(w[o] + at);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[o][v] = fma(quad, tiles[v], acc[o][v]);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(sums + o * out_step + v * kLanes, acc[o][v]);
  }
}

using MultiplyFunction = void (*)(const float* const*, const float* const*, const float*, const std::int32_t*, int,
                                  float*, std::ptrdiff_t);

constexpr MultiplyFunction kMultiply[kWinogradPanel + 1][3] = {
    {nullptr, nullptr, nullptr},
    {nullptr, multiply_tile<1, 1>, multiply_tile<1, 2>},
    {nullptr, multiply_tile<2, 1>, multiply_tile<2, 2>},
    {nullptr, multiply_tile<3, 1>, multiply_tile<3, 2>},
    {nullptr, multiply_tile<4, 1>, multiply_tile<4, 2>},
    {nullptr, multiply_tile<5, 1>, multiply_tile<5, 2>},
    {nullptr, multiply_tile<6, 1>, multiply_tile<6, 2>},
};

// The same with a panel of weights packed as [input][out][4], in chunks of inputs that add up in `sums`.
template <int O, int V>
static void multiply_fresh_tile(const float* panel, const float* transformed, int count, bool first, float* sums,
                                std::ptrdiff_t out_step) {
  Vec acc[O][V];
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[o][v] = first ? zero() : load(sums + o * out_step + v * kLanes);
  }
  for (int i = 0; i < count; ++i, panel += kPanelFloats, transformed += kGroupFloats) {
    Vec tiles[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) tiles[v] = load(transformed + v * kLanes);
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) {
      const Vec quad = splat_quad(panel + o * 4);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[o][v] = fma(quad, tiles[v], acc[o][v]);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(sums + o * out_step + v * kLanes, acc[o][v]);
  }
}

using MultiplyFreshFunction = void (*)(const float*, const float*, int, bool, float*, std::ptrdiff_t);

constexpr MultiplyFreshFunction kMultiplyFresh[kWinogradPanel + 1][3] = {
    {nullptr, nullptr, nullptr},
    {nullptr, multiply_fresh_tile<1, 1>, multiply_fresh_tile<1, 2>},
    {nullptr, multiply_fresh_tile<2, 1>, multiply_fresh_tile<2, 2>},
    {nullptr, multiply_fresh_tile<3, 1>, multiply_fresh_tile<3, 2>},
    {nullptr, multiply_fresh_tile<4, 1>, multiply_fresh_tile<4, 2>},
    {nullptr, multiply_fresh_tile<5, 1>, multiply_fresh_tile<5, 2>},
    {nullptr, multiply_fresh_tile<6, 1>, multiply_fresh_tile<6, 2>},
};

// Transforms the sums of one output back and stores its pixels.
template <typename Tile>
static void winograd_back(const WinogradArgs& a, int plane, const float* sums, std::ptrdiff_t group_step) {
  constexpr int kVectors = Tile::kOut / 2;  // of one row of a group's pixels
  const ConvOutput out = a.out;  // a copy, which stores of vectors cannot change
  const Finish f = finish_of(out, plane);
  float* pixels = out.planes + plane * out.stride + out.origin;
  int tile_y = a.tile_begin / a.tiles_x, tile_x = a.tile_begin % a.tiles_x;
  const auto advance = [&](int tiles) {
    tile_x += tiles;
    if (tile_x == a.tiles_x) {
      tile_x = 0;
      ++tile_y;
    }
  };
  for (int tile = a.tile_begin; tile < a.tile_end; tile += kTileGroup, sums += kGroupFloats) {
    const int left = a.tile_end - tile;
    const int count = left < kTileGroup ? left : kTileGroup;
    // Neighbours in one tile row make one run of pixels a row. A group that runs over the end of a tile row goes
    // to a buffer first, and from there tile by tile.
    const bool whole = tile_x + count <= a.tiles_x;
    const int room = out.width - tile_x * Tile::kOut;
    float buffer[Tile::kOut * kVectors * kLanes];
    float* to = buffer;
    std::ptrdiff_t pitch = kVectors * kLanes;
    int run = kVectors * kLanes, height = Tile::kOut;
    if (whole) {
      to = pixels + static_cast<std::ptrdiff_t>(tile_y) * Tile::kOut * out.pitch + tile_x * Tile::kOut;
      pitch = out.pitch;
      run = room < count * Tile::kOut ? room : count * Tile::kOut;
      height = out.height - tile_y * Tile::kOut;
    }
    Tile::back(sums, group_step, [&](int v, const Vec* rows) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int y = 0; y < Tile::kOut; ++y) {
        if (y >= height) break;
        const Vec value = finish(rows[y], f, out);
        float* at = to + y * pitch + v * kLanes;
        // The same row of the next plane, which will be written next.
        __builtin_prefetch(at + out.stride, 1);
        if (run >= (v + 1) * kLanes) {
          store(at, value);
        } else if (run > v * kLanes) {
          store_first(at, value, run - v * kLanes);
        }
      }
    });
    if (whole) {
      advance(count);
      continue;
    }
    for (int t = 0; t < count; ++t) {
      const int x = tile_x * Tile::kOut;
      const int columns = out.width - x < Tile::kOut ? out.width - x : Tile::kOut;
      for (int y = 0; y < Tile::kOut && tile_y * Tile::kOut + y < out.height; ++y) {
        float* at = pixels + static_cast<std::ptrdiff_t>(tile_y * Tile::kOut + y) * out.pitch + x;
        const float* from = buffer + y * pitch + t * Tile::kOut;
        for (int i = 0; i < columns; ++i) at[i] = from[i];
      }
      advance(1);
    }
  }
}

// Rows whose gaps and margins this block zeroes: those whose first tile is in it.
template <typename Tile>
static void winograd_padding(const WinogradArgs& a, int plane) {
  const int row_begin = (a.tile_begin + a.tiles_x - 1) / a.tiles_x * Tile::kOut;
  const int row_end = (a.tile_end + a.tiles_x - 1) / a.tiles_x * Tile::kOut;
  if (row_begin >= a.out.height) return;
  zero_padding(a.out, plane, row_begin, row_end < a.out.height ? row_end : a.out.height, true);
}

// Sizes of one multiply call.
template <typename Tile>
struct Extent {
  int outs, panels, groups, last_vectors;
  std::ptrdiff_t tiles_step, sum_group, sum_out;

  Extent(const WinogradArgs& a, int plane_begin, int plane_end) {
    const int tiles = a.tile_end - a.tile_begin;
    outs = plane_end - plane_begin;
    panels = (outs + kWinogradPanel - 1) / kWinogradPanel;
    groups = (tiles + kTileGroup - 1) / kTileGroup;
    last_vectors = (tiles - 1) % kTileGroup < kQuads && Tile::kOut == 4 ? 1 : 2;
    tiles_step = static_cast<std::ptrdiff_t>(a.in_count) * kGroupFloats;
    sum_group = static_cast<std::ptrdiff_t>(groups) * kGroupFloats;
    sum_out = Tile::kGroups * sum_group;
  }
  int first(int panel) const { return panel * outs / panels; }
  int vectors(int group) const { return group + 1 == groups ? last_vectors : 2; }
};

// With weights that were transformed when the layer was planned.
template <typename Tile>
static void multiply_planned(const WinogradArgs& a, const Extent<Tile>& e, int plane_begin) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(a.in_channels) * 4;
  // Rows of weights of the panel in turn; `ahead` is the next turn's.
  const float* weights[kWinogradPanel + 1];
  const float* ahead[kWinogradPanel + 1];
  const auto rows_of = [&](int g, int panel, const float** rows) {
    for (int o = 0; o <= kWinogradPanel; ++o) {
      const int out = e.first(panel) + o < e.first(panel + 1) ? e.first(panel) + o : e.first(panel + 1) - 1;
      rows[o] = a.weights + (static_cast<std::ptrdiff_t>(a.out.list[plane_begin + out]) * Tile::kGroups + g) * row;
    }
  };
  rows_of(0, 0, ahead);
  for (int g = 0; g < Tile::kGroups; ++g) {
    const float* transformed = a.transformed + g * e.groups * e.tiles_step;
    for (int panel = 0; panel < e.panels; ++panel) {
      for (int o = 0; o <= kWinogradPanel; ++o) weights[o] = ahead[o];
      if (panel + 1 < e.panels) {
        rows_of(g, panel + 1, ahead);
      } else {
        rows_of(g + 1 < Tile::kGroups ? g + 1 : g, 0, ahead);
      }
      float* sums = a.sums + e.first(panel) * e.sum_out + g * e.sum_group;
      for (int t = 0; t < e.groups; ++t) {
        const int soon = 2 * t < kWinogradPanel ? 2 * t : kWinogradPanel - 1;
        kMultiply[e.first(panel + 1) - e.first(panel)][e.vectors(t)](weights, ahead + soon,
                                                                     transformed + t * e.tiles_step, a.in_list,
                                                                     a.in_count, sums + t * kGroupFloats, e.sum_out);
      }
    }
  }
}

// The active filters of a panel. All outputs inside: their streams are fetched side by side, and lines of the panel
// are written whole.
template <typename Tile, int kOuts>
static void transform_filters(const float* const* rows, const std::int32_t* list, int count, float* to,
                              std::ptrdiff_t step) {
  const float* filters[kOuts];
  for (int o = 0; o < kOuts; ++o) filters[o] = rows[o];
  for (int i = 0; i < count; ++i, to += kPanelFloats) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(list[i]) * 9;
#pragma GCC unroll 6
    for (int o = 0; o < kOuts; o += kQuads) Tile::filter(filters + o, at, to + o * 4, step);
  }
}

// With weights as they are: a panel's active ones are transformed into `panel`, [position group][input][out][4], a
// chunk of inputs at a time. Deep layers have many weights and few tiles; reading 9 numbers a pair instead of 36
// saves more than the transform costs.
template <typename Tile>
static void multiply_fresh(const WinogradArgs& a, const Extent<Tile>& e, int plane_begin) {
  const std::ptrdiff_t group_step = static_cast<std::ptrdiff_t>(a.chunk) * kPanelFloats;
  for (int chunk = 0; chunk < a.in_count || chunk == 0; chunk += a.chunk) {
    const int count = a.in_count - chunk < a.chunk ? a.in_count - chunk : a.chunk;
    for (int panel = 0; panel < e.panels; ++panel) {
      const int first = e.first(panel), outs = e.first(panel + 1) - first;
      const float* rows[kPanelQuads];
      for (int o = 0; o < kPanelQuads; ++o) {
        const int plane = plane_begin + first + (o < outs ? o : outs - 1);
        rows[o] = a.filters + static_cast<std::ptrdiff_t>(a.out.list[plane]) * a.in_channels * 9;
      }
      if (outs > kPanelQuads - kQuads) {
        transform_filters<Tile, kPanelQuads>(rows, a.in_list + chunk, count, a.panel, group_step);
      } else {
        transform_filters<Tile, kPanelQuads - kQuads>(rows, a.in_list + chunk, count, a.panel, group_step);
      }
      for (int g = 0; g < Tile::kGroups; ++g) {
        const float* transformed = a.transformed + g * e.groups * e.tiles_step + chunk * kGroupFloats;
        float* sums = a.sums + first * e.sum_out + g * e.sum_group;
        for (int t = 0; t < e.groups; ++t) {
          kMultiplyFresh[outs][e.vectors(t)](a.panel + g * group_step, transformed + t * e.tiles_step, count,
                                             chunk == 0, sums + t * kGroupFloats, e.sum_out);
        }
      }
    }
  }
}

template <typename Tile>
static void winograd_multiply(const WinogradArgs& a, int plane_begin, int plane_end) {
  const Extent<Tile> e(a, plane_begin, plane_end);
  if (a.filters) {
    multiply_fresh<Tile>(a, e, plane_begin);
  } else {
    multiply_planned<Tile>(a, e, plane_begin);
  }
  for (int o = 0; o < e.outs; ++o) {
    winograd_back<Tile>(a, plane_begin + o, a.sums + o * e.sum_out, e.sum_group);
    winograd_padding<Tile>(a, plane_begin + o);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
