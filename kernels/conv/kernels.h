// What the planner hands to the kernels of one instruction set: plain numbers and pointers.
//
// Files compiled for a wide instruction set include this; it must define no functions, so that no inline copy
// compiled for that set can replace the one the rest of the program uses.
#pragma once
#include <cstddef>
#include <cstdint>

#include "run/schema.h"

namespace penstock {

constexpr int kLaterFloats = 1024;  // the most of a row that is prefetched for the next layer (kMostLaterFloats)

// Rows of weights that the next layer will read, `lines` cache lines each.
struct LaterRows {
  const float* const* rows;
  int count, lines;
};

// Where results go and what happens to them on the way.
struct ConvOutput {
  float* planes;  // plane 0, at its base
  std::ptrdiff_t stride, origin;
  int height, width, pitch, halo;
  const std::int32_t* list;  // active channels, plane p is channel list[p]
  int count;
  const float* gain;  // by plane, or null
  const float* bias;  // by channel
  float low, high;    // a clamp, which is all that none, relu and relu6 need
  int activation;     // an Activation that a clamp cannot express, or -1
  float slope;
};

// The direct kernel sees unit-stride planes: tap t of pixel q = y * pitch + x of the channel in slot s lies at
// input[s * stride + q + taps[t]].
struct DirectArgs {
  const float* input;
  std::ptrdiff_t stride;
  int pitch;
  const std::ptrdiff_t* taps;
  int tap_count;
  int tap_rows;          // 3 when the taps are three rows of three neighbours, else 0
  const float* weights;  // [out][in / groups][tap]
  const std::int32_t* in_list;
  int in_count;
  int groups, in_group, out_group;  // number of groups, channels of one group at the input and at the output
  bool flat;                        // input pitch == output pitch: rows are computed as one line, and `mask` clears the gaps
  const float* mask;                // bit masks by x, running on periodically for pitch + kDirectMaskSlack entries
  int block_rows;                   // output rows of one unit
  ConvOutput out;
};

constexpr int kDirectPanel = 6;        // output channels that one unit computes together
constexpr int kDirectMaskSlack = 160;  // more than the widest strip of vectors

// With a larger stride the direct kernel reads its input cut into unit-stride planes: pixel (y, x) of a phase is pixel
// (y * stride_h + first_y, x * stride_w + first_x) of the channel, zero outside.
struct ConvPhase {
  int first_y, first_x;
  int rows, cols;
  std::ptrdiff_t offset;  // inside the channel's share of the scratch
};

struct SplitArgs {
  const float* input;  // plane 0, at its base
  std::ptrdiff_t in_stride, in_origin;
  int height, width, in_pitch;
  int stride_h, stride_w;
  const ConvPhase* phases;
  int phase_count;
  float* cut;
  std::ptrdiff_t cut_stride;
  int cut_pitch;
};

// What kernels of any stride that read the input where it lies begin with.
struct InPlaceArgs {
  const float* input;  // plane 0, at its base
  std::ptrdiff_t in_stride;
  int in_pitch, stride_h, stride_w;
  const std::ptrdiff_t* taps;  // from the input pixel under output (0, 0), without padding, to each tap
  int tap_count;
  const float* weights;  // [out][in / groups][tap]
  const std::int32_t* in_list;
  int in_count;
};

// The packed kernel copies the pixels that a block of outputs needs, tap by tap, and multiplies from there:
// packed[strip][input][tap][2 vectors], a strip being 2 vectors of consecutive output pixels, rows running on.
struct PackedArgs : InPlaceArgs {
  int groups, in_group, out_group;
  int block_pixels;  // output pixels of one block, a multiple of a strip
  int splits;        // units that share a block when there is one group
  bool far;          // weights come from a far cache or from memory
  ConvOutput out;
  float* packed;
};

constexpr int kOutputsChunk = 128;  // inputs whose weights are turned at a time, at most

// With outputs in the lanes: weights of a chunk of inputs are turned to [input][tap][output], then each run of pixels of a row
// passes over them.
struct OutputsArgs : InPlaceArgs {
  int in_channels;
  int units;          // among which the outputs are divided
  int chunk;          // inputs at a time, at most kOutputsChunk
  bool fetches_many;  // Machine::fetches_many
  LaterRows later;    // of this call
  ConvOutput out;
  float* panel;  // turned weights
  float* sums;   // [pixel][output]
  float* lines;  // pixels of one vector of outputs, line_floats apart
  std::ptrdiff_t line_floats;
};

// Winograd F(m x m, 3 x 3), m = 2 or 4: tiles of m x m outputs from (m + 2) x (m + 2) inputs, which become as many
// positions, in groups of 4. A block is a run of tiles; its transformed input is [position group][group of
// tiles][input][2 vectors], where a vector holds 4 positions of each of several tiles.
struct WinogradArgs {
  const float* input;  // plane 0, at its base
  std::ptrdiff_t in_stride, in_origin;
  int height, width, in_pitch;
  int pad_h, pad_w;
  const float* zero_row;  // stands for rows outside the plane
  const std::int32_t* in_list;
  int in_count, in_channels;
  // In one of these formats: filters [out][in][3][3], transformed for the image; positions [out][position group][in][4]; lines, m = 2
  // only, [out][in][position group][4]; gathered, the active ones of this call's outputs, [panel][position group][input][out][4].
  WeightFormat weight_format;
  const float* weights;
  int first_outs;     // output planes whose weights the first step fetches for the second, a chunk of them
  bool fetches_many;  // Machine::fetches_many
  LaterRows later;    // of this call
  int tiles_x, tiles_y;
  int tile_begin, tile_end;  // of the block
  ConvOutput out;
  float* transformed;         // the block's transformed input
  std::ptrdiff_t tiles_step;  // from one group of tiles to the next: an odd number of cache lines, which spread over sets
  float* sums;                // [out][position group][group of tiles][2 vectors], for the outputs of one call
  float* panel;               // weights transformed for one panel and `chunk` inputs
  int chunk;
  float* rows;  // m + 2 rows of the input, transformed downwards, as often as a group of tiles spans rows of tiles
  std::ptrdiff_t rows_pitch;
  int row_banks;
};

constexpr int kWinogradChunk = 64;  // inputs whose weights are transformed at a time, at most
constexpr int kWinogradTiles = 64;  // tiles of a block, at most
constexpr int kWinogradOuts = 24;   // output channels that share one pass over the transformed input

// Winograd down the rows of a 3x3 kernel, or of a 3x3 or 7x7 kernel of stride 2; weights are [out][position][in][row
// phase][column].
struct RowsArgs {
  const float* input;  // plane 0, at its base
  std::ptrdiff_t in_stride, in_origin;
  int height, in_pitch;
  int pad_h, pad_w;
  const float* zero_row;  // stands for rows outside the plane
  const std::int32_t* in_list;
  int in_count, in_channels;
  const float* weights;
  float* rows;  // the unit's transformed input
  std::ptrdiff_t rows_pitch;
  int beside;     // tile rows of a unit: 2 lie side by side, a vector each, where a row would not fill two vectors
  float* copies;  // where rows of a bare input, in_pitch floats each, are copied and have margins; or null
  std::ptrdiff_t copies_pitch;
  ConvOutput out;
};

constexpr int kRowsOut = 4;  // output rows of a tile

struct WinogradKernels {
  // Transforms input slots [begin, end) of the block.
  void (*transform)(const WinogradArgs&, int slot_begin, int slot_end);
  // Transforms the active filters of output planes [begin, end), at most kWinogradOuts, to where `gathered` will point.
  void (*gather)(const WinogradArgs&, int plane_begin, int plane_end, float* to);
  // Multiplies and finishes output planes [begin, end), at most kWinogradOuts, of the block.
  void (*multiply)(const WinogradArgs&, int plane_begin, int plane_end);
};

struct ConvKernels {
  int lanes;
  int winograd_panel;         // output channels that the inner loop computes together; divides kWinogradOuts
  int winograd_panel_floats;  // their weights for one input and position group
  int output_vectors;         // vectors of outputs that a unit of `outputs` has at most
  WinogradKernels winograd2, winograd4;
  // Units are (panel, row block), panel-major; see run_direct() in direct.inl for what a panel is.
  void (*direct)(const DirectArgs&, int unit_begin, int unit_end);
  // Cuts the planes in slots [begin, end).
  void (*split)(const SplitArgs&, int slot_begin, int slot_end);
  // Units are (block, split), or (block, group) when there are several groups.
  void (*packed)(const PackedArgs&, int unit_begin, int unit_end);
  // Units are parts of the outputs.
  void (*outputs)(const OutputsArgs&, int unit_begin, int unit_end);
  // Units are tile rows, or as many as lie side by side.
  void (*rows3)(const RowsArgs&, int unit_begin, int unit_end);
  void (*rows3_by2)(const RowsArgs&, int unit_begin, int unit_end);
  void (*rows7)(const RowsArgs&, int unit_begin, int unit_end);
};

// conv_kernels_<name>() for every instruction set; those of other architectures do not exist.
#define TARGET(name, architecture, runs_here, wide) const ConvKernels* conv_kernels_##name();
#include "machine/targets.def"
#undef TARGET

}  // namespace penstock
