// Running an int8 convolution: scratch, per-image lists and factors, stages and units.
#include <algorithm>
#include <cstring>

#include "int8/kernels.h"

namespace penstock {
namespace {

constexpr int kGatherChunk = 8;                     // pairs or quads of inputs in a unit, where threads share them
constexpr std::size_t kDirectBytes = 160 << 10;     // widened input of a unit
constexpr int kFewPixels = 48, kMostPixels = 1024;  // of a direct unit, unless one row has more
constexpr std::size_t kMostAhead = 768 << 10;       // weights that are fetched for a task that skips nothing
constexpr std::size_t kWinogradBytes = 400 << 10;   // transformed input and products of a unit
constexpr std::size_t kPackedSlack = 64;            // zero bytes after packed weights

bool all_active(const Int8Plan& plan, int in_count, int out_count) {
  return in_count == plan.shape.in_channels && out_count == plan.shape.out_channels;
}

int packed_index(Int8Algorithm algorithm) { return algorithm == Int8Algorithm::winograd ? 1 : 0; }

bool has_packed(const Int8Plan& plan, Int8Algorithm algorithm, int in_count, int out_count) {
  return all_active(plan, in_count, out_count) && plan.packed_bytes[packed_index(algorithm)] > 0;
}

// Bytes of gathered weights for so many active channels, at most.
std::size_t weight_bytes(const Int8Plan& plan, Int8Algorithm algorithm, int in_count, int vectors) {
  const Int8Kernels& k = *plan.kernels;
  const std::size_t vector = static_cast<std::size_t>(4 * k.lanes);
  if (algorithm == Int8Algorithm::depthwise)
    return static_cast<std::size_t>(vectors) * static_cast<std::size_t>((plan.taps + 1) / 2) * vector;
  const bool transformed = algorithm == Int8Algorithm::winograd;
  const int size = k.group;
  const int inputs = plan.image_rows ? plan.inputs : std::min(in_count, plan.inputs);
  if (transformed) return static_cast<std::size_t>(filter_bytes((inputs + 1) / 2, vectors, k.lanes, k.most_vectors));
  return static_cast<std::size_t>(vectors) * static_cast<std::size_t>(plan.taps) *
         static_cast<std::size_t>((inputs + size - 1) / size) * static_cast<std::size_t>(std::max(4, size) * k.lanes);
}

int padded_words(const Int8Kernels& k, int in_count) { return (in_count + 2 * k.lanes - 1) / (2 * k.lanes) * 2 * k.lanes; }

Int8Scratch lay_out(const Int8Plan& plan, Int8Algorithm algorithm, int in_count, int out_count, int threads) {
  const Int8Shape& s = plan.shape;
  const Int8Kernels& k = *plan.kernels;
  Int8Scratch lay{};
  std::size_t at = 0;
  const auto take = [&at](std::size_t bytes) {
    const std::size_t here = at;
    at += round_bytes(bytes);
    return here;
  };
  // Outputs of each group begin a vector of their own.
  lay.vectors = s.groups == 1 || algorithm == Int8Algorithm::depthwise
                    ? (out_count + k.lanes - 1) / k.lanes
                    : s.groups * ((s.out_channels / s.groups + k.lanes - 1) / k.lanes);
  const std::size_t lanes = static_cast<std::size_t>(lay.vectors) * static_cast<std::size_t>(k.lanes);
  const std::size_t blocks =
      algorithm == Int8Algorithm::depthwise ? 0 : static_cast<std::size_t>(s.groups) * static_cast<std::size_t>(plan.row / 16);
  lay.groups = take(sizeof(Int8Group) * static_cast<std::size_t>(s.groups));
  lay.masks = take(16 * blocks);
  lay.starts = take(4 * blocks);
  lay.places = take(algorithm == Int8Algorithm::depthwise ? 4 * static_cast<std::size_t>(out_count) : 0);
  lay.mul = take(4 * lanes);
  lay.add = take(4 * lanes);
  lay.init = take(4 * lanes);
  lay.weights = take(has_packed(plan, algorithm, in_count, out_count) ? 0 : weight_bytes(plan, algorithm, in_count, lay.vectors));
  lay.thread = at;
  lay.sums = take(4 * lanes) - lay.thread;
  lay.rows = take(static_cast<std::size_t>(std::max(4, k.group)) * static_cast<std::size_t>(plan.taps) *
                  static_cast<std::size_t>(plan.row + 80)) -
             lay.thread;
  const std::size_t in_bytes = static_cast<std::size_t>(pixel_bytes(s.in_channels, in_count));
  if (algorithm == Int8Algorithm::winograd) {
    const int tiles = (s.output.width + 3) / 4 * ((s.output.height + 3) / 4);
    const std::size_t words = static_cast<std::size_t>(padded_words(k, in_count));
    lay.unit_rows = winograd_unit_tiles(plan, in_count, threads);
    const int units = (tiles + lay.unit_rows - 1) / lay.unit_rows;
    lay.row_units = units;
    lay.panel_units = 1;
    lay.position = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(lay.unit_rows) * words) + 2 * k.lanes;
    lay.transformed = take(36 * 2 * static_cast<std::size_t>(lay.position)) - lay.thread;
    lay.products = take(36 * 4 * static_cast<std::size_t>((lay.unit_rows * k.most_vectors + 1) * k.lanes)) - lay.thread;
  } else {
    const bool copies = algorithm == Int8Algorithm::depthwise || k.group == 2;
    const std::size_t pixel =
        algorithm == Int8Algorithm::depthwise ? static_cast<std::size_t>(pixel_bytes(s.out_channels, out_count)) : 2 * in_bytes;
    const std::size_t row = pixel * static_cast<std::size_t>(s.input.pitch());
    const int height = s.output.height, reach = (s.kernel_h - 1) * s.dilation_h + 1;
    int rows = static_cast<int>(std::clamp<std::int64_t>(
        (static_cast<std::int64_t>(kDirectBytes / std::max<std::size_t>(1, row)) - reach) / s.stride_h + 1, 1, height));
    while (rows < height && rows * s.output.width < kFewPixels) ++rows;
    while (rows > 1 && rows * s.output.width > kMostPixels) --rows;
    if (threads > 1) rows = std::min(rows, std::max(1, (height + 2 * threads - 1) / (2 * threads)));
    lay.row_units = (height + rows - 1) / rows;
    lay.unit_rows = (height + lay.row_units - 1) / lay.row_units;
    lay.row_units = (height + lay.unit_rows - 1) / lay.unit_rows;
    lay.panel_units = 1;
    if (threads > 1 && algorithm == Int8Algorithm::direct && s.groups == 1 && lay.unit_rows * s.output.width < kFewPixels) {
      // Few pixels: threads divide the outputs instead.
      lay.unit_rows = height;
      lay.row_units = 1;
      lay.panel_units = std::clamp((lay.vectors + k.most_vectors - 1) / k.most_vectors, 1, 4 * threads);
    }
    const std::size_t input_rows = static_cast<std::size_t>((lay.unit_rows - 1) * s.stride_h + reach);
    lay.pixels = take(copies ? input_rows * row + pixel * static_cast<std::size_t>(s.pad_w + 1) + 256 : 0) - lay.thread;
    const std::size_t pixels = static_cast<std::size_t>(lay.unit_rows) * static_cast<std::size_t>(s.output.width);
    lay.sources = take(sizeof(void*) * pixels) - lay.thread;
    lay.targets = take(sizeof(void*) * pixels) - lay.thread;
  }
  lay.thread_size = at - lay.thread;
  lay.total = lay.thread + static_cast<std::size_t>(threads) * lay.thread_size;
  return lay;
}

Int8Run make_run(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch) {
  const Int8Algorithm algorithm = int8_algorithm(plan, task.in_count, task.out_count);
  return {plan, task, algorithm, lay_out(plan, algorithm, task.in_count, task.out_count, task.threads), scratch};
}

int gather_chunk(const Int8Task& task) { return task.threads > 1 ? kGatherChunk : 1 << 20; }

bool needs_gathering(const Int8Run& run) { return !has_packed(run.plan, run.algorithm, run.task.in_count, run.task.out_count); }

// Shuffles that bring a list's bytes out of each 16.
void make_masks(const std::int32_t* list, int begin, int end, int first, int blocks, std::uint8_t* masks, std::int32_t* starts) {
  std::memset(masks, 0x80, static_cast<std::size_t>(16 * blocks));
  for (int b = 0, i = begin; b < blocks; ++b) {
    starts[b] = i - begin;
    for (int k = 0; i < end && list[i] - first < 16 * (b + 1); ++i, ++k)
      masks[16 * b + k] = static_cast<std::uint8_t>(list[i] - first - 16 * b);
  }
}

// For depthwise: the input that each output reads, or -1.
void make_places(const Int8Task& task, std::int32_t* places) {
  for (int p = 0, q = 0; p < task.out_count; ++p) {
    while (q < task.in_count && task.in_list[q] < task.out_list[p]) ++q;
    places[p] = q < task.in_count && task.in_list[q] == task.out_list[p] ? q : -1;
  }
}

void fill_groups(const Int8Run& run) {
  const Int8Plan& plan = run.plan;
  const Int8Task& task = run.task;
  const Int8Kernels& k = *plan.kernels;
  const int in = plan.shape.in_channels / plan.shape.groups, out = plan.shape.out_channels / plan.shape.groups;
  Int8Group* const groups = reinterpret_cast<Int8Group*>(run.scratch + run.lay.groups);
  const int blocks = plan.row / 16;
  std::int64_t bytes = 0;
  int i = 0, o = 0, vector = 0;
  for (int g = 0; g < plan.shape.groups; ++g) {
    Int8Group& group = groups[g];
    group.in_begin = i;
    while (i < task.in_count && task.in_list[i] < (g + 1) * in) ++i;
    group.in_count = i - group.in_begin;
    group.out_begin = o;
    while (o < task.out_count && task.out_list[o] < (g + 1) * out) ++o;
    group.out_count = o - group.out_begin;
    group.vector = vector;
    group.weights = bytes;
    const int vectors = (group.out_count + k.lanes - 1) / k.lanes;
    vector += vectors;
    bytes += static_cast<std::int64_t>(weight_bytes(
        plan, run.algorithm == Int8Algorithm::depthwise ? Int8Algorithm::direct : run.algorithm, group.in_count, vectors));
    if (run.algorithm != Int8Algorithm::depthwise)
      make_masks(task.out_list, group.out_begin, o, g * out, blocks,
                 run.scratch + run.lay.masks + static_cast<std::size_t>(16 * blocks * g),
                 reinterpret_cast<std::int32_t*>(run.scratch + run.lay.starts) + blocks * g);
  }
  if (run.algorithm == Int8Algorithm::depthwise) make_places(task, reinterpret_cast<std::int32_t*>(run.scratch + run.lay.places));
}

// Where output p of the list stands among the vectors of outputs.
template <typename Each>
void each_output(const Int8Run& run, Each&& each) {
  if (run.plan.shape.groups == 1 || run.algorithm == Int8Algorithm::depthwise) {
    for (int p = 0; p < run.task.out_count; ++p) each(p, p);
    return;
  }
  for (int g = 0; g < run.plan.shape.groups; ++g) {
    const Int8Group& group = run.groups()[g];
    for (int i = 0; i < group.out_count; ++i) each(group.out_begin + i, group.vector * run.plan.kernels->lanes + i);
  }
}

void fill_factors(const Int8Run& run) {
  const Int8Plan& plan = run.plan;
  const Int8Shape& s = plan.shape;
  const Int8Task& task = run.task;
  const std::size_t lanes = static_cast<std::size_t>(run.lay.vectors * plan.kernels->lanes);
  float* const mul = reinterpret_cast<float*>(run.scratch + run.lay.mul);
  float* const add = reinterpret_cast<float*>(run.scratch + run.lay.add);
  std::int32_t* const init = reinterpret_cast<std::int32_t*>(run.scratch + run.lay.init);
  std::memset(mul, 0, 4 * lanes);
  std::memset(add, 0, 4 * lanes);
  std::memset(init, 0, 4 * lanes);
  Int8Finish f;
  set_limits(f, s.function, s.slope, s.out);
  const bool curved = s.function == Function::silu || s.function == Function::gelu || s.function == Function::hardswish;
  const float* const bias = task.bias ? task.bias : plan.bias.data();
  const int out = s.out_channels / s.groups;
  const int in = s.in_channels / s.groups;
  each_output(run, [&](int p, int lane) {
    const int o = task.out_list[p];
    float k = plan.scales[static_cast<std::size_t>(o)], b = bias[o];
    if (task.gain) {
      k *= task.gain[p];
      b *= task.gain[p];
    }
    mul[lane] = curved ? k : k * f.inverse;
    add[lane] = curved ? b : b * f.inverse;
    if (s.in.zero == 0) return;
    const Int8Group& group = run.groups()[o / out];
    std::int32_t total = 0;
    for (int i = group.in_begin; i < group.in_begin + group.in_count; ++i)
      total += plan.tap_sums[static_cast<std::size_t>(task.in_list[i] % in) * static_cast<std::size_t>(s.out_channels) +
                             static_cast<std::size_t>(o)];
    init[lane] = -s.in.zero * total;
  });
}

int gather_units(const Int8Run& run) {
  const Int8Plan& plan = run.plan;
  if (run.algorithm == Int8Algorithm::depthwise) return 1;
  if (plan.shape.groups > 1) return plan.shape.groups;
  const int size = run.algorithm == Int8Algorithm::winograd ? 2 : plan.kernels->group;
  const int inputs = plan.image_rows ? plan.inputs : run.task.in_count;
  return ((inputs + size - 1) / size + gather_chunk(run.task) - 1) / gather_chunk(run.task);
}

void gather_unit(const Int8Run& run, int unit, int member, std::uint8_t* to) {
  const Int8Plan& plan = run.plan;
  const Int8Kernels& k = *plan.kernels;
  if (run.algorithm == Int8Algorithm::depthwise) return k.gather_depthwise(run, to);
  const bool transformed = run.algorithm == Int8Algorithm::winograd, grouped = plan.shape.groups > 1;
  const int size = transformed ? 2 : k.group, number = grouped ? unit : 0;
  const int inputs = plan.image_rows ? plan.inputs : run.groups()[number].in_count;
  const int groups = (inputs + size - 1) / size;
  const int first = grouped ? 0 : unit * gather_chunk(run.task);
  k.gather(run, number, first, grouped ? groups : std::min(groups - first, gather_chunk(run.task)) + first, transformed,
           run.mine(member) + run.lay.rows, to);
}

// The plan's packed weights, from those of a task that skips nothing.
void fill_packed(const Int8Run& run) {
  const int index = packed_index(run.algorithm);
  run.plan.first_use[index].ensure([&] {
    const std::size_t bytes = run.plan.packed_bytes[index];
    std::uint8_t* const to = reinterpret_cast<std::uint8_t*>(run.plan.packed[index].data());
    for (int unit = 0; unit < gather_units(run); ++unit) gather_unit(run, unit, 0, to);
    std::memset(to + bytes, 0, kPackedSlack);
  });
}

}  // namespace

