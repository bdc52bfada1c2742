// Planning Winograd: who transforms the weights, and how tiles are cut into blocks.
#include <algorithm>

#include "conv/plan.h"

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

// Where position (r, j) lies: its group and its lane. Must agree with winograd_tiles.inl.
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

int position_groups(int tile) { return tile == 2 ? 4 : 9; }

void transform_weights(const WinogradPlan& w, const ConvShape& s, const float* weights) {
  const int groups = position_groups(w.tile);
  const bool lines = w.kept == WeightFormat::lines;
  const std::ptrdiff_t group_step = lines ? 4 : static_cast<std::ptrdiff_t>(s.in_channels) * 4;
  const std::ptrdiff_t in_step = lines ? groups * 4 : 4;
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

// Whether all tiles are one block that threads share.
bool shares(const ConvPlan& plan) { return plan.winograd.split == Split::channels; }

// How many output channels share one pass over the transformed input. A pass is expensive when that input comes from L3 or memory,
// so more outputs share it then.
int outs_together(const ConvPlan& plan) {
  const WinogradPlan& w = plan.winograd;
  const Tuning& t = plan.tuning();
  const bool near = shares(plan) && w.tiles_x * w.tiles_y <= t.fresh_tiles && plan.shape.in_channels <= t.small_inputs;
  return near ? kWinogradOuts / 2 : kWinogradOuts;
}

int panels_of(const ConvPlan& plan, int out_count) {
  return (out_count + plan.kernels->winograd_panel - 1) / plan.kernels->winograd_panel;
}

// Into how many parts the outputs are divided; each part makes one pass over the transformed input. Where threads divide the parts,
// their number is even, so that two threads get the same work.
int parts_of(const ConvPlan& plan, int out_count) {
  const int most = outs_together(plan);
  const int parts = (out_count + most - 1) / most;
  return shares(plan) && parts % 2 == 1 && out_count > plan.kernels->winograd_panel ? parts + 1 : parts;
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
  return static_cast<std::size_t>(outs_together(plan) / plan.kernels->winograd_panel) * position_groups(plan.winograd.tile) *
         in_count * plan.kernels->winograd_panel_floats;
}

// Whether the gathered weights fit in this many floats.
bool gathers_in(const ConvPlan& plan, const ConvTask& task, std::size_t floats) {
  return gathered_floats(plan, task.in_count) * parts_of(plan, task.out_count) <= floats;
}

bool gathers(const ConvPlan& plan, const ConvTask& task) {
  return !shares(plan) && task.in_count < plan.shape.in_channels &&
         gathers_in(plan, task, std::max(plan.winograd.gather_floats, task.spare_floats));
}

// The format in which the task reads its weights. Gathered weights are made from the filters first.
WeightFormat format_of(const ConvPlan& plan, const ConvTask& task) {
  const WinogradPlan& w = plan.winograd;
  const Tuning& t = plan.tuning();
  const int all = plan.shape.in_channels;
  if (w.kept == WeightFormat::lines && task.in_count <= t.lines_share * all) return WeightFormat::lines;
  if (gathers(plan, task)) return WeightFormat::gathered;
  const bool few = shares(plan) && task.in_count <= t.fresh_share * all;
  return w.kept == WeightFormat::positions && !few ? WeightFormat::positions : WeightFormat::filters;
}

// Scratch for rows that are half transformed. Where threads share the transformed input, transforming is a stage of its own, and the
// next stage uses the same memory for a panel of weights.
std::size_t input_floats(const WinogradPlan& w) {
  return w.split == Split::channels ? std::max(w.rows_floats, w.panel_floats) : w.rows_floats;
}

// Lines of transformed input that lie between one group of tiles and the next.
int lines_of(int in_count) { return in_count | 1; }

// Floats that one tile of a block takes: transformed input and sums.
std::size_t tile_floats(const ConvPlan& plan, int in_count, int out_count) {
  const std::size_t positions = static_cast<std::size_t>(position_groups(plan.winograd.tile)) * 4;
  return positions * (lines_of(in_count) + std::max(1, std::min(outs_together(plan), out_count)));
}

// The number of blocks that the tiles are divided into: the fewest that fit in scratch with these active channels. With several
// threads there are at least four blocks, and an even number if there are few.
int blocks_of(const ConvPlan& plan, const ConvTask& task) {
  const WinogradPlan& w = plan.winograd;
  if (shares(plan)) return 1;
  const int group = plan.kernels->lanes / 2;
  const int fit = static_cast<int>(w.block_floats / tile_floats(plan, task.in_count, task.out_count)) / group;
  const int most = std::max(1, std::min(fit, kWinogradTiles / group));
  const int fewest = (w.tile_groups + most - 1) / most;
  if (task.threads == 1) return fewest;
  const int blocks = std::max(fewest, std::min(4, w.tile_groups));
  return blocks % 2 == 1 && blocks < std::min(8, w.tile_groups) ? blocks + 1 : blocks;
}

bool fits(const ConvShape& s) {
  return s.kernel_h == 3 && s.kernel_w == 3 && s.stride_h == 1 && s.stride_w == 1 && s.dilation_h == 1 && s.dilation_w == 1 &&
         s.groups == 1;
}

template <int kTile>
bool suits(const ConvPlan& plan) {
  return choose_tile(plan) == kTile;
}

double cost(const ConvPlan& plan, int in_count, int out_count) {
  const int fewest = plan.tuning().winograd_channels;
  return in_count >= fewest && out_count >= fewest ? 3 : kNever;
}

template <int kTile>
void plan_winograd(ConvPlan& plan, const float* weights) {
  constexpr int tile = kTile;
  const Tuning& t = plan.tuning();
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
  w.split = tiles <= std::min(t.shared_tiles, kWinogradTiles) ? Split::channels : Split::tiles;
  const std::int64_t pairs = std::int64_t{s.in_channels} * s.out_channels;
  const bool fresh = shares(plan) && (tiles <= t.fresh_tiles || pairs >= t.fresh_pairs);
  w.kept = !fresh ? WeightFormat::positions : tile == 2 && pairs >= t.lines_pairs ? WeightFormat::lines : WeightFormat::filters;
  if (w.kept != WeightFormat::filters) w.weights.allocate_shared(static_cast<std::size_t>(pairs) * groups * 4);
  if (w.kept == WeightFormat::positions) transform_weights(w, s, weights);
  if (shares(plan)) {
    // Layers with few inputs have small feature maps; their scratch is kept small as well.
    const bool small = s.in_channels <= t.small_inputs;
    const int pass_floats = groups * plan.kernels->winograd_panel_floats;  // of one input
    const int most = small ? t.small_panel_floats : t.panel_floats;
    const int inputs = small                            ? kWinogradChunk / 2
                       : s.in_channels >= t.many_inputs ? std::min(t.many_inputs_chunk, kWinogradChunk)
                                                        : kWinogradChunk;
    w.chunk = std::min(inputs, most / pass_floats);
    w.panel_floats = static_cast<std::size_t>(w.chunk) * pass_floats;
  } else {
    const std::size_t maps = static_cast<std::size_t>(s.in_channels) * s.input.height * s.input.width +
                             static_cast<std::size_t>(s.out_channels) * s.output.height * s.output.width;
    const std::size_t tile_size = tile_floats(plan, s.in_channels, s.out_channels);
    if (tiles >= t.gather_tiles) w.gather_floats = maps / static_cast<std::size_t>(t.gather_share);
    w.block_floats =
        std::clamp(maps / static_cast<std::size_t>(t.scratch_share), static_cast<std::size_t>(t.fewest_tiles) * tile_size,
                   static_cast<std::size_t>(t.planned_tiles) * tile_size);
  }
}

ConvScratchFloats scratch_of(const ConvPlan& plan, int most_in, int most_out) {
  const WinogradPlan& w = plan.winograd;
  if (shares(plan)) {
    const std::size_t positions = static_cast<std::size_t>(w.tile_groups) * (plan.kernels->lanes / 2) * position_groups(w.tile) * 4;
    return {positions * lines_of(most_in), input_floats(w) + positions * std::min(outs_together(plan), most_out), 0};
  }
  const std::size_t gathered = gathered_floats(plan, most_in) * parts_of(plan, most_out);
  const std::size_t block = kWinogradTiles * tile_floats(plan, most_in, most_out);
  return {std::min(gathered, w.gather_floats), input_floats(w) + std::min(block, w.block_floats),
          gathered > w.gather_floats ? gathered : 0};
}

int stages(const ConvPlan& plan, const ConvTask& task) { return shares(plan) || gathers(plan, task) ? 2 : 1; }

int units(const ConvPlan& plan, const ConvTask& task, int stage) {
  if (task.out_count == 0) return 0;
  if (!shares(plan)) {
    return stage == 0 && gathers(plan, task) ? parts_of(plan, task.out_count) : blocks_of(plan, task);
  }
  const int some = plan.tuning().transform_inputs;
  return stage == 0 ? (task.in_count + some - 1) / some : parts_of(plan, task.out_count);
}

void run_winograd(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end, const ConvScratch& scratch) {
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
  const WeightFormat format = format_of(plan, task);
  const bool gathered = format == WeightFormat::gathered;
  args.weight_format = gathered ? WeightFormat::filters : format;
  args.weights = args.weight_format == WeightFormat::filters ? plan.weights.data() : w.weights.data();
  const bool prepared = format == WeightFormat::positions;  // nothing is left to do but to multiply
  args.first_outs = shares(plan) && !prepared ? std::min(plan.kernels->winograd_panel, task.out_count) : 0;
  args.fetches_many = plan.machine.fetches_many();
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
    if (gathered) {
      args.weight_format = WeightFormat::gathered;
      args.weights = gathered_to + part * gathered_part;
    }
    args.later = later_rows(task, part, parts);
    kernels.multiply(args, first_of(plan, part, parts, task.out_count), first_of(plan, part + 1, parts, task.out_count));
  };
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    if (shares(plan)) {
      args.tile_begin = 0;
      args.tile_end = tiles;
      args.transformed = scratch.shared;
      if (stage == 0) {
        const int some = plan.tuning().transform_inputs;
        kernels.transform(args, unit * some, std::min((unit + 1) * some, task.in_count));
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

bool fetches_later(const ConvPlan& plan) { return shares(plan); }

void complete(const ConvPlan& plan, const ConvTask& task) {
  const WinogradPlan& w = plan.winograd;
  if (w.kept != WeightFormat::lines || format_of(plan, task) != WeightFormat::lines) return;
  w.lines.ensure([&] { transform_weights(w, plan.shape, plan.weights.data()); });
}

template <int kTile>
constexpr ConvAlgorithm algorithm(const char* name) {
  return {{name, Element::float32, "a 3x3 kernel with stride 1, dilation 1 and one group"},
          fits,
          suits<kTile>,
          cost,
          plan_winograd<kTile>,
          scratch_of,
          stages,
          units,
          run_winograd,
          nullptr,
          fetches_later,
          complete};
}

}  // namespace

int choose_tile(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  const Tuning& t = plan.tuning();
  if (!fits(s) || s.in_channels < t.winograd_channels || s.out_channels < t.winograd_channels) return 0;
  return s.output.height <= t.small_tile_side && s.output.width <= t.small_tile_side ? 2 : 4;
}

// F(2x2, 3x3) and F(4x4, 3x3).
const ConvAlgorithm kWinograd2 = algorithm<2>("winograd2");
const ConvAlgorithm kWinograd4 = algorithm<4>("winograd4");

}  // namespace penstock
