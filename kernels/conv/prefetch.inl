// Prefetching weights. A list of channels leaves gaps between the weights that are read, and the hardware prefetcher cannot
// foresee them.
//
// A prefetch occupies one of the few line buffers that the product's own loads need too, so prefetches are spread evenly: one
// cache line for every 24 products or more. Prefetching twice as often, or everything in the first passes, gains nothing or loses,
// because the product then waits for a free buffer. Processors with many line buffers (Machine::fetches_many) prefetch six times as
// often with AVX-512. Panels are twice as wide there and make half as many passes, and these have to fetch all that this
// convolution and the next layer will read.
#pragma once
#include "conv/kernels.h"
#include "machine/prefetch.h"

namespace penstock {
namespace PENSTOCK_ISA {

// Prefetches one cache line into L2, because more is prefetched at a time than L1 holds. On AVX-512, where panels are twice as
// wide, the line goes into L1 unless `many` are prefetched.
PENSTOCK_INLINE void fetch(const float* p, bool many) {
  if (kWideVectors && !many) {
    fetch_near(p);
  } else {
    fetch_far(p);
  }
}

// Prefetches the pixels from column `x` on that the next strip of a tile row will write, in planes [plane, plane + outs). Kernels
// write to more planes at a time than the hardware prefetcher follows.
PENSTOCK_INLINE void fetch_next_strip(const ConvOutput& out, int plane, int outs, int tile_y, int x) {
  for (int o = 0; o < outs; ++o) {
    const float* next =
        out.planes + (plane + o) * out.stride + out.origin + static_cast<std::ptrdiff_t>(tile_y) * kRowsOut * out.pitch + x;
    for (int i = 0; i < kRowsOut; ++i) fetch_to_write(next + i * static_cast<std::ptrdiff_t>(out.pitch));
  }
}

constexpr int kLine = 16;      // floats of a cache line
constexpr int kManyLines = 6;  // cache lines prefetched for every two inputs where `many` are; otherwise one

// What one pass prefetches: the cache lines of `row` that hold the floats at `places`.
struct Ahead {
  const float* row;
  const std::int32_t* places;
};

// Places in a row of weights, one in every cache line that the active inputs lie in (if rows begin at whole lines).
template <int kMost>
struct UsedLines {
  std::int32_t places[(2 + kManyLines / 2) * kMost];
  int count = 0;

  // Finds the lines of the first `inputs` (at most kMost) channels of `list`. The row begins with channel `first` and has `size`
  // floats for each channel, at most a cache line. A pass may begin at any of the lines and prefetches `turns` of them, at most
  // kManyLines for every two of kMost inputs; the last line stands in for those that are missing.
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

// What each of at most `most` passes prefetches, `turns` lines in each.
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

// Lines of several rows, handed out one by one: the same place of every row, then the next place. There is no branch, since a
// mispredicted one would take longer than the prefetch.
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

// The cache lines that a pass over this many inputs prefetches.
PENSTOCK_INLINE int lines_fetched(int inputs, bool many) { return inputs / 2 * (many ? kManyLines : 1); }

// The number of passes, at most `most`, that prefetch `lines` cache lines when each prefetches `each` of them.
PENSTOCK_INLINE int passes_of(int lines, int each, int most) {
  const int passes = each == 0 ? 0 : (lines + each - 1) / each;
  return passes < most ? passes : most;
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
