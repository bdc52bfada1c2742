// Direct convolution over unit-stride planes (the input's own, or cut from it): any kernel, groups, channel lists.
//
// Vectors run along the pixels of a plane, weights stay in place and are splatted one by one, so leaving a channel
// out costs nothing on either side. A tile of O output channels x V vectors lives in registers.
namespace penstock {
namespace PENSTOCK_ISA {

// Taps known at compile time let the compiler fold offsets into addresses.
enum class Taps { three_by_three, any };

struct DirectTile {
  const float* weights[kDirectPanel];  // row of each output channel, at its group's first input
  const float* input;                  // at pixel q of slot 0, tap offset not applied
  const std::int32_t* list;            // channels of the group's slots
  int count;
  int first_channel;  // of the group
};

template <int O, int V>
PENSTOCK_INLINE void accumulate(Vec (&acc)[O][V], const float* x, const float* const* weights, std::ptrdiff_t weight) {
  Vec pixels[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) pixels[v] = load(x + v * kLanes);
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
    const Vec w = splat(weights[o][weight]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[o][v] = fma(w, pixels[v], acc[o][v]);
  }
}

template <int O, int V, Taps kTaps>
PENSTOCK_INLINE void sum_channels(const DirectArgs& a, const DirectTile& tile, Vec (&acc)[O][V]) {
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[o][v] = zero();
  }
  const float* weights[O];
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) weights[o] = tile.weights[o];
  const float* plane = tile.input;
  const std::ptrdiff_t stride = a.stride;
  const std::int32_t* list = tile.list;
  const std::int32_t* end = list + tile.count;
  const int first = tile.first_channel;
  if (kTaps == Taps::three_by_three) {
    const float* x = plane + a.taps[0];
    const std::ptrdiff_t pitch = a.pitch;
    for (; list != end; ++list, x += stride) {
      const std::ptrdiff_t w = static_cast<std::ptrdiff_t>(*list - first) * 9;
#pragma GCC unroll 3
      for (int row = 0; row < 3; ++row) {
#pragma GCC unroll 3
        for (int col = 0; col < 3; ++col) accumulate<O, V>(acc, x + row * pitch + col, weights, w + row * 3 + col);
      }
    }
  } else {
    for (; list != end; ++list, plane += stride) {
      const std::ptrdiff_t w = static_cast<std::ptrdiff_t>(*list - first) * a.tap_count;
      for (int t = 0; t < a.tap_count; ++t) accumulate<O, V>(acc, plane + a.taps[t], weights, w + t);
    }
  }
}

// For the few tiles with a row's end inside a vector, or with an activation that is more than a clamp. Sums come from memory,
// [output][vector], so that one function serves every size of the register tile.
__attribute__((noinline)) static void store_rest(const DirectArgs& a, const float* sums, int outs, int vectors, int plane,
                                                 std::ptrdiff_t at, int pixels, const float* mask) {
  for (int o = 0; o < outs; ++o) {
    const Finish f = finish_of(a.out, plane + o);
    float* to = a.out.planes + (plane + o) * a.out.stride + a.out.origin + at;
    for (int v = 0; v < vectors; ++v, sums += kLanes) {
      Vec value = finish(load(sums), f, a.out);
      if (mask) value = keep(value, mask + v * kLanes);
      if (pixels >= (v + 1) * kLanes) {
        store(to + v * kLanes, value);
      } else {
        store_first(to + v * kLanes, value, pixels - v * kLanes);
      }
    }
  }
}

// Computes `pixels` (at most V vectors) consecutive pixels of O output planes, starting at output offset `at`.
// `mask` points to the mask of the first pixel, or is null when all of them are inside the row.
template <int O, int V, Taps kTaps>
static void compute_tile(const DirectArgs& a, const DirectTile& tile, int plane, std::ptrdiff_t at, int pixels, const float* mask) {
  Vec acc[O][V];
  sum_channels<O, V, kTaps>(a, tile, acc);
  if (pixels < V * kLanes || a.out.activation >= 0) {
    float sums[O * V * kLanes];
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(sums + (o * V + v) * kLanes, acc[o][v]);
    }
    return store_rest(a, sums, O, V, plane, at, pixels, mask);
  }
