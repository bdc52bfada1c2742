// Running an int8 convolution: scratch, per-image lists and factors, stages and units.
#include <algorithm>
#include <cstring>

#include "int8/kernels.h"

namespace penstock {
namespace {

constexpr std::size_t kPackedSlack = 64;  // zero bytes after packed weights

Int8Run make_run(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch) {
  return {plan, task, lay_out(plan, task.algorithm, task.in_count, task.out_count, task.threads), scratch};
}

int gather_chunk(const Int8Run& run) { return run.task.threads > 1 ? run.plan.tuning.int8_gather_inputs : 1 << 20; }

Int8Weights weights_of(const Int8Run& run) {
  return weights_of(run.plan, run.task.algorithm, run.task.in_count, run.task.out_count, run.task.threads);
}

// Shuffles that bring a list's bytes out of each 16.
void make_masks(const std::int32_t* list, int begin, int end, int first, int blocks, std::uint8_t* masks, std::int32_t* starts) {
  std::memset(masks, 0x80, static_cast<std::size_t>(16 * blocks));
  for (int b = 0, i = begin; b < blocks; ++b) {
    starts[b] = i - begin;
    for (int k = 0; i < end && list[i] - first < 16 * (b + 1); ++i, ++k)
      masks[16 * b + k] = static_cast<std::uint8_t>(list[i] - first - 16 * b);
  }
}

// Where groups are mixed: the input that each output reads, or -1.
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
  if (task.algorithm->mixes_groups) return make_places(task, reinterpret_cast<std::int32_t*>(run.scratch + run.lay.places));
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
    bytes += static_cast<std::int64_t>(task.algorithm->weight_bytes(plan, group.in_count, vectors));
    if (k.gather_panel) continue;  // permutes by windows of its own
    make_masks(task.out_list, group.out_begin, o, g * out, blocks,
               run.scratch + run.lay.masks + static_cast<std::size_t>(16 * blocks * g),
               reinterpret_cast<std::int32_t*>(run.scratch + run.lay.starts) + blocks * g);
  }
}

// Where output p of the list stands among the vectors of outputs.
template <typename Each>
void each_output(const Int8Run& run, Each&& each) {
  if (run.plan.shape.groups == 1 || run.task.algorithm->mixes_groups) {
    for (int p = 0; p < run.task.out_count; ++p) each(p, p);
    return;
  }
  for (int g = 0; g < run.plan.shape.groups; ++g) {
    const Int8Group& group = run.groups()[g];
    for (int i = 0; i < group.out_count; ++i) each(group.out_begin + i, group.vector * run.plan.kernels->lanes + i);
  }
}

// What the channels that are not stored contribute to every output's sum, modulo 2^32.
const std::uint32_t* sum_constants(const Int8Run& run) {
  const Int8Plan& plan = run.plan;
  const Int8Task& task = run.task;
  std::uint32_t* const totals = reinterpret_cast<std::uint32_t*>(run.scratch + run.lay.totals);
  std::memset(totals, 0, 4 * static_cast<std::size_t>(plan.shape.out_channels));
  for (int c = 0, p = 0; c < plan.shape.in_channels; ++c) {
    const bool stored = p < task.in_count && task.in_list[p] == c;
    p += stored;
    const int value = stored ? 0 : static_cast<int>(task.constants[c]);
    if (value != 0)
      plan.kernels->add_row(plan.weights_of(0) + static_cast<std::int64_t>(c) * plan.row, plan.shape.out_channels, value, totals);
  }
  return totals;
}

