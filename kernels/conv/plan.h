// What planning leaves behind for one layer. Private to the convolution's own files.
#pragma once
#include <vector>

#include "conv/conv.h"
#include "conv/buffer.h"
#include "conv/kernels.h"
#include "run/process.h"

namespace penstock {

struct DirectPlan {
  std::vector<std::ptrdiff_t> taps;
  std::vector<float> mask;
  std::vector<ConvPhase> phases;  // empty when the stride is 1 and planes are read as they are
  std::ptrdiff_t cut_stride = 0;
  int pitch = 0;
  int tap_rows = 0;
  bool flat = false;
  int block_rows = 1;
  std::size_t shared_floats = 0;
};

struct PackedPlan {
  std::size_t thread_floats = 0;
};

struct OutputsPlan {
  std::size_t thread_floats = 0;
};

struct RowsPlan {
  ConvBuffer weights;  // [out][position][in][row phase][column]
  std::vector<float> zero_row;
  int pitch = 0;
  int beside = 1;               // tile rows that are computed side by side
  int bare_pitch = 0;           // of copies of bare rows; 0 when the input must have margins
  std::size_t bare_offset = 0;  // where copies begin in a thread's scratch
  std::size_t thread_floats = 0;
};

// What threads divide among themselves.
enum class Split {
  channels,  // all tiles are one block, whose transformed input is shared: first the inputs are divided, then the outputs
  tiles,     // each block of tiles is transformed and multiplied by one thread
};

struct WinogradPlan {
  int tile = 0;  // outputs of a tile along an axis: 2 or 4, or 0 when the layer does not use Winograd
  // What is kept besides the filters: nothing (filters), or transformed weights (positions, lines).
  WeightFormat kept = WeightFormat::filters;
  // In that format. Only lists with gaps read lines, and a network may never see one: the first task that does fills them in.
  mutable ConvBuffer weights;
  FirstUse lines;
  std::vector<float> zero_row;
  int tiles_x = 0, tiles_y = 0;
  int tile_groups = 0;
  int row_banks = 0;  // rows of tiles that a group of tiles may span
  Split split = Split::tiles;
  int chunk = 0;  // inputs whose weights are transformed at a time, as they are used
  std::size_t rows_pitch = 0, rows_floats = 0, panel_floats = 0;
  std::size_t gather_floats = 0;  // room for active weights, beside each other, at most
  std::size_t block_floats = 0;   // Split::tiles: sums and transformed input of a block, at most
};

// Outputs in the lanes. Groups narrower than a vector are bundled, with zeros between them.
struct LanesPlan {
  ConvBuffer weights;  // [group][panel][tap][in][vectors]; of an input in planes [group][panel][in][tap][vectors]
  int groups = 1, in_group = 0, out_group = 0;
  int vectors = 0, panels = 0;  // of a group, with all its channels
  std::int64_t group_floats = 0;
  std::vector<std::ptrdiff_t> taps;  // in pixels, from the one under output (0, 0)
  const float* given = nullptr;  // [out][in of the group][tap], where those of active channels are turned; null: they are picked
  bool flat = false;
  int blocks = 1;  // of pixels, if flat, or of rows
};

struct DepthwisePlan {
  ConvBuffer weights;  // [vector of channels][tap][lane]
  int blocks = 1;      // of rows
};

struct ConvPlan {
  ConvShape shape;
  Machine machine;
  const ConvKernels* kernels = nullptr;
  std::vector<float> bias;
  float low = 0, high = 0;
  int curve = -1;
  std::vector<const ConvAlgorithm*> ready;
  ConvBuffer weights;  // WeightFormat::filters, as given
  DirectPlan direct;
  std::vector<std::ptrdiff_t> taps_in_place;  // from a plane's base to each tap of pixel (0, 0), for packed and outputs
  PackedPlan packed;
  OutputsPlan outputs;
  RowsPlan rows;
  WinogradPlan winograd;
  LanesPlan in_lanes;
  DepthwisePlan depthwise;

  int taps() const { return shape.kernel_h * shape.kernel_w; }
  const Tuning& tuning() const { return machine.tuning; }
};

ConvOutput conv_output(const ConvPlan& plan, const ConvTask& task);

// The input where it lies, and the weights as given.
InPlaceArgs args_in_place(const ConvPlan& plan, const ConvTask& task);

// What unit `unit` of `units` fetches for whoever comes next.
LaterRows later_rows(const ConvTask& task, int unit, int units);

bool weights_are_far(const ConvPlan& plan);

inline bool fits_any(const ConvShape&) { return true; }
inline int one_stage(const ConvPlan&, const ConvTask&) { return 1; }

// The rows of the list, each beside its planning.
extern const ConvAlgorithm kDirect, kPacked, kWinograd2, kWinograd4, kWinogradRows, kOutputs, kLanes, kDepthwise;

// The Winograd tile that suits the layer (2 or 4), or 0.
int choose_tile(const ConvPlan& plan);
// Whether automatic choice takes Winograd down the rows, or may take the direct algorithm.
bool rows_suit(const ConvPlan& plan);
bool direct_suits(const ConvPlan& plan);

}  // namespace penstock
