// What planning leaves behind for one layer. Private to the convolution's own files.
#pragma once
#include <vector>

#include "conv.h"
#include "conv_buffer.h"
#include "conv_kernels.h"

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
  bool used = false;
  std::size_t thread_floats = 0;
};

struct RowsPlan {
  bool used = false;
  ConvBuffer weights;  // [out][position][in][row phase][column]
  std::vector<float> zero_row;
  int pitch = 0;
  int beside = 1;  // tile rows that are computed side by side
  int bare_pitch = 0;  // of copies of bare rows; 0 when the input must have margins
  std::size_t bare_offset = 0;  // where copies begin in a thread's scratch
  std::size_t thread_floats = 0;
};

struct WinogradPlan {
  int tile = 0;  // outputs of a tile along an axis: 2 or 4, or 0 when the layer does not use Winograd
  ConvBuffer weights;  // [out][position group][in][4]; none when they are transformed as they are used
  bool lines = false;  // they lie as [out][in][position group][4]
  std::vector<float> zero_row;
  int tiles_x = 0, tiles_y = 0;
  int tile_groups = 0;
  int row_banks = 0;  // rows of tiles that a group of tiles may span
  bool shared = false;  // one block, whose transformed input all threads use
  bool fresh = false;   // weights are always transformed as they are used, `chunk` inputs at a time
  int chunk = 0;
  std::size_t rows_pitch = 0, rows_floats = 0, panel_floats = 0;
  std::size_t gather_floats = 0;  // room for active weights, beside each other, at most
  std::size_t block_floats = 0;   // blocks that are not shared: sums and transformed input, at most
};

struct ConvPlan {
  ConvShape shape;
  const ConvKernels* kernels = nullptr;
  std::vector<float> bias;
  float low = 0, high = 0;
  int curve = -1;
  // AMD's cores keep 24 lines on their way from far caches, and more to the second-level cache, so that fetching many ahead does not
  // hold up what is loaded meanwhile; Ice Lake keeps 12.
  bool fetches_many = false;
  // Vectors of 16 run as two halves on AMD's cores up to Zen 4, where fewer products count for more than fuller vectors. (Later ones
  // are taken to be alike until one has been measured.)
  bool wide_in_halves = false;
  ConvAlgorithm algorithm = ConvAlgorithm::automatic;  // as asked for
  ConvBuffer weights;  // [out][in / groups][tap], as given
  DirectPlan direct;
  std::vector<std::ptrdiff_t> taps_in_place;  // from a plane's base to each tap of pixel (0, 0), for packed and outputs
  PackedPlan packed;
  OutputsPlan outputs;
  RowsPlan rows;
  WinogradPlan winograd;

  int taps() const { return shape.kernel_h * shape.kernel_w; }
};

ConvOutput conv_output(const ConvPlan& plan, const ConvTask& task);

// What unit `unit` of `units` fetches for whoever comes next.
LaterRows later_rows(const ConvTask& task, int unit, int units);

bool weights_are_far(const ConvPlan& plan);

// The Winograd tile that suits the layer (2 or 4), or 0.
int choose_tile(const ConvPlan& plan);
// The algorithm for one image; Winograd only with the tile the plan has.
ConvAlgorithm choose_algorithm(const ConvPlan& plan, int in_count, int out_count);

// Whether automatic choice may use the direct algorithm; asked for by name it runs any shape.
bool direct_suits(const ConvShape& shape);
void plan_direct(ConvPlan& plan);
int direct_stages(const ConvPlan& plan);
int direct_units(const ConvPlan& plan, const ConvTask& task, int stage);
void run_direct(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                const ConvScratch& scratch);

void plan_packed(ConvPlan& plan);
int packed_units(const ConvPlan& plan, const ConvTask& task);
void run_packed(const ConvPlan& plan, const ConvTask& task, int unit_begin, int unit_end, const ConvScratch& scratch);

bool outputs_fit(const ConvShape& shape);
// Whether automatic choice may take it.
bool outputs_suit(const ConvPlan& plan);
void plan_outputs(ConvPlan& plan);
int outputs_units(const ConvPlan& plan, const ConvTask& task);
void run_outputs(const ConvPlan& plan, const ConvTask& task, int unit_begin, int unit_end, const ConvScratch& scratch);

bool rows_fit(const ConvShape& shape);
// Whether automatic choice takes it.
bool rows_suit(const ConvShape& shape, int lanes);
void plan_rows(ConvPlan& plan, const float* weights);
int rows_units(const ConvPlan& plan, const ConvTask& task);
void run_rows(const ConvPlan& plan, const ConvTask& task, int unit_begin, int unit_end, const ConvScratch& scratch);

bool winograd_fits(const ConvShape& shape);
void plan_winograd(ConvPlan& plan, const float* weights, int tile);
ConvScratchFloats winograd_scratch(const ConvPlan& plan, int most_in, int most_out);
int winograd_stages(const ConvPlan& plan, const ConvTask& task);
int winograd_units(const ConvPlan& plan, const ConvTask& task, int stage);
void run_winograd(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                  const ConvScratch& scratch);

}  // namespace penstock