#pragma GCC unroll 8
  for (int o = 0; o < O; ++o) {
    const Finish f = finish_of(a.out, plane + o);
    float* to = a.out.planes + (plane + o) * a.out.stride + a.out.origin + at;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Vec value = finish_clamped(acc[o][v], f, a.out);
      store(to + v * kLanes, mask ? keep(value, mask + v * kLanes) : value);
    }
  }
}

using TileFunction = void (*)(const DirectArgs&, const DirectTile&, int plane, std::ptrdiff_t at, int pixels, const float* mask);

// Tile widths by number of output channels: as many accumulators as fit beside the operands in 16 registers.
constexpr int kTileVectors[kDirectPanel + 1] = {0, 8, 5, 3, 3, 2, 2};

template <Taps kTaps>
static TileFunction tile_function(int outs, int vectors) {
#define PENSTOCK_TILE(O, V) \
  case O * 16 + V: return compute_tile<O, V, kTaps>;
  switch (outs * 16 + vectors) {
    // clang-format off
    PENSTOCK_TILE(1, 1) PENSTOCK_TILE(1, 2) PENSTOCK_TILE(1, 3) PENSTOCK_TILE(1, 4)
    PENSTOCK_TILE(1, 5) PENSTOCK_TILE(1, 6) PENSTOCK_TILE(1, 7) PENSTOCK_TILE(1, 8)
    PENSTOCK_TILE(2, 1) PENSTOCK_TILE(2, 2) PENSTOCK_TILE(2, 3) PENSTOCK_TILE(2, 4) PENSTOCK_TILE(2, 5)
    PENSTOCK_TILE(3, 1) PENSTOCK_TILE(3, 2) PENSTOCK_TILE(3, 3)
    PENSTOCK_TILE(4, 1) PENSTOCK_TILE(4, 2) PENSTOCK_TILE(4, 3)
    PENSTOCK_TILE(5, 1) PENSTOCK_TILE(5, 2)
    PENSTOCK_TILE(6, 1) PENSTOCK_TILE(6, 2)
    // clang-format on
  }
#undef PENSTOCK_TILE
  return nullptr;
}

static TileFunction tile_function(const DirectArgs& a, int outs, int vectors) {
  if (a.tap_rows == 3) return tile_function<Taps::three_by_three>(outs, vectors);
  return tile_function<Taps::any>(outs, vectors);
}

// Pixels [at_begin, at_end) of one line: a row, or in flat mode many rows with their gaps.
static void compute_line(const DirectArgs& a, DirectTile& tile, int plane, int outs, const float* line_input,
                         std::ptrdiff_t at_begin, int pixels, const float* mask) {
  const int widest = kTileVectors[outs];
  int done = 0, mask_x = 0;
  while (done < pixels) {
    const int left = pixels - done;
    int vectors = (left + kLanes - 1) / kLanes;
    if (vectors > widest) {
      // Two near-equal last strips beat a full one and a sliver.
      vectors = vectors < 2 * widest ? (vectors + 1) / 2 : widest;
    }
    const int n = left < vectors * kLanes ? left : vectors * kLanes;
    tile.input = line_input + done;
    tile_function(a, outs, vectors)(a, tile, plane, at_begin + done, n, mask ? mask + mask_x : nullptr);
    done += n;
    mask_x += n;
    while (mask_x >= a.pitch) mask_x -= a.pitch;
  }
}

// Output planes [plane, plane + outs), all of group `group`, rows [row_begin, row_end).
static void compute_panel(const DirectArgs& a, int plane, int outs, int group, int slot_begin, int slot_end, int row_begin,
                          int row_end) {
  DirectTile tile;
  tile.first_channel = group * a.in_group;
  tile.list = a.in_list + slot_begin;
  tile.count = slot_end - slot_begin;
  for (int o = 0; o < outs; ++o) {
    tile.weights[o] = a.weights + static_cast<std::ptrdiff_t>(a.out.list[plane + o]) * a.in_group * a.tap_count;
  }
  const float* input = a.input + slot_begin * a.stride;
  const ConvOutput& out = a.out;
  if (a.flat) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row_begin) * a.pitch;
    // The gap after the last row belongs to the bottom margin, which zero_padding writes.
    const int gap = row_end == out.height ? a.pitch - out.width : 0;
    compute_line(a, tile, plane, outs, input + at, at, (row_end - row_begin) * a.pitch - gap, a.mask);
  } else {
    for (int y = row_begin; y < row_end; ++y) {
      compute_line(a, tile, plane, outs, input + static_cast<std::ptrdiff_t>(y) * a.pitch,
                   static_cast<std::ptrdiff_t>(y) * out.pitch, out.width, nullptr);
    }
  }
  for (int o = 0; o < outs; ++o) zero_padding(out, plane + o, row_begin, row_end, !a.flat);
}