// Of every output that is computed, the sum of its weights over the listed inputs and all taps.
const std::int32_t* sum_taps(const Int8Run& run) {
  const Int8Plan& plan = run.plan;
  const Int8Task& task = run.task;
  const Int8Shape& s = plan.shape;
  // An output of a mixed group has one input; where that is not stored, every weight is 0.
  if (task.in_count == s.in_channels || task.algorithm->mixes_groups) return plan.all_tap_sums.data();
  std::int32_t* const totals = reinterpret_cast<std::int32_t*>(run.scratch + run.lay.tap_totals);
  const int in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  for (int g = 0; g < s.groups; ++g) {
    const Int8Group& group = run.groups()[g];
    if (group.out_count > 0)
      plan.kernels->sum_rows(plan.tap_sums.data() + g * out, plan.tap_pitch, task.in_list + group.in_begin, group.in_count, g * in,
                             out, 127 * s.kernel_h * s.kernel_w, totals + g * out);
  }
  return totals;
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
  const std::uint32_t* const constants = task.constants ? sum_constants(run) : nullptr;
  const std::int32_t* const taps = s.in.zero != 0 ? sum_taps(run) : nullptr;
  const std::int32_t* const places =
      task.algorithm->mixes_groups ? reinterpret_cast<const std::int32_t*>(run.scratch + run.lay.places) : nullptr;
  each_output(run, [&](int p, int lane) {
    const int o = task.out_list[p];
    float k = plan.scales[static_cast<std::size_t>(o)], b = bias[o];
    if (task.gain) {
      k *= task.gain[p];
      b *= task.gain[p];
    }
    mul[lane] = curved ? k : k * f.inverse;
    add[lane] = curved ? b : b * f.inverse;
    if (constants) init[lane] = static_cast<std::int32_t>(constants[o]);
    if (taps == nullptr || (places && places[p] < 0)) return;
    init[lane] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(init[lane]) - static_cast<std::uint32_t>(s.in.zero * taps[o]));
  });
}

// The plan's packed weights, from those of a task that skips nothing.
void fill_packed(const Int8Run& run) {
  const Int8Algorithm& algorithm = *run.task.algorithm;
  run.plan.first_use.ensure([&] {
    std::uint8_t* const to = reinterpret_cast<std::uint8_t*>(run.plan.packed.data());
    for (int unit = 0; unit < algorithm.gather_units(run); ++unit) algorithm.gather(run, unit, 0, to);
    std::memset(to + run.plan.packed_bytes, 0, kPackedSlack);
  });
}

}  // namespace

Int8Fetcher::Int8Fetcher(const Int8Plan& plan, const Int8Task& task, int unit, int units)
    : task_(task), cycles_(plan.tuning.int8_fetch_cycles) {
  const auto lines = [](const Int8Fetch& one) { return (one.bytes + 63) / 64 * std::int64_t{one.count}; };
  std::int64_t all = 0;
  for (int i = 0; i < task.later_count; ++i) all += lines(task.later[i]);
  all = std::min(all, static_cast<std::int64_t>(plan.tuning.int8_fetch_bytes / 64));
  std::int64_t first = all * unit / units;
  left_ = all * (unit + 1) / units - first;
  if (left_ == 0) return;
  for (; first >= lines(task.later[item_]); ++item_) first -= lines(task.later[item_]);
  const std::int64_t row = (task.later[item_].bytes + 63) / 64;
  row_ = static_cast<int>(first / row);
  at_ = first % row * 64;
}

void Int8Fetcher::add_own(const std::uint8_t* from, std::ptrdiff_t bytes, int turns) {
  own_ = from;
  own_end_ = from + bytes;
  own_each_ = static_cast<int>((bytes + 63) / 64 + turns - 1) / std::max(1, turns);
}

Int8Lines Int8Fetcher::list_lines(int steps, int block) {
  const int own = std::min(own_each_, static_cast<int>((own_end_ - own_ + 63) / 64));
  // Own weights are waited for in any case; only what is for later has to leave them time.
  const int most = std::max(own, static_cast<int>(std::int64_t{steps} * block / (2 * std::max(1, cycles_))));
  const int wanted = static_cast<int>(std::min<std::int64_t>({own + std::min(each_, left_), most, kMostLines}));
  if (wanted == 0) return {};
  if (steps != steps_ || wanted != wanted_) {
    steps_ = steps;
    wanted_ = wanted;
    period_ = own > 0 ? std::max(steps / wanted, (steps + kMostLines - 1) / kMostLines) : (steps + wanted - 1) / wanted;
  }
  const int count = steps / period_;  // the product takes so many
  int listed = 0;
  for (; listed < std::min(count, own); ++listed, own_ += 64) lines_[listed] = own_;
  for (; listed < count && left_ > 0; ++listed) lines_[listed] = next_line();
  for (; listed > 0 && listed < count; ++listed) lines_[listed] = lines_[listed - 1];
  return {lines_, listed > 0 ? period_ : std::numeric_limits<int>::max()};
}