Int8Fetcher::Int8Fetcher(const Int8Task& task, int unit, int units) : task_(task) {
  const auto lines = [](const Int8Fetch& one) { return (one.bytes + 63) / 64 * std::int64_t{one.count}; };
  std::int64_t all = 0;
  for (int i = 0; i < task.later_count; ++i) all += lines(task.later[i]);
  std::int64_t first = all * unit / units;
  left_ = all * (unit + 1) / units - first;
  if (left_ == 0) return;
  for (; first >= lines(task.later[item_]); ++item_) first -= lines(task.later[item_]);
  const std::int64_t row = (task.later[item_].bytes + 63) / 64;
  row_ = static_cast<int>(first / row);
  at_ = first % row * 64;
}

Int8Fetch int8_rows(const Int8Plan& plan, bool skips_nothing) {
  const Int8Shape& s = plan.shape;
  if (plan.image_rows || plan.algorithm == Int8Algorithm::depthwise) return {};
  if (!skips_nothing) {
    const std::ptrdiff_t bytes = static_cast<std::ptrdiff_t>(plan.taps) * plan.row;
    return s.groups > 1 ? Int8Fetch{} : Int8Fetch{reinterpret_cast<const std::uint8_t*>(plan.weights_of(0)), bytes, nullptr, 0};
  }
  const Int8Algorithm algorithm = int8_algorithm(plan, s.in_channels, s.out_channels);
  const int index = packed_index(algorithm);
  if (plan.packed_bytes[index] == 0) return {};
  constexpr std::size_t kPage = 4096;
  const std::size_t vectors = static_cast<std::size_t>((s.out_channels + plan.kernels->lanes - 1) / plan.kernels->lanes);
  const std::size_t bytes = s.groups > 1 ? 0 : weight_bytes(plan, algorithm, s.in_channels, static_cast<int>(vectors));
  return {reinterpret_cast<const std::uint8_t*>(plan.packed[index].data()), kPage, nullptr,
          static_cast<int>(std::min(bytes, kMostAhead) / kPage)};
}

