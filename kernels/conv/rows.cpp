// Planning Winograd down the rows: transformed weights and the room for transformed rows.
#include <algorithm>

#include "conv/plan.h"

namespace penstock {

namespace {

// One kind for each kernel that rows.inl has.
struct Kind {
  int size, stride;
  int finite;        // points, besides infinity
  double points[6];  // in the order of rows.inl; infinity comes last
  int taps;          // of the longest phase

  int positions() const { return finite + 1; }
};
constexpr Kind kKinds[] = {{3, 1, 5, {0, 1, -1, 2, -2}, 3}, {3, 2, 4, {0, 1, -1, 2}, 2}, {7, 2, 6, {1, -1, 2, -2, 0.5, -0.5}, 4}};

const Kind* kind_of(const ConvShape& s) {
  for (const Kind& kind : kKinds) {
    if (s.kernel_h == kind.size && s.kernel_w == kind.size && s.stride_h == kind.stride && s.stride_w == kind.stride) {
      return &kind;
    }
  }
  return nullptr;
}

// Whether two rows of tiles are computed side by side, one vector each: an output row and the extra pixel that the taps read must
// fit in a vector and fill more than half of it.
bool beside_fits(const ConvShape& s, int lanes) {
  return s.kernel_h == 3 && s.stride_h == 2 && s.output.width < lanes && s.output.width > lanes / 2;
}

// What becomes of a column's taps at a position: their polynomial there, over the product of the differences to the other
// points.
double at_position(const Kind& kind, const double (&taps)[4], int position) {
  if (position == kind.finite) return taps[kind.taps - 1];
  const double x = kind.points[position];
  double scale = 1;
  for (int other = 0; other < kind.finite; ++other) {
    if (other != position) scale *= x - kind.points[other];
  }
  return (taps[0] + x * (taps[1] + x * (taps[2] + x * taps[3]))) / scale;
}

bool fits(const ConvShape& s) { return kind_of(s) && s.dilation_h == 1 && s.dilation_w == 1 && s.groups == 1; }

double cost(const ConvPlan&, int, int) { return 2; }

void plan_rows(ConvPlan& plan, const float* weights) {
  const ConvShape& s = plan.shape;
  RowsPlan& r = plan.rows;
  const Kind& kind = *kind_of(s);
  const int positions = kind.positions(), phases = kind.stride, size = kind.size;
  r.weights.allocate_shared(static_cast<std::size_t>(s.out_channels) * positions * s.in_channels * phases * size);
  float* to = r.weights.data();
  for (std::ptrdiff_t o = 0; o < s.out_channels; ++o) {
    for (int position = 0; position < positions; ++position) {
      for (std::ptrdiff_t i = 0; i < s.in_channels; ++i) {
        for (int phase = 0; phase < phases; ++phase) {
          for (int column = 0; column < size; ++column) {
            const float* filter = weights + (o * s.in_channels + i) * size * size + column;
            double taps[4] = {};
            for (int t = 0; t * phases + phase < size; ++t) taps[t] = filter[(t * phases + phase) * size];
            *to++ = static_cast<float>(at_position(kind, taps, position));
          }
        }
      }
    }
  }
  const int lanes = plan.kernels->lanes;
  // The last vector of a row reads past its end, and taps read up to 3 pixels further. The pitch is an odd number of cache lines, so
  // that rows do not all fall into the same sets of the cache.
  r.beside = beside_fits(s, lanes) ? 2 : 1;
  const int columns = (s.output.width + lanes - 1) / lanes * lanes * r.beside + 3;
  r.pitch = ((columns + 15) / 16 | 1) * 16;
  r.zero_row.assign(2 * static_cast<std::size_t>(r.pitch + lanes), 0.0f);
  r.thread_floats = static_cast<std::size_t>(s.in_channels) * phases * positions * s.stride_w * r.pitch;
  if (s.in_channels > plan.tuning().rows_most_inputs) return;
  // An image may come bare. The rows of a tile are copied to where they have margins, one channel and phase at a time.
  r.bare_pitch = static_cast<int>(r.zero_row.size());
  r.bare_offset = r.thread_floats;
  r.thread_floats += static_cast<std::size_t>(positions) * r.bare_pitch;
}

ConvScratchFloats scratch_of(const ConvPlan& plan, int, int) { return {0, plan.rows.thread_floats, 0}; }

int units(const ConvPlan& plan, const ConvTask& task, int) {
  const int rows = kRowsOut * plan.rows.beside;
  return task.out_count == 0 ? 0 : (plan.shape.output.height + rows - 1) / rows;
}

void run_rows(const ConvPlan& plan, const ConvTask& task, int, int unit_begin, int unit_end, const ConvScratch& scratch) {
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
  args.beside = plan.rows.beside;
  args.copies = nullptr;
  if (task.input_layout == Layout::bare) {
    args.in_stride = static_cast<std::ptrdiff_t>(s.input.height) * s.input.width;
    args.in_origin = 0;
    args.in_pitch = s.input.width;
    args.copies = scratch.thread + plan.rows.bare_offset;
    args.copies_pitch = plan.rows.bare_pitch;
  }
  args.out = conv_output(plan, task);
  const ConvKernels& kernels = *plan.kernels;
  (s.kernel_h == 7 ? kernels.rows7 : s.stride_h == 2 ? kernels.rows3_by2 : kernels.rows3)(args, unit_begin, unit_end);
}

// Every row of the image must be read.
bool takes_bare(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  return plan.rows.bare_pitch > 0 && (s.output.height - 1) * s.stride_h + s.kernel_h - s.pad_h >= s.input.height;
}

}  // namespace

bool rows_suit(const ConvPlan& plan) {
  const ConvShape& s = plan.shape;
  const Tuning& t = plan.tuning();
  const int lanes = plan.kernels->lanes;
  if (!fits(s) || s.output.height < t.rows_fewest_rows || s.in_channels < t.rows_fewest_inputs) return false;
  if (s.kernel_h == 3 && s.stride_h == 2) {
    // In rows of a single vector every weight would serve one product only.
    const bool fills = s.output.width > lanes || beside_fits(s, lanes);
    return fills && std::int64_t{s.in_channels} * s.out_channels <= t.rows_most_pairs;
  }
  return s.in_channels <= t.rows_most_inputs;
}

// Winograd down the rows only.
const ConvAlgorithm kWinogradRows = {
    {"winograd_rows", Element::float32, "a 3x3 kernel with stride 1 or 2 or 7x7 with stride 2, dilation 1 and one group"},
    fits,
    rows_suit,
    cost,
    plan_rows,
    scratch_of,
    one_stage,
    units,
    run_rows,
    takes_bare,
    nullptr};

}  // namespace penstock
