// Convolutions of a program: of floats and of codes, with their gates and levels.
#include <algorithm>
#include <climits>

#include "lanes/lanes.h"
#include "run/cores.h"
#include "run/loader.h"

namespace penstock {
void Loader::load_conv(Op& op, Row f, Row p) {
  const Tensor &in = at(op.in), &out = at(op.out);
  const bool codes = in.is_codes();
  check(in.element == out.element && in.layout != Layout::vector && out.layout != Layout::vector,
        "a convolution works on maps of one kind");
  check(in.layout == out.layout || (!codes && out.is_pixels()), "a convolution of pixels yields pixels");
  ConvShape s{read_sizes<ConvField>(in, out, p)};
  s.groups = number(p[ConvField::groups], 1, in.channels, "groups");
  s.element = in.element;
  if (!codes) {
    s.in_layout = in.layout;
    s.out_layout = out.layout;
  }
  check_sizes(s, conv_needs_no_halo(s));
  check(static_cast<int>(op.function) < kActivationCount, "function");
  s.activation = static_cast<Activation>(op.function);
  s.leaky_slope = op.slope;
  op.kernel_area = s.kernel_h * s.kernel_w;
  const std::int64_t row = std::int64_t{op.kernel_area} * (in.channels / s.groups);
  check(row <= INT_MAX, "kernel");
  const int format = static_cast<int>(codes ? WeightFormat::code_filters : WeightFormat::filters);
  number(p[ConvField::weight_format], format, format, "weight format");
  const std::int64_t floats = codes ? (row * out.channels + 3) / 4 : row * out.channels;
  // Maps of pixels read the rows of active outputs where they lie (lanes/turn.inl).
  const bool turned = !codes && out.is_pixels() && floats >= program_->machine.tuning.far_weights;
  const float* kernel = turned ? rows(p[ConvField::weights], floats, "weights") : weights(p[ConvField::weights], floats, "weights");
  const float* bias = p[ConvField::bias] == -1 ? nullptr : weights(p[ConvField::bias], out.channels, "bias");
  op.bias = bias;
  op.weights = kernel;
  op.takes_constants = op.kernel_area == 1 && s.pad_h == 0 && s.pad_w == 0 && s.groups == 1 && (codes || bias != nullptr);
  if (op.keeps_list) {
    check(op.knob < 0 && s.groups == in.channels && s.groups == out.channels && bias != nullptr,
          "a convolution that keeps a list is depthwise, with a bias");
    check(f[OpField::in2] == -1, "a convolution that keeps a list adds nothing");
    op.fill.resize(static_cast<std::size_t>(out.channels));
    const Isa isa = program_->machine.isa;
    if (codes) find_constants(map_kernels(isa), bias, out.channels, op.function, op.slope, out.quantised, op.fill.data());
    else op_kernels(isa).apply(bias, out.channels, op.function, op.slope, op.fill.data());
  }
  if (op.knob >= 0) {
    int& channels = program_->knob_channels[static_cast<std::size_t>(op.knob)];
    check(channels == 0, "two convolutions share one gate");
    channels = out.channels;
    op.phi = rows(p[ConvField::phi], static_cast<std::int64_t>(in.channels) * out.channels, "phi");
    load_levels(op, p[ConvField::levels], p[ConvField::rho]);
    if (f[OpField::kind] == static_cast<std::int64_t>(OpKind::threshold_conv)) load_threshold(op, p[ConvField::rho]);
    op.summary = static_cast<Summary>(number(p[ConvField::summary], 0, kSummaryCount - 1, "summary"));
    // With one gate per channel a suppressed channel stays zero only under f(0) = 0, which all of conv.h's have.
  }
  check_apart(op.in, op.out, false);
  op.in2 = f[OpField::in2] == -1 ? -1 : index(f[OpField::in2], "second input", true);
  op.after = static_cast<Function>(number(p[ConvField::after], 0, kFunctionCount - 1, "function after the addition"));
  if (op.in2 >= 0) {
    s.adds = out.is_pixels();
    check(!s.adds || lanes_can_add(s), "a convolution of pixels adds if it is 1x1, of stride 1 and without padding");
    check(!s.adds || is_clamp(op.after), "the function after a sum of pixels is a clamp");
    const Tensor& skip = at(op.in2);
    check(skip.layout == out.layout, "the addend has another layout");
    check(same_size(skip, out) && skip.channels == out.channels && skip.shape.halo == out.shape.halo,
          "the addend has another size");
    check(keeps_zero(op.after), "function must keep zero");
    check_apart(op.in2, op.out, true);
  } else {
    check(op.after == Function::none, "a function after an addition that is not there");
  }
  const std::vector<const Algorithm*>& list = algorithms();
  const int number_given = number(p[ConvField::algorithm], 0, static_cast<int>(list.size()), "algorithm");
  const Algorithm* const given = number_given == 0 ? nullptr : list[static_cast<std::size_t>(number_given) - 1];
  check(given == nullptr || given->element == in.element, "the algorithm is for another type of element");
  if (codes) {
    check(op.in2 < 0, "a convolution of codes adds nothing");
    const float* const scales = weights(p[ConvField::weight_scales], out.channels, "scales");
    return plan_later(row * out.channels, [this, s, kernel, scales, bias, given](Op& later) -> std::string {
      const Tensor &from = at(later.in), &to = at(later.out);
      std::string why;
      const Int8Shape shape{s, from.quantised, to.quantised, later.function, later.slope};
      later.int8 = plan_int8(shape, reinterpret_cast<const std::int8_t*>(kernel), scales, bias, program_->machine.isa,
                             as_record<Int8Algorithm>(given), why);
      if (later.int8 == nullptr) return why;
      later.scratch = scratch_for(later, from.channels, to.channels, 1);
      return later.scratch.shared <= kMaxTensorFloats ? "" : "scratch too large";
    });
  }
  if (op.in2 >= 0 && !s.adds) {
    op.after_slope = op.eps;
    op.chunk = static_cast<int>(
        std::clamp<std::int64_t>(program_->machine.tuning.add_chunk_floats / out.step() / 12 * 12, 12, out.channels + 11));
    op.scratch.chunk = round_to_line(op.chunk * out.step() + kVectorSlack);
  }
  plan_later(row * out.channels, [this, s, kernel, bias, given](Op& later) -> std::string {
    std::string why;
    later.plan = plan_conv(s, kernel, bias, program_->machine, as_record<ConvAlgorithm>(given), why);
    if (later.plan == nullptr) return why;
    if (s.adds) later.scratch.chunk = sum_scratch(at(later.out), lanes_blocks(*later.plan)).total;
    later.scratch = scratch_for(later, at(later.in).channels, at(later.out).channels, 1);
    return later.scratch.shared + later.scratch.thread <= kMaxTensorFloats ? "" : "scratch too large";
  });
}

void Loader::plan_later(std::int64_t size, std::function<std::string(Op&)> plan) {
  plans_.push_back({program_->ops.size(), size, where_, std::move(plan)});
}

void Loader::plan_convolutions() {
  // Plan the largest layers first: a core that got one of them last would keep the others waiting.
  std::vector<std::size_t> order(plans_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return plans_[a].size > plans_[b].size; });
  std::vector<std::string> problems(plans_.size());
  const auto plan = [&](std::size_t i) { problems[order[i]] = plans_[order[i]].plan(program_->ops[plans_[order[i]].op]); };
  constexpr std::int64_t kWorthThreads = 1 << 20;  // weights; below, threads take longer to start than to help
  if (raw_.weight_count >= kWorthThreads) each_on_cores(plans_.size(), plan);
  else
    for (std::size_t i = 0; i < plans_.size(); ++i) plan(i);
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    where_ = plans_[i].where;
    check(problems[i].empty(), problems[i]);
  }
}

