// Planning a convolution and handing its units to the kernels.
#include "conv/conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "conv/kernels.h"
#include "conv/plan.h"
#include "machine/targets.h"

namespace penstock {

namespace {

constexpr std::size_t kWeightSlack = 4;  // floats that a vector may read past the last filter

const ConvKernels* kernels_of(Isa isa) {
  static const ConvKernels* const tables[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, conv_kernels_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  return tables[static_cast<int>(isa)];
}

std::string check_shape(const ConvShape& s) {
  const std::string wrong = wrong_size(s, conv_needs_no_halo(s));
  if (!wrong.empty()) return wrong;
  const int activation = static_cast<int>(s.activation);
  if (activation < 0 || activation >= kActivationCount) return "no activation has number " + std::to_string(activation);
  if (s.out_layout == Layout::planes
          ? s.in_layout != Layout::planes
          : s.out_layout != Layout::pixels || (s.in_layout != Layout::planes && s.in_layout != Layout::pixels))
    return "maps lie in planes or pixels, and planes come from planes";
  return std::isfinite(s.leaky_slope) ? "" : "leaky_slope is not a finite number";
}

void set_clamp(ConvPlan& plan) {
  const float infinity = std::numeric_limits<float>::infinity();
  plan.low = -infinity;
  plan.high = infinity;
  plan.curve = -1;
  switch (plan.shape.activation) {
    case Activation::none: break;
    case Activation::relu6: plan.high = 6.0f; [[fallthrough]];
    case Activation::relu: plan.low = 0.0f; break;
    default: plan.curve = static_cast<int>(plan.shape.activation);
  }
}

}  // namespace

ConvOutput conv_output(const ConvPlan& plan, const ConvTask& task) {
  const Planes& p = plan.shape.output;
  const float* const bias = task.bias ? task.bias : plan.bias.data();
  return {task.output, p.stride(), p.origin(),    p.height,       p.width,
          p.pitch(),   p.halo,     task.out_list, task.out_count, task.gain,
          bias,        plan.low,   plan.high,     plan.curve,     plan.shape.leaky_slope};
}

InPlaceArgs args_in_place(const ConvPlan& plan, const ConvTask& task) {
  const ConvShape& s = plan.shape;
  return {task.input,  s.input.stride(),    s.input.pitch(), s.stride_h,   s.stride_w, plan.taps_in_place.data(),
          plan.taps(), plan.weights.data(), task.in_list,    task.in_count};
}

void ConvPlanDelete::operator()(ConvPlan* plan) const { delete plan; }

ConvPlanPtr plan_conv(const ConvShape& shape, const float* weights, const float* bias, const Machine& machine,
                      const ConvAlgorithm* algorithm, std::string& error) {
  if (weights == nullptr) {
    error = "convolution: no weights";
    return nullptr;
  }
  const std::string wrong = check_shape(shape);
  if (!wrong.empty()) {
    error = "convolution: " + wrong;
    return nullptr;
  }
  const auto fits = [&](const ConvAlgorithm& one) {
    return one.element == shape.element && one.layout == shape.out_layout && one.fits(shape);
  };
  if (algorithm && !fits(*algorithm)) {
    error = std::string("convolution: ") + algorithm->name + " needs " + algorithm->needs;
    return nullptr;
  }
  const ConvKernels* kernels = isa_available(machine.isa) ? kernels_of(machine.isa) : nullptr;
  if (kernels == nullptr) {
    error = std::string("convolution: instruction set ") + isa_name(machine.isa) + " is not available here";
    return nullptr;
  }
  ConvPlanPtr plan(new ConvPlan);
  plan->shape = shape;
  plan->machine = machine;
  plan->kernels = kernels;
  set_clamp(*plan);
  plan->bias.assign(shape.out_channels, 0.0f);
  if (bias != nullptr) std::copy(bias, bias + shape.out_channels, plan->bias.begin());
  // In the lanes they lie otherwise, and only there.
  if (shape.out_layout == Layout::planes)
    plan->weights.assign(weights, static_cast<std::size_t>(weight_count(shape)), kWeightSlack);
  for (int ky = 0; ky < shape.kernel_h; ++ky) {
    for (int kx = 0; kx < shape.kernel_w; ++kx) {
      const std::ptrdiff_t y = ky * shape.dilation_h - shape.pad_h, x = kx * shape.dilation_w - shape.pad_w;
      plan->taps_in_place.push_back(shape.input.origin() + y * shape.input.pitch() + x);
    }
  }
  for (const ConvAlgorithm* one : records<ConvAlgorithm>()) {
    const bool wanted = algorithm ? one == algorithm : fits(*one) && one->suits(*plan);
    if (wanted) plan->ready.push_back(one);
  }
  if (plan->ready.empty()) {
    error = "convolution: no algorithm suits this shape and element type";
    return nullptr;
  }
  for (const ConvAlgorithm* one : plan->ready) one->plan(*plan, weights);
  return plan;
}

ConvScratchFloats conv_scratch(const ConvPlan& plan, int most_in, int most_out) {
  ConvScratchFloats most;
  for (const ConvAlgorithm* one : plan.ready) {
    const ConvScratchFloats floats = one->scratch(plan, most_in, most_out);
    most.shared = std::max(most.shared, floats.shared);
    most.thread = std::max(most.thread, floats.thread);
    most.spare = std::max(most.spare, floats.spare);
  }
  return most;
}

std::int64_t conv_macs(const ConvPlan& plan, const ConvTask& task) {
  const ConvShape& s = plan.shape;
  const int in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  std::int64_t pairs = 0;
  const std::int32_t* in = task.in_list;
  const std::int32_t* in_end = in + task.in_count;
  const std::int32_t* out = task.out_list;
  const std::int32_t* out_end = out + task.out_count;
  for (int g = 0; g < s.groups; ++g) {
    const std::int32_t* in_next = std::lower_bound(in, in_end, (g + 1) * in_group);
    const std::int32_t* out_next = std::lower_bound(out, out_end, (g + 1) * out_group);
    pairs += (in_next - in) * static_cast<std::int64_t>(out_next - out);
    in = in_next;
    out = out_next;
  }
  return pairs * s.kernel_h * s.kernel_w * s.output.height * s.output.width;
}

bool conv_fetches_later(const ConvPlan& plan) {
  return std::any_of(plan.ready.begin(), plan.ready.end(),
                     [&](const ConvAlgorithm* one) { return one->fetches_later && one->fetches_later(plan); });
}

static_assert(kMostLaterFloats == kLaterFloats);

LaterRows later_rows(const ConvTask& task, int unit, int units) {
  const auto row = [&](int i) { return static_cast<int>(std::int64_t{task.later_count} * i / units); };
  const int floats = std::min(task.later_floats, kLaterFloats);
  return {task.later + row(unit), row(unit + 1) - row(unit), (floats + 15) / 16};
}

bool weights_are_far(const ConvPlan& plan) { return conv_weights(plan) >= plan.tuning().far_weights; }

std::int64_t conv_weights(const ConvPlan& plan) { return weight_count(plan.shape); }

bool conv_takes_bare(const ConvPlan& plan) {
  return std::all_of(plan.ready.begin(), plan.ready.end(),
                     [&](const ConvAlgorithm* one) { return one->takes_bare && one->takes_bare(plan); });
}

}  // namespace penstock