int winograd_unit_tiles(const Int8Plan& plan, int in_count, int threads) {
  const Int8Kernels& k = *plan.kernels;
  const int tiles = (plan.shape.output.width + 3) / 4 * ((plan.shape.output.height + 3) / 4);
  const std::size_t tile =
      72 * static_cast<std::size_t>(padded_words(k, in_count)) + 36 * 4 * static_cast<std::size_t>(k.lanes * k.most_vectors);
  int most = static_cast<int>(std::clamp<std::size_t>(kWinogradBytes / tile, 12, 1 << 16));
  if (threads > 1) most = std::min(most, std::max(4, (tiles + 2 * threads - 1) / (2 * threads)));
  const int units = (tiles + most - 1) / most;
  return (tiles + units - 1) / units;
}

const std::uint8_t* Int8Run::weights() const {
  if (needs_gathering(*this)) return scratch + lay.weights;
  return reinterpret_cast<const std::uint8_t*>(plan.packed[packed_index(algorithm)].data());
}

std::size_t int8_scratch(const Int8Plan& plan, int in_count, int out_count, int threads) {
  const Int8Shape& s = plan.shape;
  std::size_t most = 0;
  for (Int8Algorithm algorithm : {Int8Algorithm::direct, Int8Algorithm::winograd, Int8Algorithm::depthwise}) {
    const bool may = plan.algorithm == Int8Algorithm::automatic &&
                     (algorithm == Int8Algorithm::direct || (algorithm == Int8Algorithm::winograd && plan.winograd_fits));
    if (plan.algorithm != algorithm && !may) continue;
    // A run with fewer channels has no packed weights, and takes more rows or tiles at a time, up to the limits above; on one
    // thread its units are larger.
    for (int members : {1, threads}) {
      const Int8Scratch lay = lay_out(plan, algorithm, in_count, out_count, members);
      std::size_t thread = lay.thread_size, shared = lay.thread;
      if (all_active(plan, in_count, out_count)) shared += round_bytes(weight_bytes(plan, algorithm, in_count, lay.vectors));
      if (algorithm == Int8Algorithm::winograd)
        thread = std::max(thread, lay.transformed + kWinogradBytes + 36 * 8 * static_cast<std::size_t>(plan.kernels->lanes) + 128);
      else
        thread = std::max(thread, lay.pixels + std::max(kDirectBytes, lay.sources - lay.pixels) + 1024) +
                 2 * sizeof(void*) * static_cast<std::size_t>(std::max(kMostPixels, s.output.width));
      most = std::max(most, shared + static_cast<std::size_t>(members) * round_bytes(thread));
    }
  }
  return most;
}