void Loader::load_levels(Op& op, std::int64_t first, std::int64_t rho) {
  const int channels = at(op.out).channels;
  std::int64_t rows = 1;
  if (first != -1) {
    constexpr std::int64_t kHead = 3, kMost = 1 << 10;
    check(first >= 0 && first <= raw_.arg_count - kHead, "levels");
    const std::int64_t* const given = raw_.args + first;
    rows = number(given[0], 2, kMost, "number of levels");
    check(first <= raw_.arg_count - kHead - (rows - 1), "levels");
    op.level_bias = weights(given[1], rows * channels, "bias of levels");
    op.level_gain = weights(given[2], rows * channels, "gain of levels");
    for (std::int64_t edge = 0; edge < rows - 1; ++edge) {
      op.level_edges.push_back(number(given[kHead + edge], 0, channels, "edge of a level"));
      check(edge == 0 || op.level_edges.back() >= op.level_edges[static_cast<std::size_t>(edge) - 1], "edges fall");
    }
  }
  op.rho = weights(rho, rows * channels, "rho");
}

void Loader::load_threshold(Op& op, std::int64_t rho) {
  const std::int64_t channels = at(op.out).channels;
  check(op.level_edges.empty(), "a layer with levels has no threshold");
  op.threshold = weights(rho, channels + 1, "rho and threshold")[channels];
  check(std::isfinite(op.threshold) && !std::signbit(op.threshold), "threshold");
}

}  // namespace penstock