// Units are panel-major. With one group a panel is an even share of the active outputs; with several it is the
// active part of a fixed run of at most kDirectPanel channels of a group, found by search.
static void run_direct(const DirectArgs& a, int unit_begin, int unit_end) {
  const ConvOutput& out = a.out;
  const int blocks = (out.height + a.block_rows - 1) / a.block_rows;
  const int runs = (a.out_group + kDirectPanel - 1) / kDirectPanel;
  const int panels = (out.count + kDirectPanel - 1) / kDirectPanel;
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    const int panel = unit / blocks;
    const int row_begin = unit % blocks * a.block_rows;
    const int row_end = row_begin + a.block_rows < out.height ? row_begin + a.block_rows : out.height;
    if (a.groups == 1) {
      const int begin = static_cast<int>(static_cast<std::int64_t>(panel) * out.count / panels);
      const int end = static_cast<int>(static_cast<std::int64_t>(panel + 1) * out.count / panels);
      compute_panel(a, begin, end - begin, 0, 0, a.in_count, row_begin, row_end);
      continue;
    }
    const int group = panel / runs;
    const int first = group * a.out_group + panel % runs * kDirectPanel;
    const int last = first + kDirectPanel < (group + 1) * a.out_group ? first + kDirectPanel : (group + 1) * a.out_group;
    const int begin = lower_bound(out.list, out.count, first);
    const int end = lower_bound(out.list, out.count, last);
    if (begin == end) continue;
    const int slot_begin = lower_bound(a.in_list, a.in_count, group * a.in_group);
    const int slot_end = lower_bound(a.in_list, a.in_count, (group + 1) * a.in_group);
    compute_panel(a, begin, end - begin, group, slot_begin, slot_end, row_begin, row_end);
  }
}

static void split_phase(const SplitArgs& a, const ConvPhase& phase, const float* pixels, float* cut) {
  // Columns [x_begin, x_end) of the cut lie inside the plane.
  int x_begin = 0;
  while (x_begin < phase.cols && x_begin * a.stride_w + phase.first_x < 0) ++x_begin;
  int x_end = phase.cols;
  while (x_end > x_begin && (x_end - 1) * a.stride_w + phase.first_x >= a.width) --x_end;
  for (int r = 0; r < phase.rows; ++r) {
    float* to = cut + static_cast<std::ptrdiff_t>(r) * a.cut_pitch;
    const int y = r * a.stride_h + phase.first_y;
    if (y < 0 || y >= a.height) {
      for (int x = 0; x < a.cut_pitch; ++x) to[x] = 0.0f;
      continue;
    }
    const float* from = pixels + static_cast<std::ptrdiff_t>(y) * a.in_pitch + phase.first_x;
    for (int x = 0; x < x_begin; ++x) to[x] = 0.0f;
    if (a.stride_w == 2) {
      int x = x_begin;
      for (; x + kLanes <= x_end; x += kLanes) store(to + x, load_even(from + 2 * x));
      for (; x < x_end; ++x) to[x] = from[2 * x];
    } else {
      for (int x = x_begin; x < x_end; ++x) to[x] = from[static_cast<std::ptrdiff_t>(x) * a.stride_w];
    }
    for (int x = x_end; x < a.cut_pitch; ++x) to[x] = 0.0f;
  }
}

static void run_split(const SplitArgs& a, int slot_begin, int slot_end) {
  for (int slot = slot_begin; slot < slot_end; ++slot) {
    for (int p = 0; p < a.phase_count; ++p) {
      split_phase(a, a.phases[p], a.input + slot * a.in_stride + a.in_origin, a.cut + slot * a.cut_stride + a.phases[p].offset);
    }
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
