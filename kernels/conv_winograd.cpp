// Planning Winograd: who transforms the weights, and how tiles are cut into blocks.
#include <algorithm>

#include "conv_plan.h"

namespace penstock {

namespace {

// Filter transforms G for the points 0, 1, -1 (and 2, -2), infinity.
constexpr double kFilter2[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
constexpr double kFilter4[6][3] = {{1.0 / 4, 0, 0},
                                   {-1.0 / 6, -1.0 / 6, -1.0 / 6},
                                   {-1.0 / 6, 1.0 / 6, -1.0 / 6},
                                   {1.0 / 24, 1.0 / 12, 1.0 / 6},
                                   {1.0 / 24, -1.0 / 12, 1.0 / 6},
                                   {0, 0, 1}};

// Where position (r, j) lies: its group and its lane. Must agree with conv_winograd_tiles.inl.
int group_of(int r, int j) { return r < 4 ? j : 6 + j / 2; }
int lane_of(int r, int j) { return r < 4 ? r : r - 4 + j % 2 * 2; }

template <int N>
void transform_filter(const double (&g)[N][3], const float* filter, float* to, std::ptrdiff_t group_step) {
  double down[N][3];
  for (int r = 0; r < N; ++r) {
    for (int c = 0; c < 3; ++c) {
      down[r][c] = g[r][0] * filter[c] + g[r][1] * filter[3 + c] + g[r][2] * filter[6 + c];
    }
  }
  for (int r = 0; r < N; ++r) {
    for (int j = 0; j < N; ++j) {
      to[group_of(r, j) * group_step + lane_of(r, j)] =
          static_cast<float>(down[r][0] * g[j][0] + down[r][1] * g[j][1] + down[r][2] * g[j][2]);
    }
  }
}

// With this many tiles or fewer, all tiles are one block whose transformed input is shared, and threads divide the
// channels: first the inputs, then the outputs. With more, each block is transformed and multiplied by one thread.
constexpr int kSharedTiles = 52;
static_assert(kSharedTiles <= kWinogradTiles);

// Shared blocks with so few tiles, or so many weights, transform weights for every image as they are used (see
// multiply_fresh): fetching transformed ones, four times as many bytes, would take longer. Others keep them, and use them
// when more than this share of the inputs is active: of fewer, the gaps would be most of what is fetched. With AVX-512 the
// products take half as long and the transforms weigh more.
constexpr int kFreshTiles = 16;
constexpr std::int64_t kFreshPairs = 256 * 256;
constexpr double kFreshShare = 0.6, kFreshShareWide = 0.4;
// Of tiles of 2 in layers of so many pairs both are kept, filters and transformed weights, a cache line each: where at most this
// share of the inputs is active lists touch no more lines of these than of filters.
constexpr std::int64_t kLinesPairs = 128 * 128;
constexpr double kLinesShare = 0.6;

// Blocks that are not shared: more tiles read the weights less often, but their transformed input must stay in cache,
// and scratch must stay a small share of the feature maps. It has room for kPlannedTiles of all channels; when fewer
// are active, for more.
constexpr std::size_t kPlannedTiles = 32, kFewestTiles = 8;
constexpr std::size_t kScratchShare = 3;

// Blocks that are not shared: of lists with gaps filters are transformed first (see winograd_gather), if there is room in what the
// task has to spare or, where tiles are so many, in a share of the feature maps' size.
constexpr int kGatherTiles = 128;
constexpr std::size_t kGatherShare = 2;

// A panel's weights for a chunk of inputs stay in a near cache; in layers with few inputs memory sets the limit.
constexpr int kMostPanelFloats = 13824, kMostSmallPanelFloats = 9504;
// In layers of many inputs, whose weights come from afar, a chunk has so few of them that their transformed tiles stay there too:
// what is fetched ahead and what comes from the second-level cache wait in the same buffers. With AVX-512 there is no such gain.
constexpr int kManyInputs = 256, kMostInputs = 28;

constexpr int kTransformUnit = 8;  // input channels of one unit

void transform_weights(WinogradPlan& w, const ConvShape& s, const float* weights, int groups) {
  w.weights.allocate(static_cast<std::size_t>(s.out_channels) * s.in_channels * groups * 4);
  const std::ptrdiff_t group_step = w.lines ? 4 : static_cast<std::ptrdiff_t>(s.in_channels) * 4;
  const std::ptrdiff_t in_step = w.lines ? groups * 4 : 4;
  for (std::ptrdiff_t o = 0; o < s.out_channels; ++o) {
    for (std::ptrdiff_t i = 0; i < s.in_channels; ++i) {
      const float* filter = weights + (o * s.in_channels + i) * 9;
      float* to = w.weights.data() + o * s.in_channels * groups * 4 + i * in_step;
      if (w.tile == 2) {
        transform_filter(kFilter2, filter, to, group_step);
      } else {
        transform_filter(kFilter4, filter, to, group_step);
      }
    }
  }
}

int position_groups(int tile) { return tile == 2 ? 4 : 9; }

// Output channels that share a pass over the transformed input: many when it comes from a far cache.
int outs_together(const ConvPlan& plan) {
  const WinogradPlan& w = plan.winograd;
  const bool near = w.shared && w.tiles_x * w.tiles_y <= kFreshTiles && plan.shape.in_channels <= 128;
  return near ? kWinogradOuts / 2 : kWinogradOuts;
}

int panels_of(const ConvPlan& plan, int out_count) {
  return (out_count + plan.kernels->winograd_panel - 1) / plan.kernels->winograd_panel;
}

// Parts of the outputs, each with its pass. Where threads divide the parts their number is even, which two threads
// share evenly.
int parts_of(const ConvPlan& plan, int out_count) {
  const int most = outs_together(plan);
  const int parts = (out_count + most - 1) / most;
  return plan.winograd.shared && parts % 2 == 1 && out_count > plan.kernels->winograd_panel ? parts + 1 : parts;
}

// The first output of a part. Parts are made of whole panels, so that few panels are less than full, and begin at whole
// vectors of outputs, as panels do.
int first_of(const ConvPlan& plan, int part, int parts, int out_count) {
  const int panels = panels_of(plan, out_count), quads = plan.kernels->lanes / 4;
  const int first = static_cast<int>(std::int64_t{part} * panels / parts * out_count / panels);
  return std::min((first + quads - 1) / quads * quads, out_count);
}

// Floats of the gathered weights of one part of the outputs.
std::size_t gathered_floats(const ConvPlan& plan, int in_count) {
  return static_cast<std::size_t>(outs_together(plan) / plan.kernels->winograd_panel) * position_groups(plan.winograd.tile) * in_count *
         plan.kernels->winograd_panel_floats;
}

bool uses_fresh(const ConvPlan& plan, const ConvTask& task) {
  const double share = plan.kernels->lanes == 16 ? kFreshShareWide : kFreshShare;
  return plan.winograd.fresh || (plan.winograd.shared && task.in_count <= share * plan.shape.in_channels);
}

// Whether so much room is enough for the gathered weights.
bool gathers_in(const ConvPlan& plan, const ConvTask& task, std::size_t floats) {
  return gathered_floats(plan, task.in_count) * parts_of(plan, task.out_count) <= floats;
}

bool gathers(const ConvPlan& plan, const ConvTask& task) {
  return !plan.winograd.shared && task.in_count < plan.shape.in_channels &&
         gathers_in(plan, task, std::max(plan.winograd.gather_floats, task.spare_floats));
}

// Rows on their way to transformed input and, where that is shared and so another stage, weights in the same place.
std::size_t input_floats(const WinogradPlan& w) {
  return w.shared ? std::max(w.rows_floats, w.panel_floats) : w.rows_floats;
}

// Lines of transformed input that lie between one group of tiles and the next.
int lines_of(int in_count) { return in_count | 1; }

// Floats that one tile of a block takes: transformed input and sums.
std::size_t tile_floats(const ConvPlan& plan, int in_count, int out_count) {
  const std::size_t positions = static_cast<std::size_t>(position_groups(plan.winograd.tile)) * 4;
  return positions * (lines_of(in_count) + std::max(1, std::min(outs_together(plan), out_count)));
}

// The number of blocks: as few as the scratch has room for at these counts; where threads share them at least four, and an
// even number if there are few.
int blocks_of(const ConvPlan& plan, const ConvTask& task) {
  const WinogradPlan& w = plan.winograd;
  if (w.shared) return 1;
  const int group = plan.kernels->lanes / 2;
  const int fit = static_cast<int>(w.block_floats / tile_floats(plan, task.in_count, task.out_count)) / group;
  const int most = std::max(1, std::min(fit, kWinogradTiles / group));
  const int fewest = (w.tile_groups + most - 1) / most;
  if (task.threads == 1) return fewest;
  const int blocks = std::max(fewest, std::min(4, w.tile_groups));
  return blocks % 2 == 1 && blocks < std::min(8, w.tile_groups) ? blocks + 1 : blocks;
}

}  // namespace

bool winograd_fits(const ConvShape& s) {
  return s.kernel_h == 3 && s.kernel_w == 3 && s.stride_h == 1 && s.stride_w == 1 && s.dilation_h == 1 &&
         s.dilation_w == 1 && s.groups == 1;
}

void plan_winograd(ConvPlan& plan, const float* weights, int tile) {
  const ConvShape& s = plan.shape;
  WinogradPlan& w = plan.winograd;
  const int groups = position_groups(tile);
  w.tile = tile;
  const int lanes = plan.kernels->lanes, tile_group = lanes / 2, group_floats = 2 * lanes;
  w.zero_row.assign(s.input.width + 2 * s.pad_w + group_floats, 0.0f);
  w.tiles_x = (s.output.width + tile - 1) / tile;
  w.tiles_y = (s.output.height + tile - 1) / tile;
  w.rows_pitch = (static_cast<std::size_t>(w.tiles_x) * tile + 2 + group_floats + lanes + 15) / 16 * 16;
  w.row_banks = 1 + (tile_group - 1 + w.tiles_x - 1) / w.tiles_x;
  w.rows_floats = w.rows_pitch * (tile + 2) * w.row_banks;

  const int tiles = w.tiles_x * w.tiles_y;
  w.tile_groups = (tiles + tile_group - 1) / tile_group;
  w.shared = tiles <= kSharedTiles;
  w.fresh = w.shared && (tiles <= kFreshTiles || std::int64_t{s.in_channels} * s.out_channels >= kFreshPairs);
  w.lines = w.fresh && tile == 2 && std::int64_t{s.in_channels} * s.out_channels >= kLinesPairs;
  if (!w.fresh || w.lines) transform_weights(w, s, weights, groups);
  if (w.shared) {
    // Where feature maps are small, so must scratch be.
    const bool small = s.in_channels <= 128;
    const int pass_floats = groups * plan.kernels->winograd_panel_floats;  // of one input
    const int most = small ? kMostSmallPanelFloats : kMostPanelFloats;
    const int inputs = small ? kWinogradChunk / 2 : lanes < 16 && s.in_channels >= kManyInputs ? kMostInputs : kWinogradChunk;
    w.chunk = std::min(inputs, most / pass_floats);
    w.panel_floats = static_cast<std::size_t>(w.chunk) * pass_floats;
  } else {
    const std::size_t maps = static_cast<std::size_t>(s.in_channels) * s.input.height * s.input.width +
                             static_cast<std::size_t>(s.out_channels) * s.output.height * s.output.width;
    const std::size_t tile_size = tile_floats(plan, s.in_channels, s.out_channels);
    if (tiles >= kGatherTiles) w.gather_floats = maps / kGatherShare;
    w.block_floats = std::clamp(maps / kScratchShare, kFewestTiles * tile_size, kPlannedTiles * tile_size);
  }
}

ConvScratchFloats winograd_scratch(const ConvPlan& plan, int most_in, int most_out) {
  const WinogradPlan& w = plan.winograd;
  if (w.shared) {
    const std::size_t positions = static_cast<std::size_t>(w.tile_groups) * (plan.kernels->lanes / 2) * position_groups(w.tile) * 4;
    return {positions * lines_of(most_in), input_floats(w) + positions * std::min(outs_together(plan), most_out), 0};
  }
  const std::size_t gathered = gathered_floats(plan, most_in) * parts_of(plan, most_out);
  const std::size_t block = kWinogradTiles * tile_floats(plan, most_in, most_out);
  return {std::min(gathered, w.gather_floats), input_floats(w) + std::min(block, w.block_floats), gathered > w.gather_floats ? gathered : 0};
}

int winograd_stages(const ConvPlan& plan, const ConvTask& task) {
  return plan.winograd.shared || gathers(plan, task) ? 2 : 1;
}

int winograd_units(const ConvPlan& plan, const ConvTask& task, int stage) {
  if (task.out_count == 0) return 0;
  if (!plan.winograd.shared) {
    return stage == 0 && gathers(plan, task) ? parts_of(plan, task.out_count) : blocks_of(plan, task);
  }
  return stage == 0 ? (task.in_count + kTransformUnit - 1) / kTransformUnit : parts_of(plan, task.out_count);
}

void run_winograd(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                  const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  const WinogradPlan& w = plan.winograd;
  const WinogradKernels& kernels = w.tile == 2 ? plan.kernels->winograd2 : plan.kernels->winograd4;
  const int blocks = blocks_of(plan, task);
  const int parts = parts_of(plan, task.out_count);
  WinogradArgs args;
  args.input = task.input;
  args.in_stride = s.input.stride();
  args.in_origin = s.input.origin();
  args.height = s.input.height;
  args.width = s.input.width;
  args.in_pitch = s.input.pitch();
  args.pad_h = s.pad_h;
  args.pad_w = s.pad_w;
  args.zero_row = w.zero_row.data();
  args.in_list = task.in_list;
  args.in_count = task.in_count;
  args.in_channels = s.in_channels;
  args.weights = w.weights.data();
  args.gathered = nullptr;
  const bool gathered = gathers(plan, task);
  const bool lines = w.lines && task.in_count <= kLinesShare * s.in_channels;
  args.filters = !lines && (gathered || uses_fresh(plan, task)) ? plan.weights.data() : nullptr;
  args.lines = lines ? w.weights.data() : nullptr;
  args.first_outs = w.shared && (args.filters || args.lines) ? std::min(plan.kernels->winograd_panel, task.out_count) : 0;
  args.fetches_many = plan.fetches_many;
  args.tiles_x = w.tiles_x;
  args.tiles_y = w.tiles_y;
  args.out = conv_output(plan, task);
  args.rows = scratch.thread;
  args.rows_pitch = static_cast<std::ptrdiff_t>(w.rows_pitch);
  args.row_banks = w.row_banks;
  args.panel = scratch.thread;
  args.sums = scratch.thread + input_floats(w);
  args.chunk = w.chunk;
  args.tiles_step = static_cast<std::ptrdiff_t>(lines_of(task.in_count)) * 2 * plan.kernels->lanes;
  const int group = plan.kernels->lanes / 2;
  const int tiles = w.tiles_x * w.tiles_y;
  const std::size_t gathered_part = gathered_floats(plan, task.in_count);
  float* const gathered_to = gathers_in(plan, task, w.gather_floats) ? scratch.shared : task.spare;
  const auto multiply = [&](int part) {
    if (gathered) args.gathered = gathered_to + part * gathered_part;
    args.later = later_rows(task, part, parts);
    kernels.multiply(args, first_of(plan, part, parts, task.out_count), first_of(plan, part + 1, parts, task.out_count));
  };
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    if (w.shared) {
      args.tile_begin = 0;
      args.tile_end = tiles;
      args.transformed = scratch.shared;
      if (stage == 0) {
        kernels.transform(args, unit * kTransformUnit, std::min((unit + 1) * kTransformUnit, task.in_count));
      } else {
        multiply(unit);
      }
      continue;
    }
    if (gathered && stage == 0) {
      args.tile_begin = 0;
      args.tile_end = tiles;
      kernels.gather(args, first_of(plan, unit, parts, task.out_count), first_of(plan, unit + 1, parts, task.out_count),
                     gathered_to + unit * gathered_part);
      continue;
    }
    const int first = static_cast<int>(std::int64_t{unit} * w.tile_groups / blocks);
    const int last = static_cast<int>(std::int64_t{unit + 1} * w.tile_groups / blocks);
    args.tile_begin = first * group;
    args.tile_end = std::min(last * group, tiles);
    const std::ptrdiff_t positions = static_cast<std::ptrdiff_t>(last - first) * group * position_groups(w.tile) * 4;
    args.transformed = args.sums + positions * std::min(outs_together(plan), task.out_count);
    kernels.transform(args, 0, task.in_count);
    for (int part = 0; part < parts; ++part) multiply(part);
  }
}

}  // namespace penstock
