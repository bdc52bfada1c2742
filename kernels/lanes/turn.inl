// The weights of a panel's active outputs, turned from rows as they were given: [output][input][tap].
//
// Each output's row is read from one end to the other, which the hardware prefetcher foresees, and rows of other outputs are not
// touched. Picking (gather.inl) reads every output of the active inputs instead.
namespace penstock {
namespace PENSTOCK_ISA {

// `columns` numbers of each output of one vector. Column c becomes row places[c] of `to`. Without kWhole only `outs` lanes have
// outputs; the others get zeros.
template <bool kWhole>
PENSTOCK_INLINE void turn_vector(const float* const (*rows)[kLanes / 4], int outs, int columns, const std::int32_t* places,
                                 float* to, std::ptrdiff_t step) {
  float mask[kLanes];
  const std::int32_t ones = -1;
  for (int lane = 0; lane < kLanes; ++lane) {
    mask[lane] = 0.0f;
    if (lane < outs) __builtin_memcpy(&mask[lane], &ones, sizeof ones);
  }
  for (int c = 0; c < columns; c += kTurnColumns) {
    // The last columns may be turned twice.
    const int at = c + kTurnColumns <= columns ? c : columns - kTurnColumns;
    Vec lines[4][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) load_lines(rows[j], at, lines[j]);
    const std::int32_t* const place = places + at;
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const Vec low = zip_lo(lines[0][g], lines[1][g]), high = zip_hi(lines[0][g], lines[1][g]);
      const Vec low_too = zip_lo(lines[2][g], lines[3][g]), high_too = zip_hi(lines[2][g], lines[3][g]);
      const Vec turned[4] = {join_lo(low, low_too), join_hi(low, low_too), join_lo(high, high_too), join_hi(high, high_too)};
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        float* const row = to + place[4 * g + k] * step;
        store(row, kWhole ? turned[k] : keep(turned[k], mask));
      }
    }
  }
}

static void turn_panel(const LanesTurn& t, const LanesPanel& panel, float* to) {
  const std::ptrdiff_t step = std::ptrdiff_t{panel.vectors} * kLanes;
  const std::int32_t* const places = t.places + static_cast<std::ptrdiff_t>(panel.in_base) * t.taps;
  for (int v = 0; v < panel.vectors; ++v) {
    const std::int32_t* const list = t.out_list + panel.first + v * kLanes;
    const int left = panel.outs - v * kLanes, outs = left < kLanes ? left : kLanes;
    // Four rows that come one after the other stand side by side in a quad of lanes.
    const float* rows[4][kLanes / 4];
    for (int lane = 0; lane < kLanes; ++lane) rows[lane % 4][lane / 4] = t.weights + list[lane < outs ? lane : 0] * t.row;
    if (outs == kLanes) turn_vector<true>(rows, outs, t.columns, places, to + v * kLanes, step);
    else turn_vector<false>(rows, outs, t.columns, places, to + v * kLanes, step);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
