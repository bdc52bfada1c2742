// Winograd, second step: products summed over the active inputs, position group by position group.
namespace penstock {
namespace PENSTOCK_ISA {

// Rows of planned weights that one pass prefetches. One is enough for panels of 6 outputs, and two are slower. Panels of 12 (AVX-512)
// make half as many passes, so each has to prefetch two.
constexpr int kRowsAhead = kWideVectors ? 2 : 1;

// One position group of O outputs and V vectors of tiles, over all active inputs, for `groups` groups of tiles one after
// the other. With kFetch each group's pass fetches kRowsAhead rows of weights (`next`) that will be needed soon: the list
// leaves gaps in them that the hardware cannot foresee.
template <int O, int V, bool kFetch>
static void multiply_tiles(const float* const* weights, const float* const* next, const float* transformed,
                           std::ptrdiff_t tiles_step, int groups, const std::int32_t* in_list, int count, float* sums,
                           std::ptrdiff_t out_step) {
  const float* w[O];
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) w[o] = weights[o];
  for (int group = 0; group < groups; ++group, transformed += tiles_step, sums += kGroupFloats) {
    Vec acc[O][V];
#pragma GCC unroll 12
    for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[o][v] = zero();
    }
    const float* ahead[kRowsAhead];
    for (int r = 0; r < kRowsAhead; ++r) ahead[r] = kFetch ? next[group * kRowsAhead + r] : nullptr;
    const float* at_tiles = transformed;
    for (const std::int32_t *list = in_list, *end = list + count; list != end; ++list, at_tiles += kGroupFloats) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(*list) * 4;
      if (kFetch) {
        for (int r = 0; r < kRowsAhead; ++r) fetch(ahead[r] + at, false);
      }
      Vec tiles[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) tiles[v] = load(at_tiles + v * kLanes);
#pragma GCC unroll 12
      for (int o = 0; o < O; ++o) {
        const Vec quad = splat_quad(w[o] + at);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[o][v] = fma(quad, tiles[v], acc[o][v]);
      }
    }
#pragma GCC unroll 12
    for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(sums + o * out_step + v * kLanes, acc[o][v]);
    }
  }
}

using MultiplyFunction = void (*)(const float* const*, const float* const*, const float*, std::ptrdiff_t, int, const std::int32_t*,
                                  int, float*, std::ptrdiff_t);

template <bool kFetch>
struct PickMultiply {
  template <int kOuts, int kVectors>
  static constexpr MultiplyFunction of() {
    return multiply_tiles<kOuts, kVectors, kFetch>;
  }
};

template <bool kFetch>
static MultiplyFunction multiply_function(int outs, int vectors) {
  return pick_function<PickMultiply<kFetch>, 2>(outs, vectors);
}

// The same with a panel of weights packed as [input][out][4], in chunks of inputs that add up in `sums`. Each group's pass
// fetches what will be needed soon, with kFetch: a line for every two inputs, or kManyLines.
template <int O, int V, bool kFetch>
static void multiply_fresh_tiles(const float* panel, const float* transformed, std::ptrdiff_t tiles_step, int groups, int count,
                                 bool first, float* sums, std::ptrdiff_t out_step, LinesAhead* ahead) {
  LinesAhead lines = kFetch ? *ahead : LinesAhead{nullptr, nullptr, 0, false};  // a copy, which stores of vectors cannot change
  for (int group = 0; group < groups; ++group, transformed += tiles_step, sums += kGroupFloats) {
    Vec acc[O][V];
#pragma GCC unroll 12
    for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[o][v] = first ? zero() : load(sums + o * out_step + v * kLanes);
    }
    const float* weights = panel;
    const float* at_tiles = transformed;
    const auto step = [&]() __attribute__((always_inline)) {
      Vec tiles[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) tiles[v] = load(at_tiles + v * kLanes);
#pragma GCC unroll 12
      for (int o = 0; o < O; ++o) {
        const Vec quad = splat_quad(weights + o * 4);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[o][v] = fma(quad, tiles[v], acc[o][v]);
      }
      weights += kPanelFloats;
      at_tiles += kGroupFloats;
    };
    int left = count;
    if (kFetch) {
      for (; left >= 2; left -= 2) {
        lines.next();
        if (lines.many) {
          lines.next();
          lines.next();
        }
        step();
        if (lines.many) {
          lines.next();
          lines.next();
          lines.next();
        }
        step();
      }
    }
    for (; left > 0; --left) step();
#pragma GCC unroll 12
    for (int o = 0; o < O; ++o) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(sums + o * out_step + v * kLanes, acc[o][v]);
    }
  }
  if (kFetch) *ahead = lines;
}