void begin_int8(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch) {
  const Int8Run run = make_run(plan, task, scratch);
  fill_groups(run);
  if (!needs_gathering(run)) fill_packed(run);
  fill_factors(run);
  for (int member = 0; member < task.threads; ++member)
    std::memset(run.mine(member) + run.lay.sums, 0, static_cast<std::size_t>(4 * run.lay.vectors * plan.kernels->lanes));
  fill_padding(task.output, plan.shape.output, pixel_bytes(plan.shape.out_channels, task.out_count), plan.shape.out.zero);
}

int int8_stages(const Int8Plan&, const Int8Task&) { return 2; }

int int8_units(const Int8Plan& plan, const Int8Task& task, int stage) {
  const Int8Run run = make_run(plan, task, nullptr);
  if (stage == 1) return run.lay.row_units * run.lay.panel_units;
  return needs_gathering(run) ? gather_units(run) : 0;
}

void run_int8(const Int8Plan& plan, const Int8Task& task, int stage, int begin, int end, int member, std::uint8_t* scratch) {
  Int8Run run = make_run(plan, task, scratch);
  const Int8Kernels& k = *plan.kernels;
  for (int unit = begin; unit < end; ++unit) {
    if (stage == 1) {
      Int8Fetcher fetcher(task, unit, run.lay.row_units * run.lay.panel_units);
      run.fetcher = task.later_count > 0 ? &fetcher : nullptr;
      (run.algorithm == Int8Algorithm::winograd    ? k.winograd
       : run.algorithm == Int8Algorithm::depthwise ? k.depthwise
                                                   : k.direct)(run, unit, member);
    } else {
      gather_unit(run, unit, member, scratch + run.lay.weights);
    }
  }
}

