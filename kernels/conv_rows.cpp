// Planning the row-wise Winograd of 7x7 stride-2 layers: transformed weights and the room for transformed rows.
#include <algorithm>

#include "conv_plan.h"

namespace penstock {

namespace {

constexpr double kPoints[kRowsPositions - 1] = {1, -1, 2, -2, 0.5, -0.5};
constexpr int kRowsChannels = 4;  // more inputs want a block of outputs for each transformed row: packing does that
constexpr int kFewestRows = 8;

// G: a filter g of 4 taps at a point, over the product of differences to the other points.
double at_point(const double* g, int position) {
  if (position + 1 == kRowsPositions) return g[3];
  const double x = kPoints[position];
  double scale = 1;
  for (int other = 0; other + 1 < kRowsPositions; ++other) {
    if (other != position) scale *= x - kPoints[other];
  }
  return (g[0] + x * (g[1] + x * (g[2] + x * g[3]))) / scale;
}

}  // namespace

bool rows_fit(const ConvShape& s) {
  return s.kernel_h == 7 && s.kernel_w == 7 && s.stride_h == 2 && s.stride_w == 2 && s.dilation_h == 1 &&
         s.dilation_w == 1 && s.groups == 1;
}

bool rows_suit(const ConvShape& s) {
  return rows_fit(s) && s.in_channels <= kRowsChannels && s.output.height >= kFewestRows;
}

void plan_rows(ConvPlan& plan, const float* weights) {
  const ConvShape& s = plan.shape;
  RowsPlan& r = plan.rows;
  r.used = true;
  r.weights.allocate(static_cast<std::size_t>(s.out_channels) * kRowsPositions * s.in_channels * 2 * 7);
  float* to = r.weights.data();
  for (std::ptrdiff_t o = 0; o < s.out_channels; ++o) {
    for (int position = 0; position < kRowsPositions; ++position) {
      for (std::ptrdiff_t i = 0; i < s.in_channels; ++i) {
        for (int phase = 0; phase < 2; ++phase) {
          for (int column = 0; column < 7; ++column) {
            const float* filter = weights + (o * s.in_channels + i) * 49 + column;
            double taps[4] = {};
            for (int t = 0; 2 * t + phase < 7; ++t) taps[t] = filter[(2 * t + phase) * 7];
            *to++ = static_cast<float>(at_point(taps, position));
          }
        }
      }
    }
  }
  const int lanes = plan.kernels->lanes;
  // Strips of at most 5 vectors run over the end of a row, and taps reach 3 pixels further.
  r.pitch = (s.output.width + 3 + 6 * lanes + 15) / 16 * 16;
  r.zero_row.assign(2 * static_cast<std::size_t>(r.pitch) + 2, 0.0f);
  r.thread_floats = static_cast<std::size_t>(s.in_channels) * 2 * kRowsPositions * 2 * r.pitch;
}

int rows_units(const ConvPlan& plan, const ConvTask& task) {
  return task.out_count == 0 ? 0 : (plan.shape.output.height + kRowsOut - 1) / kRowsOut;
}

void run_rows(const ConvPlan& plan, const ConvTask& task, int unit_begin, int unit_end, const ConvScratch& scratch) {
  const ConvShape& s = plan.shape;
  RowsArgs args;
  args.input = task.input;
  args.in_stride = s.input.stride();
  args.in_origin = s.input.origin();
  args.height = s.input.height;
  args.in_pitch = s.input.pitch();
  args.pad_h = s.pad_h;
  args.pad_w = s.pad_w;
  args.zero_row = plan.rows.zero_row.data();
  args.in_list = task.in_list;
  args.in_count = task.in_count;
  args.in_channels = s.in_channels;
  args.weights = plan.rows.weights.data();
  args.rows = scratch.thread;
  args.rows_pitch = plan.rows.pitch;
  args.out = conv_output(plan, task);
  plan.kernels->rows(args, unit_begin, unit_end);
}

}  // namespace penstock
