// Planning the direct algorithm: where each tap lies, and how a strided input is cut into unit-stride planes.
#include <algorithm>
#include <cstring>

#include "conv/plan.h"

namespace penstock {

namespace {

// Stride 1: taps are offsets into the planes as they are.
void plan_taps_in_place(const ConvShape& s, DirectPlan& d) {
  d.pitch = s.input.pitch();
  for (int ky = 0; ky < s.kernel_h; ++ky) {
    for (int kx = 0; kx < s.kernel_w; ++kx) {
      const std::ptrdiff_t y = ky * s.dilation_h - s.pad_h, x = kx * s.dilation_w - s.pad_w;
      d.taps.push_back(s.input.origin() + y * d.pitch + x);
    }
  }
}

// Larger strides: pixel y of tap ky is input row y * stride + ky * dilation - pad, which is row
// y + (ky * dilation) / stride of the phase (ky * dilation) % stride. Only phases that some tap reads are cut.
void plan_phases(const ConvShape& s, DirectPlan& d) {
  const int reach_x = (s.kernel_w - 1) * s.dilation_w / s.stride_w;
  // With the output's own pitch, rows can be computed as one line.
  d.pitch = std::max(s.output.width + reach_x, s.output.pitch());
  std::vector<int> phase_of(static_cast<std::size_t>(s.stride_h) * s.stride_w, -1);
  struct Place {
    int phase, row, col;
  };
  std::vector<Place> places;
  for (int ky = 0; ky < s.kernel_h; ++ky) {
    for (int kx = 0; kx < s.kernel_w; ++kx) {
      const int y = ky * s.dilation_h, x = kx * s.dilation_w;
      const int py = y % s.stride_h, px = x % s.stride_w;
      int& index = phase_of[static_cast<std::size_t>(py) * s.stride_w + px];
      if (index < 0) {
        index = static_cast<int>(d.phases.size());
        d.phases.push_back({py - s.pad_h, px - s.pad_w, 0, 0, 0});
      }
      const Place place = {index, y / s.stride_h, x / s.stride_w};
      ConvPhase& phase = d.phases[index];
      phase.rows = std::max(phase.rows, s.output.height + place.row);
      phase.cols = std::max(phase.cols, s.output.width + place.col);
      places.push_back(place);
    }
  }
  std::ptrdiff_t used = 0;
  for (ConvPhase& phase : d.phases) {
    phase.offset = used;
    used += static_cast<std::ptrdiff_t>(phase.rows) * d.pitch;
  }
  d.cut_stride = (used + kVectorSlack + 15) / 16 * 16;
  for (const Place& p : places) {
    d.taps.push_back(d.phases[p.phase].offset + static_cast<std::ptrdiff_t>(p.row) * d.pitch + p.col);
  }
  d.shared_floats = static_cast<std::size_t>(s.in_channels) * d.cut_stride;
}

bool taps_are_three_by_three(const ConvShape& s, const DirectPlan& d) {
  if (s.kernel_h != 3 || s.kernel_w != 3) return false;
  for (int t = 0; t < 9; ++t) {
    if (d.taps[t] != d.taps[0] + t / 3 * d.pitch + t % 3) return false;
  }
  return true;
}

bool suits(const ConvPlan& plan) { return !rows_suit(plan) && direct_suits(plan); }

double cost(const ConvPlan& plan, int in_count, int out_count) {
  const Tuning& t = plan.tuning();
  const bool few = in_count <= t.image_channels || out_count < t.packed_outputs;
  return choose_tile(plan) != 0 || plan.shape.groups > 1 || few ? 4 : 6;
}

void plan_direct(ConvPlan& plan, const float*) {
  const ConvShape& s = plan.shape;
  DirectPlan& d = plan.direct;
  if (s.stride_h == 1 && s.stride_w == 1) {
    plan_taps_in_place(s, d);
  } else {
    plan_phases(s, d);
  }
  d.flat = d.pitch == s.output.pitch();
  d.tap_rows = taps_are_three_by_three(s, d) ? 3 : 0;
  d.mask.resize(static_cast<std::size_t>(d.pitch) + kDirectMaskSlack);
  const std::uint32_t ones = ~std::uint32_t{0};
  for (std::size_t i = 0; i < d.mask.size(); ++i) {
    if (static_cast<int>(i % d.pitch) < s.output.width) {
      std::memcpy(&d.mask[i], &ones, sizeof ones);
    } else {
      d.mask[i] = 0.0f;
    }
  }
  d.block_rows = std::max(1, std::min(s.output.height, plan.tuning().direct_unit_pixels / d.pitch));
}

ConvScratchFloats scratch_of(const ConvPlan& plan, int, int) { return {plan.direct.shared_floats, 0, 0}; }

int stages(const ConvPlan& plan, const ConvTask&) { return plan.direct.phases.empty() ? 1 : 2; }

int units(const ConvPlan& plan, const ConvTask& task, int stage) {
  const ConvShape& s = plan.shape;
  const DirectPlan& d = plan.direct;
  if (task.out_count == 0) return 0;
  if (!d.phases.empty() && stage == 0) return task.in_count;
  const int blocks = (s.output.height + d.block_rows - 1) / d.block_rows;
  const int out_group = s.out_channels / s.groups;
  const int panels = s.groups == 1 ? (task.out_count + kDirectPanel - 1) / kDirectPanel
                                   : s.groups * ((out_group + kDirectPanel - 1) / kDirectPanel);
  return panels * blocks;
}

void run_direct(const ConvPlan& plan, const ConvTask& task, int stage, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  const DirectPlan& d = plan.direct;
  const bool cut = !d.phases.empty();
  if (cut && stage == 0) {
    const SplitArgs args = {task.input,      s.input.stride(), s.input.origin(), s.input.height,  s.input.width,
                            s.input.pitch(), s.stride_h,       s.stride_w,       d.phases.data(), static_cast<int>(d.phases.size()),
                            scratch.shared,  d.cut_stride,     d.pitch};
    plan.kernels->split(args, unit_begin, unit_end);
    return;
  }
  DirectArgs args;
  args.input = cut ? scratch.shared : task.input;
  args.stride = cut ? d.cut_stride : s.input.stride();
  args.pitch = d.pitch;
  args.taps = d.taps.data();
  args.tap_count = static_cast<int>(d.taps.size());
  args.tap_rows = d.tap_rows;
  args.weights = plan.weights.data();
  args.in_list = task.in_list;
  args.in_count = task.in_count;
  args.groups = s.groups;
  args.in_group = s.in_channels / s.groups;
  args.out_group = s.out_channels / s.groups;
  args.flat = d.flat;
  args.mask = d.mask.data();
  args.block_rows = d.block_rows;
  args.out = conv_output(plan, task);
  plan.kernels->direct(args, unit_begin, unit_end);
}

}  // namespace

// Cutting copies each input pixel once, packing once for every tap, but cut planes spread over more cache lines:
// with many inputs that costs more than packing.
bool direct_suits(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  return (s.stride_h == 1 && s.stride_w == 1) || s.in_channels / s.groups <= plan.tuning().direct_strided_inputs;
}

// Pixels are read in place; any shape.
const ConvAlgorithm kDirect = {{"direct", Element::float32, "any shape"},
                               fits_any,
                               suits,
                               cost,
                               plan_direct,
                               scratch_of,
                               stages,
                               units,
                               run_direct,
                               nullptr,
                               nullptr};

}  // namespace penstock