Int8Fetch int8_rows(const Int8Plan& plan, bool skips_nothing) {
  const Int8Shape& s = plan.shape;
  if (plan.image_rows || plan.packed_for->mixes_groups) return {};
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(plan.taps) * plan.row;
  const std::uint8_t* const rows = reinterpret_cast<const std::uint8_t*>(plan.weights_of(0));
  if (!skips_nothing) return s.groups > 1 ? Int8Fetch{} : Int8Fetch{rows, row, nullptr, 0};
  if (weights_of(plan, plan.packed_for, s.in_channels, s.out_channels, 1) != Int8Weights::packed)
    return {rows, row, nullptr,
            std::min(s.in_channels, static_cast<int>(plan.tuning.int8_near_bytes / static_cast<std::size_t>(row)))};
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes = s.groups > 1 ? 0 : plan.packed_bytes;
  return {reinterpret_cast<const std::uint8_t*>(plan.packed.data()), kPage, nullptr,
          static_cast<int>(std::min(bytes, plan.tuning.int8_near_bytes) / kPage)};
}

int gather_units(const Int8Run& run, int size) {
  const Int8Plan& plan = run.plan;
  if (plan.shape.groups > 1) return plan.shape.groups;
  const int inputs = plan.image_rows ? plan.inputs : run.task.in_count;
  return ((inputs + size - 1) / size + gather_chunk(run) - 1) / gather_chunk(run);
}

void gather_unit(const Int8Run& run, int unit, int member, int size, bool with_transform, std::uint8_t* to) {
  const Int8Plan& plan = run.plan;
  const bool grouped = plan.shape.groups > 1;
  const int number = grouped ? unit : 0;
  const int inputs = plan.image_rows ? plan.inputs : run.groups()[number].in_count;
  const int groups = (inputs + size - 1) / size;
  const int first = grouped ? 0 : unit * gather_chunk(run);
  plan.kernels->gather(run, number, first, grouped ? groups : std::min(groups - first, gather_chunk(run)) + first, with_transform,
                       run.mine(member) + run.lay.rows, to);
}

const std::uint8_t* Int8Run::weights() const {
  if (weights_of(*this) == Int8Weights::gathered) return scratch + lay.weights;
  return reinterpret_cast<const std::uint8_t*>(plan.packed.data());
}

void begin_int8(const Int8Plan& plan, const Int8Task& task, std::uint8_t* scratch) {
  const Int8Run run = make_run(plan, task, scratch);
  fill_groups(run);
  if (weights_of(run) == Int8Weights::packed) fill_packed(run);
  fill_factors(run);
  for (int member = 0; member < task.threads; ++member)
    std::memset(run.mine(member) + run.lay.sums, 0, static_cast<std::size_t>(4 * run.lay.vectors * plan.kernels->lanes));
  fill_padding(task.output, plan.shape.output, pixel_bytes(plan.shape.out_channels, task.out_count), plan.shape.out.zero);
}

int int8_stages(const Int8Plan&, const Int8Task&) { return 2; }

int int8_units(const Int8Plan& plan, const Int8Task& task, int stage) {
  const Int8Run run = make_run(plan, task, nullptr);
  if (stage == 1) return run.lay.row_units * run.lay.panel_units;
  return weights_of(run) == Int8Weights::gathered ? task.algorithm->gather_units(run) : 0;
}

void run_int8(const Int8Plan& plan, const Int8Task& task, int stage, int begin, int end, int member, std::uint8_t* scratch) {
  Int8Run run = make_run(plan, task, scratch);
  for (int unit = begin; unit < end; ++unit) {
    if (stage == 1) {
      Int8Fetcher fetcher(plan, task, unit, run.lay.row_units * run.lay.panel_units);
      run.fetcher = &fetcher;
      task.algorithm->run(run, unit, member);
    } else {
      task.algorithm->gather(run, unit, member, scratch + run.lay.weights);
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
  const auto bytes_for = [&](const Int8Algorithm* one) {
    return one->weight_bytes(plan, in, lay_out(plan, one, in, out, 1).vectors);
  };
  const Int8Algorithm* algorithm = cheapest(plan.ready, plan, in, out);
  for (const Int8Algorithm* one : plan.ready) {
    if (one == algorithm || bytes_for(one) > plan.tuning.int8_kept_bytes) continue;
    plan.packed_for = one;
    if (cheapest(plan.ready, plan, in, out) == one) algorithm = one;
  }
  const std::size_t bytes = bytes_for(algorithm);
  plan.packed.allocate((bytes + kPackedSlack) / 4);
  plan.packed_for = algorithm;
  plan.packed_bytes = bytes;
  plan.bytes += static_cast<std::int64_t>(bytes);
}

}  // namespace penstock
