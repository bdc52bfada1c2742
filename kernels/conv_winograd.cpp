// Planning Winograd: weights transformed once, tiles cut into blocks whose transformed input stays in cache.
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

// Bytes of transformed input that a block may have: half of a common second-level cache.
constexpr std::size_t kBlockBytes = 256 << 10;
constexpr std::size_t kSharedBytes = 1 << 20;

constexpr int kTransformUnit = 8;  // input channels of one unit

// With this many tiles or fewer, weights are transformed for every image as they are used (see multiply_fresh).
constexpr int kFreshTiles = 32;

void transform_weights(WinogradPlan& w, const ConvShape& s, const float* weights, int groups) {
  w.weights.allocate(static_cast<std::size_t>(s.out_channels) * s.in_channels * groups * 4);
  const std::ptrdiff_t group_step = static_cast<std::ptrdiff_t>(s.in_channels) * 4;
  for (std::ptrdiff_t o = 0; o < s.out_channels; ++o) {
    for (std::ptrdiff_t i = 0; i < s.in_channels; ++i) {
      const float* filter = weights + (o * s.in_channels + i) * 9;
      float* to = w.weights.data() + o * groups * group_step + i * 4;
      if (w.tile == 2) {
        transform_filter(kFilter2, filter, to, group_step);
      } else {
        transform_filter(kFilter4, filter, to, group_step);
      }
    }
  }
}

int position_groups(int tile) { return tile == 2 ? 4 : 9; }

int multiply_units(int out_count) { return (out_count + kWinogradOuts - 1) / kWinogradOuts; }

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
  w.rows_floats = w.rows_pitch * (tile + 2);

  const int tiles = w.tiles_x * w.tiles_y;
  const bool fresh = tiles <= kFreshTiles;
  if (fresh) {
    w.panel_floats = static_cast<std::size_t>(groups) * kWinogradChunk * kWinogradPanelFloats;
  } else {
    transform_weights(w, s, weights, groups);
  }
  const int tile_groups = (tiles + tile_group - 1) / tile_group;
  const std::size_t group_bytes = sizeof(float) * groups * group_floats * s.in_channels;
  int block_groups = tile_groups;
  if (!fresh && tile_groups * group_bytes > kSharedBytes) {
    // Equal blocks, as large as the cache allows.
    const int most = std::max<int>(1, static_cast<int>(kBlockBytes / group_bytes));
    const int blocks = (tile_groups + most - 1) / most;
    block_groups = (tile_groups + blocks - 1) / blocks;
  }
  w.block_tiles = std::min(tiles, block_groups * tile_group);
  w.blocks = (tiles + w.block_tiles - 1) / w.block_tiles;
  w.transformed_floats = static_cast<std::size_t>(groups) * block_groups * group_floats * s.in_channels;
  w.sums_floats = static_cast<std::size_t>(std::min(kWinogradOuts, s.out_channels)) * groups * block_groups * group_floats;
}

std::size_t winograd_shared_floats(const ConvPlan& plan) {
  return plan.winograd.blocks == 1 ? plan.winograd.transformed_floats : 0;
}

std::size_t winograd_thread_floats(const ConvPlan& plan) {
  const WinogradPlan& w = plan.winograd;
  return w.rows_floats + w.sums_floats + w.panel_floats + (w.blocks == 1 ? 0 : w.transformed_floats);
}

int winograd_stages(const ConvPlan& plan) { return plan.winograd.blocks == 1 ? 2 : 1; }

int winograd_units(const ConvPlan& plan, const ConvTask& task, int stage) {
  if (task.out_count == 0) return 0;
  if (plan.winograd.blocks > 1) return plan.winograd.blocks;
  return stage == 0 ? (task.in_count + kTransformUnit - 1) / kTransformUnit : multiply_units(task.out_count);
}

void run_winograd(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                  const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  const WinogradPlan& w = plan.winograd;
  const WinogradKernels& kernels = w.tile == 2 ? plan.kernels->winograd2 : plan.kernels->winograd4;
  const bool shared = w.blocks == 1;
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
  args.filters = w.weights.data() == nullptr ? plan.weights.data() : nullptr;
  args.tiles_x = w.tiles_x;
  args.tiles_y = w.tiles_y;
  args.out = conv_output(plan, task);
  args.rows = scratch.thread;
  args.rows_pitch = static_cast<std::ptrdiff_t>(w.rows_pitch);
  args.sums = scratch.thread + w.rows_floats;
  args.panel = args.sums + w.sums_floats;
  args.transformed = shared ? scratch.shared : args.panel + w.panel_floats;
  const int parts = multiply_units(task.out_count);
  for (int unit = unit_begin; unit < unit_end; ++unit) {
    const int block = shared ? 0 : unit;
    args.tile_begin = block * w.block_tiles;
    args.tile_end = std::min(args.tile_begin + w.block_tiles, w.tiles_x * w.tiles_y);
    if (shared && stage == 0) {
      kernels.transform(args, unit * kTransformUnit, std::min((unit + 1) * kTransformUnit, task.in_count));
    } else if (shared) {
      kernels.multiply(args, unit * task.out_count / parts, (unit + 1) * task.out_count / parts);
    } else {
      kernels.transform(args, 0, task.in_count);
      for (int part = 0; part < parts; ++part) {
        kernels.multiply(args, part * task.out_count / parts, (part + 1) * task.out_count / parts);
      }
    }
  }
}

}  // namespace penstock