void end_int8(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch) {
  if (task.sums == nullptr) return;
  const Int8Run run = make_run(plan, task, scratch);
  each_output(run, [&](int p, int lane) {
    std::int32_t total = 0;
    for (int member = 0; member < task.threads; ++member)
      total += reinterpret_cast<const std::int32_t*>(run.mine(member) + run.lay.sums)[lane];
    task.sums[p] = total;
  });
}

std::int64_t int8_macs(const Int8Plan& plan, const Int8Task& task) {
  const Int8Shape& s = plan.shape;
  const int in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  std::int64_t pairs = 0;
  for (int g = 0, i = 0, o = 0; g < s.groups; ++g) {
    std::int64_t inputs = 0, outputs = 0;
    for (; i < task.in_count && task.in_list[i] < (g + 1) * in; ++i) ++inputs;
    for (; o < task.out_count && task.out_list[o] < (g + 1) * out; ++o) ++outputs;
    pairs += inputs * outputs;
  }
  return pairs * s.kernel_h * s.kernel_w * s.output.height * s.output.width;
}

void plan_packing(Int8Plan& plan) {
  const int in = plan.shape.in_channels, out = plan.shape.out_channels;
  const Int8Algorithm algorithm = int8_algorithm(plan, in, out);
  const std::size_t bytes = weight_bytes(plan, algorithm, in, lay_out(plan, algorithm, in, out, 1).vectors);
  const int index = packed_index(algorithm);
  plan.packed[index].allocate((bytes + kPackedSlack) / 4);
  plan.packed_bytes[index] = bytes;
  plan.bytes += static_cast<std::int64_t>(bytes);
}

}  // namespace penstock
