// What planning and the walk hand to the kernels on maps of pixels: plain numbers and pointers.
//
// Files compiled for a wide instruction set include this; it must define no functions (as conv/kernels.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "conv/kernels.h"
#include "run/schema.h"
#include "run/window.h"

namespace penstock {

constexpr int kLanesVectors = 3;  // vectors of outputs that an inner loop computes together, at most
constexpr int kTurnColumns = 16;  // numbers of each output's weights that are turned together: a cache line of every row

// Outputs that are computed together, of one group.
struct LanesPanel {
  int vectors;
  int first, outs;         // in the result's list
  int in_first, in_count;  // the group's active inputs, in the input's list
  int in_base;             // the group's first channel
  int vector;              // number of its first vector among those of all panels
  std::int64_t weights;    // offset of [tap][input][vectors], or of a map of planes [input][tap][vectors]
};

// What each vector of gathered weights consists of: `pieces` [first of v, first of v + 1).
struct LanesPiece {
  std::int64_t from;  // offset of the row of input 0, tap 0
  std::int32_t step;  // floats from one row to the next
  std::int32_t places[16];
};

// Where results go and what happens to them on the way; `gain` and `offset` by vector of outputs: v * gain + offset.
struct LanesOutput {
  float* pixels;  // pixel (0, 0)
  std::ptrdiff_t pixel, row;
  int height, width;
  const float *gain, *offset;
  float low, high;
  int activation;
  float slope;
};

// Memory that is read next: it is fetched into L2 while something else is multiplied. `rows` cache lines one after the other; or, with
// pieces, the rows of every tap and of inputs list[0], ..., list[rows - 1] that those pieces consist of; or, with run_lines, so many
// lines of each of the rows list[0], ..., list[rows - 1].
struct LanesFetch {
  const float* from;
  const LanesPiece* pieces;
  int piece_count;
  const std::int32_t* list;
  int rows, taps;
  int tap_rows, in_base;  // rows from one tap to the next; the input that row 0 belongs to
  int run_lines;
  std::ptrdiff_t run_step;  // floats from one row to the next
};

struct LanesArgs {
  const float* input;        // under output pixel (0, 0), where offset 0 is
  std::ptrdiff_t step, row;  // floats from what one output reads to what its right and lower neighbour reads
  // Where each row of weights has its factors, from what its panel reads first: `taps` places for every active input.
  const std::ptrdiff_t* places;
  int taps;
  bool planes;      // a panel reads from plane 0 on, not from its first input on
  bool flat;        // rows of input and output follow each other without padding: pixels are numbered through the whole map
  bool whole;       // vectors may be stored whole
  bool fetch_rows;  // each panel reads only a part of each input pixel, which the hardware prefetcher does not predict
  LanesFetch next;  // the weights of the panel that comes next
  LaterRows later;  // what the next layer's gate reads
  LanesOutput out;
};

struct LanesGather {
  const float* weights;
  const LanesPiece* pieces;
  const std::int32_t* first_piece;  // of each vector
  const std::int32_t* in_list;
  int taps, in_channels;  // of a group
  bool planes;
};

// Weights as they were given, [output][input][tap]; an output reads `columns` of them, kTurnColumns at least.
struct LanesTurn {
  const float* weights;
  std::ptrdiff_t row;  // floats from one output to the next
  int columns, taps;
  const std::int32_t* out_list;
  const std::int32_t* places;  // of each input and tap: the row of the panel that it becomes
};

// Each output reads the channel of the same number alone. Pixels may be anywhere in a row; kernels look where the map ends.
struct DepthwiseArgs {
  const float* input;  // pixel (0, 0)
  std::ptrdiff_t pixel, row;
  int height, width;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  const float* weights;  // [vector of channels][tap][lane]
  LanesOutput out;
};

// One summand of a combination of maps: `vectors` vectors of channels in the order of the result's list.
struct PixelTerm {
  const float* pixels;  // pixel (0, 0)
  std::ptrdiff_t pixel, row;
  const LanesPiece* pieces;         // of each vector, relative to the pixel; null: channels lie as the result's do
  const std::int32_t* first_piece;  // of each vector
};

// result = clamp(factors * one term + shift), or clamp(sum of two terms + shift)
struct PixelCombination {
  PixelTerm terms[2];
  int count;
  const float* factors;  // by channel of the result; null: 1
  const float* shift;    // by channel of the result; null: 0
  float low, high;
  float* to;  // channel 0 of pixel (0, 0)
  std::ptrdiff_t pixel, row;
  int width, vectors;
  int last;     // lanes of the last vector that are stored
  float* sums;  // of magnitudes, by row and channel of the result; null: nobody asks
  std::ptrdiff_t sums_row;
};

struct PixelPool : PoolShape {
  const float* pixels;
  std::ptrdiff_t pixel, row;
  int height, width;
  bool max;
  float* to;
  std::ptrdiff_t to_pixel, to_row;
  int to_width, vectors;
};

struct PixelSums {
  const float* pixels;
  std::ptrdiff_t pixel, row;
  int height, width;
};

// Planes and pixels of one map; `count` channels.
struct PixelExchange {
  float* planes;  // value (0, 0) of plane 0
  std::ptrdiff_t plane, plane_row;
  float* pixels;
  std::ptrdiff_t pixel, pixel_row;
  int width, count;
};

enum class PixelSum { values, magnitudes, squares, largest, largest_value };

struct LanesKernels {
  int lanes, pick_span;
  // One panel for pixels [begin, end) of a flat map, or for rows [begin, end) of another. `sums`, by vector of the panel, gets the sums
  // of magnitudes; null: nobody asks.
  void (*multiply)(const LanesArgs&, const LanesPanel&, const float* weights, int begin, int end, float* sums);
  // The weights of one panel's active channels.
  void (*gather)(const LanesGather&, const LanesPanel&, float* to);
  // The same, from weights as they were given.
  void (*turn)(const LanesTurn&, const LanesPanel&, float* to);
  // Vectors [vector_begin, vector_end) of rows [row_begin, row_end).
  void (*depthwise)(const DepthwiseArgs&, int row_begin, int row_end, int vector_begin, int vector_end, float* sums);
  // Rows [row_begin, row_end) of the result.
  void (*combine)(const PixelCombination&, int row_begin, int row_end);
  void (*pool)(const PixelPool&, int row_begin, int row_end);
  // By channel of vectors [vector_begin, vector_end); `centre`, by channel, is subtracted first, or null.
  void (*sum)(const PixelSums&, PixelSum kind, const float* centre, int vector_begin, int vector_end, float* sums);
  // Rows [row_begin, row_end), from planes to pixels and back.
  void (*to_pixels)(const PixelExchange&, int row_begin, int row_end);
  void (*to_planes)(const PixelExchange&, int row_begin, int row_end);
};

// lanes_kernels_<name>() for every instruction set; those of other architectures do not exist.
#define TARGET(name, architecture, runs_here, wide) const LanesKernels* lanes_kernels_##name();
#include "machine/targets.def"
#undef TARGET

}  // namespace penstock
