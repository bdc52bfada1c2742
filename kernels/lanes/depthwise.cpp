// Planning and running depthwise convolutions on maps of pixels.
#include <algorithm>
#include <cstring>

#include "conv/plan.h"
#include "lanes/lanes.h"
#include "lanes/panels.h"

namespace penstock {

namespace {

bool same_lists(const ConvTask& task) {
  return task.in_count == task.out_count && std::equal(task.in_list, task.in_list + task.in_count, task.out_list);
}

// Where things lie in the shared scratch, in floats.
struct Scratch {
  std::size_t gain, offset, first_piece, pieces, rows, weights, sums, spread, total;
};

Scratch lay_out(const ConvPlan& plan, int in_count, int out_count) {
  const std::size_t floats = static_cast<std::size_t>(vectors_of(plan, out_count) * plan.kernels->lanes);
  const Planes& in = plan.shape.input;
  Scratch lay{};
  std::size_t at = 0;
  const auto take = [&at](std::size_t n) {
    const std::size_t here = at;
    at += (n + 15) / 16 * 16;
    return here;
  };
  lay.gain = take(floats);
  lay.offset = take(floats);
  lay.first_piece = take(floats + 1);
  const int channels = plan.shape.in_channels;
  const std::int64_t pieces = std::max(spread_pieces(channels, out_count), spread_pieces(in_count, out_count));
  lay.pieces = take(sizeof(LanesPiece) / 4 * static_cast<std::size_t>(pieces));
  lay.rows = take(static_cast<std::size_t>(plan.taps()));
  lay.weights = take(floats * static_cast<std::size_t>(plan.taps()));
  lay.sums = take(floats * static_cast<std::size_t>(plan.depthwise.blocks));
  // Inputs in the order of the outputs, where the lists differ.
  lay.spread = take(static_cast<std::size_t>(pixel_floats(out_count)) * static_cast<std::size_t>(in.height) *
                        static_cast<std::size_t>(in.width) +
                    kVectorSlack);
  lay.total = at;
  return lay;
}

template <typename T>
T* at(float* scratch, std::size_t floats) {
  return reinterpret_cast<T*>(scratch + floats);
}

// The plan's weights of the task's outputs.
const float* weights_of(const ConvPlan& plan, const ConvTask& task, const Scratch& lay, float* scratch) {
  return task.out_count == plan.shape.out_channels ? plan.depthwise.weights.data() : scratch + lay.weights;
}

void gather_weights(const ConvPlan& plan, const ConvTask& task, const Scratch& lay, float* scratch) {
  const LanesKernels& kernels = lanes_kernels(plan.machine.isa);
  const int lanes = kernels.lanes, taps = plan.taps(), vectors = vectors_of(plan, task.out_count);
  std::int32_t* const first = at<std::int32_t>(scratch, lay.first_piece);
  LanesPiece* const pieces = at<LanesPiece>(scratch, lay.pieces);
  int count = 0;
  for (int v = 0; v < vectors; ++v) {
    first[v] = count;
    int last = -1;
    for (int p = v * lanes; p < std::min(task.out_count, (v + 1) * lanes); ++p) {
      const int source = task.out_list[p] / lanes;
      if (source != last) {
        pieces[count].from = static_cast<std::int64_t>(source) * taps * lanes;
        pieces[count].step = lanes;
        std::fill(pieces[count].places, pieces[count].places + 16, -1);
        ++count;
        last = source;
      }
      pieces[count - 1].places[p % lanes] = task.out_list[p] % lanes;
    }
  }
  first[vectors] = count;
  // Taps are what inputs are to a panel of one vector.
  std::int32_t* const rows = at<std::int32_t>(scratch, lay.rows);
  for (int t = 0; t < taps; ++t) rows[t] = t;
  const LanesGather args = {plan.depthwise.weights.data(), pieces, first, rows, 1, taps, false};
  for (int v = 0; v < vectors; ++v) {
    const LanesPanel panel = {1, v * lanes, lanes, 0, taps, 0, v, 0};
    kernels.gather(args, panel, scratch + lay.weights + static_cast<std::ptrdiff_t>(v) * taps * lanes);
  }
}

void prepare(const ConvPlan& plan, const ConvTask& task, const Scratch& lay, float* scratch) {
  const int lanes = plan.kernels->lanes;
  const std::size_t floats = static_cast<std::size_t>(vectors_of(plan, task.out_count) * lanes);
  std::memset(scratch + lay.gain, 0, 4 * floats);
  std::memset(scratch + lay.offset, 0, 4 * floats);
  const float* const bias = task.bias ? task.bias : plan.bias.data();
  for (int p = 0; p < task.out_count; ++p) {
    const float gain = task.gain ? task.gain[p] : 1.0f;
    scratch[lay.gain + static_cast<std::size_t>(p)] = gain;
    scratch[lay.offset + static_cast<std::size_t>(p)] = gain * bias[task.out_list[p]];
  }
  if (task.out_count < plan.shape.out_channels) gather_weights(plan, task, lay, scratch);
  if (!same_lists(task))
    set_spread(lanes_kernels(plan.machine.isa), task.in_list, task.in_count, task.out_list, task.out_count,
               at<std::int32_t>(scratch, lay.first_piece), at<LanesPiece>(scratch, lay.pieces));
  std::memset(scratch + lay.sums, 0, 4 * floats * static_cast<std::size_t>(plan.depthwise.blocks));
  clear_pixel_padding(task.output, plan.shape.output, pixel_floats(task.out_count));
}

void spread_rows(const ConvPlan& plan, const ConvTask& task, const Scratch& lay, float* scratch, int begin, int end) {
  const Planes& in = plan.shape.input;
  const std::ptrdiff_t pixel = pixel_floats(task.in_count), to = pixel_floats(task.out_count);
  const float infinity = __builtin_inff();
  const PixelCombination all = {{{task.input + in.origin() * pixel, pixel, in.pitch() * pixel, at<LanesPiece>(scratch, lay.pieces),
                                  at<std::int32_t>(scratch, lay.first_piece)},
                                 {}},
                                1,
                                nullptr,
                                nullptr,
                                -infinity,
                                infinity,
                                scratch + lay.spread,
                                to,
                                in.width * to,
                                in.width,
                                vectors_of(plan, task.out_count),
                                plan.kernels->lanes,
                                nullptr,
                                0};
  lanes_kernels(plan.machine.isa).combine(all, begin, end);
}

int chunks_of(const ConvPlan& plan, int out_count) {
  const int most = plan.tuning().lanes_depthwise_vectors;
  return (vectors_of(plan, out_count) + most - 1) / most;
}

void convolve(const ConvPlan& plan, const ConvTask& task, const Scratch& lay, float* scratch, int unit) {
  const ConvShape& s = plan.shape;
  const int vectors = vectors_of(plan, task.out_count), chunks = chunks_of(plan, task.out_count);
  const int block = unit / chunks, chunk = unit % chunks, blocks = plan.depthwise.blocks;
  const bool same = same_lists(task);
  const std::ptrdiff_t pixel = pixel_floats(task.out_count), pitch = same ? s.input.pitch() : s.input.width;
  const DepthwiseArgs args = {same ? task.input + s.input.origin() * pixel : scratch + lay.spread,
                              pixel,
                              pitch * pixel,
                              s.input.height,
                              s.input.width,
                              s.kernel_h,
                              s.kernel_w,
                              s.stride_h,
                              s.stride_w,
                              s.pad_h,
                              s.pad_w,
                              s.dilation_h,
                              s.dilation_w,
                              weights_of(plan, task, lay, scratch),
                              lanes_output(plan, task, scratch + lay.gain, scratch + lay.offset)};
  float* const sums = task.sums ? scratch + lay.sums + static_cast<std::ptrdiff_t>(block) * vectors * plan.kernels->lanes : nullptr;
  const auto part = [](int count, int i, int n) { return static_cast<int>(static_cast<std::int64_t>(count) * i / n); };
  lanes_kernels(plan.machine.isa)
      .depthwise(args, part(s.output.height, block, blocks), part(s.output.height, block + 1, blocks), part(vectors, chunk, chunks),
                 part(vectors, chunk + 1, chunks), sums);
}

void add_sums(const ConvPlan& plan, const ConvTask& task, const Scratch& lay, const float* scratch) {
  const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(vectors_of(plan, task.out_count)) * plan.kernels->lanes;
  for (int p = 0; p < task.out_count; ++p) {
    float sum = 0.0f;
    for (int b = 0; b < plan.depthwise.blocks; ++b) sum += scratch[lay.sums + static_cast<std::size_t>(b * step + p)];
    task.sums[p] = sum;
  }
}

bool fits(const ConvShape& s) { return conv_needs_no_halo(s); }
bool suits(const ConvPlan&) { return true; }
double cost(const ConvPlan&, int, int) { return 0; }

void plan_depthwise(ConvPlan& plan, const float* weights) {
  const ConvShape& s = plan.shape;
  DepthwisePlan& d = plan.depthwise;
  const int lanes = plan.kernels->lanes, taps = plan.taps();
  const std::size_t floats = static_cast<std::size_t>(vectors_of(plan, s.out_channels) * lanes) * static_cast<std::size_t>(taps);
  d.weights.allocate_shared(floats + kPickSlack);
  std::memset(d.weights.data(), 0, sizeof(float) * (floats + kPickSlack));
  for (int c = 0; c < s.out_channels; ++c)
    for (int t = 0; t < taps; ++t)
      d.weights.data()[(static_cast<std::int64_t>(c / lanes) * taps + t) * lanes + c % lanes] = weights[std::int64_t{c} * taps + t];
  const std::int64_t results = std::int64_t{s.output.height} * s.output.width * s.out_channels;
  d.blocks = static_cast<int>(std::clamp<std::int64_t>(results / plan.tuning().lanes_depthwise_floats, 1, s.output.height));
}

ConvScratchFloats scratch_of(const ConvPlan& plan, int most_in, int most_out) {
  return {lay_out(plan, most_in, most_out).total, 0, 0};
}

// Preparation, inputs in the order of the outputs where the lists differ, products, sums.
int stages(const ConvPlan&, const ConvTask& task) { return 2 + (same_lists(task) ? 0 : 1) + (task.sums ? 1 : 0); }

int units(const ConvPlan& plan, const ConvTask& task, int stage) {
  const bool same = same_lists(task);
  if (stage == 0) return 1;
  if (!same && stage == 1) return plan.shape.input.height;
  if (stage == (same ? 1 : 2)) return plan.depthwise.blocks * chunks_of(plan, task.out_count);
  return 1;
}

void run_depthwise(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end,
                   const ConvScratch& scratch) {
  const Scratch lay = lay_out(plan, task.in_count, task.out_count);
  const bool same = same_lists(task);
  if (stage == 0) return prepare(plan, task, lay, scratch.shared);
  if (!same && stage == 1) return spread_rows(plan, task, lay, scratch.shared, unit_begin, unit_end);
  if (stage == (same ? 1 : 2)) {
    for (int unit = unit_begin; unit < unit_end; ++unit) convolve(plan, task, lay, scratch.shared, unit);
    return;
  }
  add_sums(plan, task, lay, scratch.shared);
}

}  // namespace

const ConvAlgorithm kDepthwise = {{"depthwise", Element::float32, "one input and one output channel a group, in pixels"},
                                  fits,
                                  suits,
                                  cost,
                                  plan_depthwise,
                                  scratch_of,
                                  stages,
                                  units,
                                  run_depthwise,
                                  nullptr,
                                  nullptr,
                                  nullptr,
                                  Layout::pixels};

}  // namespace penstock
