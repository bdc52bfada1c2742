// Planning Winograd down the rows: transformed weights and the room for transformed rows.
#include <algorithm>

#include "conv_plan.h"

namespace penstock {

namespace {

// Finite points, in the order of conv_rows.inl; infinity comes last.
constexpr double kPoints3[] = {0, 1, -1, 2, -2};
constexpr double kPoints7[] = {1, -1, 2, -2, 0.5, -0.5};

constexpr int kFewestChannels = 2, kMostChannels = 4;  // more inputs repay larger tiles, or packing
constexpr int kFewestRows = 8;

bool is_wide(const ConvShape& s) { return s.kernel_h == 7; }
int positions_of(const ConvShape& s) { return is_wide(s) ? 7 : 6; }
int phases_of(const ConvShape& s) { return s.stride_h; }

// What becomes of a column's taps at a position: their polynomial there, over the product of the differences to the other
// points.
double at_position(const ConvShape& s, const double (&taps)[4], int position) {
  const double* points = is_wide(s) ? kPoints7 : kPoints3;
  const int finite = positions_of(s) - 1;
  if (position == finite) return taps[is_wide(s) ? 3 : 2];
  const double x = points[position];
  double scale = 1;
  for (int other = 0; other < finite; ++other) {
    if (other != position) scale *= x - points[other];
  }
  return (taps[0] + x * (taps[1] + x * (taps[2] + x * taps[3]))) / scale;
}

}  // namespace

bool rows_fit(const ConvShape& s) {
  const bool narrow = s.kernel_h == 3 && s.kernel_w == 3 && s.stride_h == 1 && s.stride_w == 1;
  const bool wide = s.kernel_h == 7 && s.kernel_w == 7 && s.stride_h == 2 && s.stride_w == 2;
  return (narrow || wide) && s.dilation_h == 1 && s.dilation_w == 1 && s.groups == 1;
}

bool rows_suit(const ConvShape& s) {
  return rows_fit(s) && s.in_channels >= kFewestChannels && s.in_channels <= kMostChannels &&
         s.output.height >= kFewestRows;
}

void plan_rows(ConvPlan& plan, const float* weights) {
  const ConvShape& s = plan.shape;
  RowsPlan& r = plan.rows;
  r.used = true;
  const int positions = positions_of(s), phases = phases_of(s), size = s.kernel_h;
  r.weights.allocate(static_cast<std::size_t>(s.out_channels) * positions * s.in_channels * phases * size);
  float* to = r.weights.data();
  for (std::ptrdiff_t o = 0; o < s.out_channels; ++o) {
    for (int position = 0; position < positions; ++position) {
      for (std::ptrdiff_t i = 0; i < s.in_channels; ++i) {
        for (int phase = 0; phase < phases; ++phase) {
          for (int column = 0; column < size; ++column) {
            const float* filter = weights + (o * s.in_channels + i) * size * size + column;
            double taps[4] = {};
            for (int t = 0; t * phases + phase < size; ++t) taps[t] = filter[(t * phases + phase) * size];
            *to++ = static_cast<float>(at_position(s, taps, position));
          }
        }
      }
    }
  }
  const int lanes = plan.kernels->lanes;
  // Strips of vectors run over the end of a row, and taps reach 3 pixels further.
  r.pitch = (s.output.width + 3 + 2 * lanes + 15) / 16 * 16;
  r.zero_row.assign(2 * static_cast<std::size_t>(r.pitch) + 2, 0.0f);
  r.thread_floats = static_cast<std::size_t>(s.in_channels) * phases * positions * s.stride_w * r.pitch;
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
  (is_wide(s) ? plan.kernels->rows7 : plan.kernels->rows3)(args, unit_begin, unit_end);
}

}  // namespace penstock
