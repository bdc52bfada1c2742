// Fetching weights ahead. A list of channels leaves gaps in them that the hardware cannot foresee.
//
// What is fetched waits in the few line buffers that the product's own loads need too, so it is fetched evenly: one line for
// every 24 products or more. Twice as many, or all of them in the first passes, gain nothing or lose, for then the product waits.
// Processors that keep many lines on their way (fetches_many) take six times as many with AVX-512, which has half as many
// passes for panels twice as wide: all that will be needed, by this convolution and by what comes next.
#pragma once
#include "conv/kernels.h"
#include "machine/prefetch.h"

namespace penstock {
namespace PENSTOCK_ISA {

// To the second-level cache: more is fetched at a time than the first one holds. On AVX-512, where panels are twice as wide,
// to the first one, unless `many` are fetched.
PENSTOCK_INLINE void fetch(const float* p, bool many) {
  if (kWideVectors && !many) {
    fetch_near(p);
  } else {
    fetch_far(p);
  }
}

// The pixels from column `x` on that a tile row's next strip will write, of planes [plane, plane + outs). Kernels write more
// streams at a time than the hardware foresees.
PENSTOCK_INLINE void fetch_next_strip(const ConvOutput& out, int plane, int outs, int tile_y, int x) {
  for (int o = 0; o < outs; ++o) {
    const float* next =
        out.planes + (plane + o) * out.stride + out.origin + static_cast<std::ptrdiff_t>(tile_y) * kRowsOut * out.pitch + x;
    for (int i = 0; i < kRowsOut; ++i) fetch_to_write(next + i * static_cast<std::ptrdiff_t>(out.pitch));
  }
}

constexpr int kLine = 16;  // floats of a cache line

constexpr int kManyLines = 6;  // fetched for every two inputs, where many are; one elsewhere

// What a pass fetches: floats of a row of weights, one of each cache line.
struct Ahead {
  const float* row;
  const std::int32_t* places;
};

// Places in a row of weights, one in every cache line that the active inputs lie in (if rows begin at whole lines).
template <int kMost>
struct UsedLines {
  std::int32_t places[(2 + kManyLines / 2) * kMost];
  int count = 0;

  // Of `inputs` channels of `list`, at most kMost, the row beginning with channel `first`; `size` floats each, at most a line.
  // A pass may begin at any of the lines and has up to `turns` turns, at most kManyLines for two inputs of kMost.
  void find(const std::int32_t* list, int inputs, int first, int size, int turns) {
    int last = -1;
    count = 0;
    for (int i = 0; i < inputs; ++i) {
      const int begin = (list[i] - first) * size, end = begin + size - 1;
      if (begin / kLine != last) places[count++] = begin;
      last = end / kLine;
      if (begin / kLine != last) places[count++] = end;
    }
    if (count == 0) return;
    for (int i = 0; i < turns; ++i) places[count + i] = places[count - 1];
  }
};

// What each of at most `most` passes fetches, with `turns` turns each.
template <int kMost>
struct AheadOf {
  Ahead passes[kMost];
  int count = 0;
  const int most, turns;

  AheadOf(int most, int turns) : most(turns == 0 ? 0 : most < kMost ? most : kMost), turns(turns) {}

  template <typename Lines>
  void add(const float* row, const Lines& lines) {
    if (most == 0) return;
    const int parts = (lines.count + turns - 1) / turns;
    for (int part = 0; part < parts && count < most; ++part) passes[count++] = {row, lines.places + lines.count * part / parts};
  }
};

// Lines of several rows, handed out one by one: the same place of every row, then the next place. Nothing branches, for a wrong
// guess would take longer than the fetching.
struct LinesAhead {
  const float* const* rows;
  const std::int32_t* place;
  int count;  // rows
  bool many;
  int row = 0;

  __attribute__((always_inline)) void next() {
    fetch(rows[row] + *place, many);
    const bool last = ++row == count;
    row = last ? 0 : row;
    place += last;
  }
};

// The share of `later` that belongs to step `index` of `count`.
PENSTOCK_INLINE LaterRows share_of(const LaterRows& later, int index, int count) {
  const auto row = [&](int i) { return static_cast<int>(static_cast<std::int64_t>(i) * later.count / count); };
  return {later.rows + row(index), row(index + 1) - row(index), later.lines};
}

// Lines that a pass over so many inputs fetches.
PENSTOCK_INLINE int lines_fetched(int inputs, bool many) { return inputs / 2 * (many ? kManyLines : 1); }

// Passes that fetch so many lines, if there are `most`.
PENSTOCK_INLINE int passes_of(int lines, int each, int most) {
  const int passes = each == 0 ? 0 : (lines + each - 1) / each;
  return passes < most ? passes : most;
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
