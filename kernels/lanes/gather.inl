// The weights of a panel's active channels, brought together by permutes: rows of vectors as multiply.inl reads them.
namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kGatherBatch = 16;

// Every line that a pick from here reads.
PENSTOCK_INLINE void fetch_pick(const float* from) {
  for (int line = 0; line < kPickSpan; line += 16) fetch_near(from + line);
}

// Rows of one vector, of `count` inputs and one tap; the group's channels begin at `in_base`, and the list goes on to `last`. Rows
// that come a batch later are fetched.
template <int N>
PENSTOCK_INLINE void gather_rows(const LanesGather& g, const LanesPiece* pieces, const std::int32_t* list, int in_base, int count,
                                 int last, std::ptrdiff_t first_row, std::ptrdiff_t in_rows, float* to, std::ptrdiff_t to_step) {
  const float* from[N];
  std::ptrdiff_t step[N];
  LanePlaces places[N];
  for (int n = 0; n < N; ++n) {
    step[n] = pieces[n].step * in_rows;
    from[n] = g.weights + pieces[n].from + (first_row - in_base * in_rows) * pieces[n].step;
    places[n] = load_places(pieces[n].places);
  }
  for (int i = 0; i < count; ++i, to += to_step) {
    const std::ptrdiff_t in = list[i], later = list[i + kGatherBatch < last ? i + kGatherBatch : last];
    Vec v = pick(from[0] + in * step[0], places[0]);
    fetch_pick(from[0] + later * step[0]);
    for (int n = 1; n < N; ++n) {
      v = v + pick(from[n] + in * step[n], places[n]);
      fetch_pick(from[n] + later * step[n]);
    }
    store(to, v);
  }
}

static void gather_panel(const LanesGather& g, const LanesPanel& panel, float* to) {
  const std::int32_t* const list = g.in_list + panel.in_first;
  const std::ptrdiff_t wide = std::ptrdiff_t{panel.vectors} * kLanes;
  // Rows are [tap][input], or for planes [input][tap].
  const std::ptrdiff_t tap_step = g.planes ? wide : wide * panel.in_count, in_step = g.planes ? wide * g.taps : wide;
  const std::ptrdiff_t in_rows = g.planes ? g.taps : 1, tap_rows = g.planes ? 1 : g.in_channels;
  for (int tap = 0; tap < g.taps; ++tap)
    for (int i = 0; i < panel.in_count; i += kGatherBatch) {
      const int count = panel.in_count - i < kGatherBatch ? panel.in_count - i : kGatherBatch;
      for (int v = 0; v < panel.vectors; ++v) {
        const std::int32_t begin = g.first_piece[panel.vector + v], n = g.first_piece[panel.vector + v + 1] - begin;
        const LanesPiece* const pieces = g.pieces + begin;
        float* const at = to + tap * tap_step + i * in_step + v * kLanes;
        const std::ptrdiff_t row = tap * tap_rows;
        const int last = panel.in_count - 1 - i;
        switch (n) {
          case 0:
            for (int k = 0; k < count; ++k) store(at + k * in_step, zero());
            break;
          case 1: gather_rows<1>(g, pieces, list + i, panel.in_base, count, last, row, in_rows, at, in_step); break;
          case 2: gather_rows<2>(g, pieces, list + i, panel.in_base, count, last, row, in_rows, at, in_step); break;
          case 3: gather_rows<3>(g, pieces, list + i, panel.in_base, count, last, row, in_rows, at, in_step); break;
          default:
            gather_rows<3>(g, pieces, list + i, panel.in_base, count, last, row, in_rows, at, in_step);
            for (int more = 3; more < n; ++more)
              for (int k = 0; k < count; ++k) {
                const LanesPiece& p = pieces[more];
                const float* const from = g.weights + p.from + (row + (list[i + k] - panel.in_base) * in_rows) * p.step;
                store(at + k * in_step, load(at + k * in_step) + pick(from, load_places(p.places)));
              }
        }
      }
    }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