using MultiplyFreshFunction = void (*)(const float*, const float*, std::ptrdiff_t, int, int, bool, float*, std::ptrdiff_t,
                                       LinesAhead*);

template <bool kFetch>
struct PickFresh {
  template <int kOuts, int kVectors>
  static constexpr MultiplyFreshFunction of() {
    return multiply_fresh_tiles<kOuts, kVectors, kFetch>;
  }
};

template <bool kFetch>
static MultiplyFreshFunction multiply_fresh_function(int outs, int vectors) {
  return pick_function<PickFresh<kFetch>, 2>(outs, vectors);
}

// Sizes of one multiply call.
template <typename Tile>
struct Extent {
  int outs, panels, groups, last_vectors;
  std::ptrdiff_t tiles_step, sum_group, sum_out;

  Extent(const WinogradArgs& a, int plane_begin, int plane_end) {
    const int tiles = a.tile_end - a.tile_begin;
    outs = plane_end - plane_begin;
    panels = (outs + kPanel - 1) / kPanel;
    groups = (tiles + kTileGroup - 1) / kTileGroup;
    last_vectors = (tiles - 1) % kTileGroup < kQuads && Tile::kOut == 4 ? 1 : 2;
    tiles_step = a.tiles_step;
    sum_group = static_cast<std::ptrdiff_t>(groups) * kGroupFloats;
    sum_out = Tile::kGroups * sum_group;
  }
  // Panels are about equal, but begin at multiples of kQuads outputs, because kQuads filters are transformed at a time.
  int first(int panel) const {
    const int whole = (panel * outs / panels + kQuads - 1) / kQuads * kQuads;
    return whole < outs ? whole : outs;
  }
  int count(int panel) const { return first(panel + 1) - first(panel); }
  // Output o of a panel; past the panel's end its last one stands in.
  int out(int panel, int o) const { return first(panel) + (o < count(panel) ? o : count(panel) - 1); }
  // Groups of tiles that fill both vectors; the last one may fill one only.
  int whole() const { return last_vectors == 2 ? groups : groups - 1; }
};

// With weights that were transformed when the layer was planned.
template <typename Tile>
static void multiply_planned(const WinogradArgs& a, const Extent<Tile>& e, int plane_begin) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(a.in_channels) * 4;
  // Where each output's weights begin; the last stands in for one more, because rows may be fetched in pairs.
  const float* begins[kWinogradOuts + 1];
  for (int o = 0; o < e.outs; ++o) {
    begins[o] = a.weights + static_cast<std::ptrdiff_t>(a.out.list[plane_begin + o]) * Tile::kGroups * row;
  }
  begins[e.outs] = begins[e.outs - 1];
  // Rows of weights of the panel in turn; `ahead` is the next turn's.
  const float* weights[kPanel];
  const float* ahead[kPanel + 1];
  for (int g = 0; g < Tile::kGroups; ++g) {
    const float* transformed = a.transformed + g * e.groups * e.tiles_step;
    for (int panel = 0; panel < e.panels; ++panel) {
      const int first = e.first(panel), outs = e.count(panel);
      const bool more = panel + 1 < e.panels;
      const int next_first = more ? first + outs : 0, next_outs = more ? e.count(panel + 1) : e.count(0);
      const std::ptrdiff_t next_row = more || g + 1 == Tile::kGroups ? g * row : (g + 1) * row;
      for (int o = 0; o < outs; ++o) weights[o] = begins[first + o] + g * row;
      for (int o = 0; o <= next_outs; ++o) ahead[o] = begins[next_first + o] + next_row;
      float* sums = a.sums + first * e.sum_out + g * e.sum_group;
      const auto multiply = [&](MultiplyFunction function, int begin, int end) {
        if (begin == end) return;
        function(weights, ahead, transformed + begin * e.tiles_step, e.tiles_step, end - begin, a.in_list, a.in_count,
                 sums + begin * kGroupFloats, e.sum_out);
      };
      // The first passes fetch the next turn's rows; the last group of tiles may be half full.
      const int whole = e.whole();
      const int to_fetch = (next_outs + kRowsAhead - 1) / kRowsAhead, fetching = to_fetch < whole ? to_fetch : whole;
      multiply(multiply_function<true>(outs, 2), 0, fetching);
      multiply(multiply_function<false>(outs, 2), fetching, whole);
      multiply(multiply_function<false>(outs, 1), whole, e.groups);
    }
  }
}

// A panel's weights can come from two formats. Here: untransformed filters, 9 floats each, the fewest bytes if every input is active.
template <typename Tile>
struct FromFilters {
  static constexpr int kFloats = 9;
  PENSTOCK_INLINE void prepare(const float* const* rows, std::ptrdiff_t at, float* to, std::ptrdiff_t step) {
    Tile::filter(rows, at, to, step);
  }
};

