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

constexpr int kMaxSize = 1 << 15;      // of a plane's side
constexpr int kMaxChannels = 1 << 20;  // keeps every product below inside 64 bits
constexpr int kMaxKernel = 1 << 10;
constexpr std::size_t kWeightSlack = 4;  // floats that a vector may read past the last filter
constexpr std::int64_t kMaxFloats = std::int64_t{1} << 33;

const ConvKernels* kernels_of(Isa isa) {
  static const ConvKernels* const tables[] = {
#define TARGET(name, architecture, runs_here, wide) PENSTOCK_WHERE(architecture, conv_kernels_##name(), nullptr),
#include "machine/targets.def"
#undef TARGET
  };
  return tables[static_cast<int>(isa)];
}

std::string number(std::int64_t n) { return std::to_string(n); }

bool in_range(const char* what, std::int64_t value, std::int64_t low, std::int64_t high, std::string& error) {
  if (value >= low && value <= high) return true;
  error = std::string("convolution: ") + what + " is " + number(value) + ", expected " + number(low) + " to " + number(high);
  return false;
}

bool check_planes(const char* what, const Planes& planes, std::string& error) {
  const std::string name(what);
  return in_range((name + " height").c_str(), planes.height, 1, kMaxSize, error) &&
         in_range((name + " width").c_str(), planes.width, 1, kMaxSize, error) &&
         in_range((name + " halo").c_str(), planes.halo, 0, kMaxKernel, error);
}

bool check_output_size(const char* axis, int got, int size, int kernel, int stride, int pad, int dilation, std::string& error) {
  const int expected = conv_output_size(size, kernel, stride, pad, dilation);
  if (got == expected) return true;
  error = std::string("convolution: output ") + axis + " is " + number(got) + ", but an input of " + number(size) +
          " with kernel " + number(kernel) + ", stride " + number(stride) + ", padding " + number(pad) + ", dilation " +
          number(dilation) + " yields " + number(expected);
  return false;
}

bool check_shape(const ConvShape& s, std::string& error) {
  const int most_padding = conv_needs_no_halo(s) ? kMaxKernel : s.input.halo;
  const bool sizes =
      in_range("in_channels", s.in_channels, 1, kMaxChannels, error) &&
      in_range("out_channels", s.out_channels, 1, kMaxChannels, error) && in_range("kernel_h", s.kernel_h, 1, kMaxKernel, error) &&
      in_range("kernel_w", s.kernel_w, 1, kMaxKernel, error) && in_range("stride_h", s.stride_h, 1, kMaxKernel, error) &&
      in_range("stride_w", s.stride_w, 1, kMaxKernel, error) && in_range("dilation_h", s.dilation_h, 1, kMaxKernel, error) &&
      in_range("dilation_w", s.dilation_w, 1, kMaxKernel, error) && check_planes("input", s.input, error) &&
      check_planes("output", s.output, error) && in_range("pad_h", s.pad_h, 0, most_padding, error) &&
      in_range("pad_w", s.pad_w, 0, most_padding, error) &&
      in_range("groups", s.groups, 1, std::min(s.in_channels, s.out_channels), error) &&
      in_range("activation", static_cast<int>(s.activation), 0, kActivationCount - 1, error);
  if (!sizes) return false;
  if (s.in_channels % s.groups != 0 || s.out_channels % s.groups != 0) {
    error = "convolution: " + number(s.in_channels) + " input and " + number(s.out_channels) +
            " output channels do not divide into " + number(s.groups) + " groups";
    return false;
  }
  if (s.out_layout == Layout::planes
          ? s.in_layout != Layout::planes
          : s.out_layout != Layout::pixels || (s.in_layout != Layout::planes && s.in_layout != Layout::pixels)) {
    error = "convolution: maps lie in planes or pixels, and planes come from planes";
    return false;
  }
  if (!std::isfinite(s.leaky_slope)) {
    error = "convolution: leaky_slope is not a finite number";
    return false;
  }
  if (!check_output_size("height", s.output.height, s.input.height, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h, error) ||
      !check_output_size("width", s.output.width, s.input.width, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w, error)) {
    return false;
  }
  const std::int64_t weights = std::int64_t{s.out_channels} * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
  return in_range("number of weights", weights, 1, kMaxFloats, error) &&
         in_range("size of the input", s.in_channels * std::int64_t{s.input.stride()}, 1, kMaxFloats, error) &&
         in_range("size of the output", s.out_channels * std::int64_t{s.output.stride()}, 1, kMaxFloats, error);
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
  if (!check_shape(shape, error)) return nullptr;
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
  const std::size_t count = static_cast<std::size_t>(shape.out_channels) * (shape.in_channels / shape.groups) * plan->taps();
  // In the lanes they lie otherwise, and only there.
  if (shape.out_layout == Layout::planes) plan->weights.assign(weights, count, kWeightSlack);
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

std::int64_t conv_weights(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  return std::int64_t{s.out_channels} * (s.in_channels / s.groups) * plan.taps();
}

bool conv_takes_bare(const ConvPlan& plan) {
  return std::all_of(plan.ready.begin(), plan.ready.end(),
                     [&](const ConvAlgorithm* one) { return one->takes_bare && one->takes_bare(plan); });
}

}  // namespace penstock
