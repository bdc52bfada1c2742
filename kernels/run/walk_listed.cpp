// Convolutions of listed pixels: find the list, gather and multiply, put the results where they belong.
#include "run/walk.h"

namespace penstock {

// The pixels where the map is not zero: where their inputs lie, where their results go, and the map's values. -1: a value of the
// map is not finite, which must not pass for a pixel that is skipped.
int Runtime::Walk::list_pixels(const Op& op) {
  const ListedPlan& plan = *op.listed;
  const Planes map = tensor(op.in2).shape, to = tensor(op.out).shape;
  const float* row = live(op.in2).data + map.origin();
  std::int32_t *const places = context_.pixel_places.data(), *const results = context_.pixel_results.data();
  float* const factors = context_.pixel_factors.data();
  int count = 0;
  for (int y = 0; y < map.height; ++y, row += map.pitch()) {
    if (!kernels_.all_finite(row, map.width)) return -1;
    // No branch: every place is written, and the next one overwrites it unless its pixel is listed.
    for (int x = 0; x < map.width; ++x) {
      places[count] = plan.place(y, x);
      results[count] = static_cast<std::int32_t>(y * to.pitch() + x);
      factors[count] = row[x];
      count += row[x] != 0.0f;
    }
  }
  const std::int64_t padded = plan.padded(count);
  for (std::int64_t i = count; i < padded; ++i) places[i] = count ? places[count - 1] : 0;
  return count;
}

bool Runtime::Walk::listed(const Op& op) {
  const ListedPlan& plan = *op.listed;
  const Tensor &from = tensor(op.in), &to = tensor(op.out);
  const Live& in = live(op.in);
  const int count = plan.fixed() ? plan.pixels : list_pixels(op);
  if (count < 0) return false;
  make_dense(op.out);
  float* const sums = scratch(op);
  const std::int64_t macs = std::int64_t{count} * in.count * plan.tap_count() * to.channels;
  note(op, macs, in.count, count ? to.channels : 0);
  ListedArgs args;
  args.input = in.data;
  args.in_stride = from.step();
  args.in_list = in.list;
  args.in_count = in.count;
  args.in_channels = from.channels;
  args.taps = plan.taps.data();
  args.tap_count = plan.tap_count();
  args.places = plan.fixed() ? plan.places.data() : context_.pixel_places.data();
  args.weights = plan.weights;
  args.bias = plan.bias.data();
  args.out_channels = to.channels;
  args.sums = sums;
  args.step = plan.padded(count);
  const OpScratch& floats = placement_.scratch[number_of(op)];
  float* const packed = sums + floats.shared;
  const int strips = static_cast<int>(args.step / plan.kernels->strip);
  const int blocks = (strips + plan.block - 1) / plan.block;
  each(blocks, macs / 8, [&](int block, int member) {
    const int begin = static_cast<int>(static_cast<std::int64_t>(strips) * block / blocks);
    const int end = static_cast<int>(static_cast<std::int64_t>(strips) * (block + 1) / blocks);
    plan.kernels->run(args, begin, end, packed + member * floats.thread);
  });
  each(to.channels, to.channels * to.step(), [&](int c, int) {
    float* const own = sums + c * args.step;
    float* const plane = live(op.out).data + c * to.step();
    if (plan.fixed()) put_nearest(op, own, plane);
    else put_listed(op, c, count, own, plane);
    summarise_plane(op.out, c);
  });
  note_summaries(op.out);
  return true;
}

void Runtime::Walk::put_nearest(const Op& op, float* sums, float* plane) {
  const Planes shape = tensor(op.out).shape;
  if (op.function != Function::none) kernels_.apply(sums, op.listed->pixels, op.function, op.slope, sums);
  zero_padding(plane, shape);
  const std::int32_t* nearest = op.listed->nearest.data();
  float* row = plane + shape.origin();
  for (int y = 0; y < shape.height; ++y, row += shape.pitch(), nearest += shape.width)
    for (int x = 0; x < shape.width; ++x) row[x] = sums[nearest[x]];
}

void Runtime::Walk::put_listed(const Op& op, int channel, int count, float* sums, float* plane) {
  const Planes shape = tensor(op.out).shape;
  const float shift = op.listed->shift ? op.listed->shift[channel] : 0.0f;
  const float* const factors = context_.pixel_factors.data();
  for (int i = 0; i < count; ++i) sums[i] = factors[i] * sums[i] + shift;
  float rest = shift;
  if (op.function != Function::none) {
    kernels_.apply(sums, count, op.function, op.slope, sums);
    kernels_.apply(&rest, 1, op.function, op.slope, &rest);
  }
  fill_plane(plane, shape, rest);
  const std::int32_t* const results = context_.pixel_results.data();
  float* const origin = plane + shape.origin();
  for (int i = 0; i < count; ++i) origin[results[i]] = sums[i];
}

}  // namespace penstock