// Here: weights transformed for tiles of 2, one cache line for each pair of channels. When inputs are skipped this touches no more
// cache lines than the filters would, and only quads have to be moved to their places.
struct FromLines {
  static constexpr int kFloats = 16;
  PENSTOCK_INLINE void prepare(const float* const* rows, std::ptrdiff_t at, float* to, std::ptrdiff_t step) {
    Vec groups[4];
    load_lines(rows, at, groups);
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) store(to + g * step, groups[g]);
  }
};

// The weights of the output in plane `plane`.
template <typename Source>
static const float* weights_of(const WinogradArgs& a, int plane) {
  return a.weights + static_cast<std::ptrdiff_t>(a.out.list[plane]) * a.in_channels * Source::kFloats;
}

// Prepares the active weights of kOuts outputs. Outputs are the inner loop: the hardware then prefetches their streams side by side,
// and whole cache lines of the panel are written.
template <typename Source, int kOuts>
static void prepare_panel_of(const float* const* rows, const std::int32_t* list, int count, float* to, std::ptrdiff_t step) {
  const float* filters[kOuts];
  for (int o = 0; o < kOuts; ++o) filters[o] = rows[o];
  for (int i = 0; i < count; ++i, to += kPanelFloats) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(list[i]) * Source::kFloats;
#pragma GCC unroll 6
    for (int o = 0; o < kOuts; o += kQuads) Source::prepare(filters + o, at, to + o * 4, step);
  }
}

// The same for `outs` outputs, rounded up to whole vectors.
template <typename Source, int kOuts = kPanelQuads>
static void prepare_panel(int outs, const float* const* rows, const std::int32_t* list, int count, float* to, std::ptrdiff_t step) {
  if constexpr (kOuts > kQuads) {
    if (outs <= kOuts - kQuads) return prepare_panel<Source, kOuts - kQuads>(outs, rows, list, count, to, step);
  }
  prepare_panel_of<Source, kOuts>(rows, list, count, to, step);
}

// When many blocks of tiles use the same weights, all active filters are first transformed into one dense array. Reading weights that
// were transformed at plan time would move four times as many bytes, and with skipped inputs a cache line (four quads) would hold
// little more than one quad that is used.
template <typename Tile>
static void winograd_gather(const WinogradArgs& a, int plane_begin, int plane_end, float* to) {
  const Extent<Tile> e(a, plane_begin, plane_end);
  const std::ptrdiff_t group_floats = static_cast<std::ptrdiff_t>(a.in_count) * kPanelFloats;
  for (int panel = 0; panel < e.panels; ++panel, to += Tile::kGroups * group_floats) {
    const float* rows[kPanelQuads];
    for (int o = 0; o < kPanelQuads; ++o) rows[o] = weights_of<FromFilters<Tile>>(a, plane_begin + e.out(panel, o));
    prepare_panel<FromFilters<Tile>>(e.count(panel), rows, a.in_list, a.in_count, to, group_floats);
  }
}

// With weights that `winograd_gather` has transformed.
template <typename Tile>
static void multiply_gathered(const WinogradArgs& a, const Extent<Tile>& e) {
  const std::ptrdiff_t group_floats = static_cast<std::ptrdiff_t>(a.in_count) * kPanelFloats;
  const int whole = e.whole();
  for (int g = 0; g < Tile::kGroups; ++g) {
    const float* transformed = a.transformed + g * e.groups * e.tiles_step;
    for (int panel = 0; panel < e.panels; ++panel) {
      const int outs = e.count(panel);
      const float* weights = a.weights + (static_cast<std::ptrdiff_t>(panel) * Tile::kGroups + g) * group_floats;
      float* sums = a.sums + e.first(panel) * e.sum_out + g * e.sum_group;
      const auto multiply = [&](int vectors, int begin, int end) {
        if (begin == end) return;
        multiply_fresh_function<false>(outs, vectors)(weights, transformed + begin * e.tiles_step, e.tiles_step, end - begin,
                                                      a.in_count, true, sums + begin * kGroupFloats, e.sum_out, nullptr);
      };
      multiply(2, 0, whole);
      multiply(1, whole, e.groups);
    }
  }
}

