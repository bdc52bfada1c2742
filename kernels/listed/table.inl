// A convolution at listed pixels: gather, then a matrix product. Each target_<set>.cpp includes this once, with its target on.
//
// Pixels run in the lanes. What lies under every tap of a strip of listed pixels is brought together, [input][tap][strip], and
// every panel of outputs then passes over it. A pixel that is not listed costs nothing on either side.
#include "machine/vec.h"

namespace penstock {
namespace PENSTOCK_ISA {

// Outputs that the inner loop computes together: with two vectors each, their sums fill the registers.
constexpr int kListedPanel = kRegisters == 32 ? 12 : 6;
constexpr int kListedStrip = 2 * kLanes;

// Whether the places of one vector are neighbours, which one load takes.
PENSTOCK_INLINE bool are_neighbours(const std::int32_t* places) {
  for (int i = 1; i < kLanes; ++i)
    if (places[i] != places[0] + i) return false;
  return true;
}

static void gather_strip(const ListedArgs& a, const std::int32_t* places, float* to) {
  const bool first = are_neighbours(places), second = are_neighbours(places + kLanes);
  const auto take = [](const float* from, const std::int32_t* at, bool together, float* lanes) {
    if (together) return store(lanes, load(from + at[0]));
    for (int i = 0; i < kLanes; ++i) lanes[i] = from[at[i]];
  };
  for (int slot = 0; slot < a.in_count; ++slot) {
    const float* const plane = a.input + slot * a.in_stride;
    for (int t = 0; t < a.tap_count; ++t, to += kListedStrip) {
      take(plane + a.taps[t], places, first, to);
      take(plane + a.taps[t], places + kLanes, second, to + kLanes);
    }
  }
}

// O outputs x 2 vectors of pixels. row: the first output's weights; to: where its sums go.
template <int O>
static void multiply_panel(const ListedArgs& a, const float* row, const float* bias, const float* packed, float* to) {
  const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(a.in_channels) * a.tap_count;
  Vec sums[O][2];
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) sums[o][0] = sums[o][1] = splat(bias[o]);
  for (int slot = 0; slot < a.in_count; ++slot) {
    const float* w = row + static_cast<std::ptrdiff_t>(a.in_list[slot]) * a.tap_count;
    for (int t = 0; t < a.tap_count; ++t, ++w, packed += kListedStrip) {
      const Vec x = load(packed), y = load(packed + kLanes);
#pragma GCC unroll 12
      for (int o = 0; o < O; ++o) {
        const Vec weight = splat(w[o * width]);
        sums[o][0] = fma(weight, x, sums[o][0]);
        sums[o][1] = fma(weight, y, sums[o][1]);
      }
    }
  }
#pragma GCC unroll 12
  for (int o = 0; o < O; ++o) {
    store(to + o * a.step, sums[o][0]);
    store(to + o * a.step + kLanes, sums[o][1]);
  }
}

// The panel of exactly `outs` outputs.
template <int O>
PENSTOCK_INLINE void multiply_some(const ListedArgs& a, int outs, const float* row, const float* bias, const float* packed,
                                   float* to) {
  if (outs == O) return multiply_panel<O>(a, row, bias, packed, to);
  if constexpr (O > 1) multiply_some<O - 1>(a, outs, row, bias, packed, to);
}

static void run_listed(const ListedArgs& a, int strip_begin, int strip_end, float* packed) {
  const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(a.in_channels) * a.tap_count;
  const std::ptrdiff_t room = static_cast<std::ptrdiff_t>(a.in_count) * a.tap_count * kListedStrip;
  for (int strip = strip_begin; strip < strip_end; ++strip)
    gather_strip(a, a.places + static_cast<std::ptrdiff_t>(strip) * kListedStrip, packed + (strip - strip_begin) * room);
  for (int first = 0; first < a.out_channels; first += kListedPanel) {
    const int outs = a.out_channels - first < kListedPanel ? a.out_channels - first : kListedPanel;
    for (int strip = strip_begin; strip < strip_end; ++strip)
      multiply_some<kListedPanel>(a, outs, a.weights + first * width, a.bias + first, packed + (strip - strip_begin) * room,
                                  a.sums + first * a.step + static_cast<std::ptrdiff_t>(strip) * kListedStrip);
  }
}

static const ListedKernels kListedTable = {kListedStrip, run_listed};

}  // namespace PENSTOCK_ISA

const ListedKernels* PENSTOCK_JOIN(listed_kernels_, PENSTOCK_ISA)() { return &PENSTOCK_ISA::kListedTable; }

}  // namespace penstock