// A panel's active weights are prepared in `panel`, [position group][input][out][4], a chunk of inputs at a time. Deep layers
// have many weights and few tiles; reading a filter's 9 numbers instead of 36 saves more than the transform costs.
template <typename Tile, typename Source>
static void multiply_fresh(const WinogradArgs& a, const Extent<Tile>& e, int plane_begin) {
  const std::ptrdiff_t group_step = static_cast<std::ptrdiff_t>(a.chunk) * kPanelFloats;
  const int chunks = a.in_count > a.chunk ? (a.in_count + a.chunk - 1) / a.chunk : 1;
  const auto begin_of = [&](int chunk) { return static_cast<int>(static_cast<std::int64_t>(chunk) * a.in_count / chunks); };
  const bool gaps = a.in_count < a.in_channels, many = kWideVectors && a.fetches_many;
  const int whole = e.whole();
  // Which cache lines of the filters are used: in even chunks and in odd ones. After the last chunk comes the first again.
  UsedLines<kWinogradChunk> used[2];
  const auto find_used = [&](int chunk, UsedLines<kWinogradChunk>& lines) {
    lines.find(a.in_list + begin_of(chunk), begin_of(chunk + 1) - begin_of(chunk), 0, Source::kFloats,
               lines_fetched(a.chunk, many));
  };
  if (gaps) find_used(0, used[0]);
  // One address in every cache line of a row of `later`. When nothing is left to prefetch, the last line is asked for again.
  std::int32_t later_places[kLaterFloats / kLine + kManyLines / 2 * kWinogradChunk];
  const int later_room = a.later.count == 0 ? 0 : a.later.lines + lines_fetched(a.chunk, many);
  for (int i = 0; i < later_room; ++i) later_places[i] = (i < a.later.lines ? i : a.later.lines - 1) * kLine;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int begin = begin_of(chunk), count = begin_of(chunk + 1) - begin;
    const auto& used_now = used[chunk % 2];
    auto& used_next = used[chunks > 1 ? 1 - chunk % 2 : 0];
    if (gaps && chunks > 1) find_used(chunk + 1 < chunks ? chunk + 1 : 0, used_next);
    for (int panel = 0; panel < e.panels; ++panel) {
      const int first = e.first(panel), outs = e.count(panel);
      const float* rows[kPanelQuads];
      for (int o = 0; o < kPanelQuads; ++o) rows[o] = weights_of<Source>(a, plane_begin + e.out(panel, o));
      prepare_panel<Source>(outs, rows, a.in_list + begin, count, a.panel, group_step);
      // While this panel is multiplied, the filters of the next one are prefetched: they belong to the same chunk, to the next
      // chunk, or to the outputs after these. Without skipped inputs the hardware does this itself. The rows of `later` follow, a
      // share in each turn.
      const bool more = panel + 1 < e.panels, wraps = !more && chunk + 1 < chunks;
      const int next = wraps ? plane_begin : plane_begin + first + outs, left = a.out.count - next;
      const int panel_outs = more ? e.count(panel + 1) : e.count(0);
      const int next_outs = !gaps ? 0 : panel_outs < left ? panel_outs : left;
      const float* next_rows[kPanel];
      for (int o = 0; o < next_outs; ++o) next_rows[o] = weights_of<Source>(a, next + o);
      const auto& lines = more ? used_now : used_next;
      LinesAhead ahead{next_rows, lines.places, next_outs, many};
      const LaterRows share = share_of(a.later, chunk * e.panels + panel, chunks * e.panels);
      LinesAhead later{share.rows, later_places, share.count, many};
      const int each = lines_fetched(count, many);
      int passes = passes_of(next_outs * lines.count, each, whole * Tile::kGroups);
      int later_passes = passes_of(share.count * share.lines, each, whole * Tile::kGroups - passes);
      for (int g = 0; g < Tile::kGroups; ++g) {
        const float* transformed = a.transformed + g * e.groups * e.tiles_step + begin * kGroupFloats;
        float* sums = a.sums + first * e.sum_out + g * e.sum_group;
        const auto multiply = [&](MultiplyFreshFunction function, int from, int to, LinesAhead* fetched) {
          if (from == to) return;
          function(a.panel + g * group_step, transformed + from * e.tiles_step, e.tiles_step, to - from, count, chunk == 0,
                   sums + from * kGroupFloats, e.sum_out, fetched);
        };
        const int own = passes < whole ? passes : whole;
        const int others = later_passes < whole - own ? later_passes : whole - own;
        multiply(multiply_fresh_function<true>(outs, 2), 0, own, &ahead);
        multiply(multiply_fresh_function<true>(outs, 2), own, own + others, &later);
        multiply(multiply_fresh_function<false>(outs, 2), own + others, whole, nullptr);
        multiply(multiply_fresh_function<false>(outs, 1), whole, e.groups, nullptr);
        passes -= own;
        later_passes -= others;
      }
    }
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
