// A skip connection added to a 1x1 convolution of pixels.
#include <algorithm>
#include <cstring>
#include <limits>

#include "run/walk.h"

namespace penstock {

// The convolution's own result lies in scratch, a block of pixels at a time, and is added while it is near. The sum may take the addend's
// memory. Its list can be the longer one, so that its pixels lie further on: blocks come from the last to the first, and a block of
// the addend is copied before it is written over.
void Runtime::Walk::conv_add_pixels(const Op& op, ConvTask& task) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor& t = tensor(op.out);
  const Live skip = live(op.in2);
  Live& out = live(op.out);
  std::int32_t* const list = own_list(op.out);
  out.list = list;
  out.count = static_cast<int>(
      std::set_union(skip.list, skip.list + skip.count, task.out_list, task.out_list + task.out_count, list) - list);
  if (out.count == 0) return;
  const int blocks = lanes_blocks(*op.plan);
  const SumScratch lay = sum_scratch(t, blocks);
  const OpScratch& floats = placement_.scratch[number_of(op)];
  float* const mine = scratch(op) + floats.shared + runtime_.threads() * floats.thread;
  float *const own = mine + lay.own, *const copy = mine + lay.addend;
  const auto term = [&](const std::int32_t* from, int count, int number) -> PixelTerm {
    std::int32_t* const first = reinterpret_cast<std::int32_t*>(mine + lay.lists.first[number]);
    LanesPiece* const pieces = reinterpret_cast<LanesPiece*>(mine + lay.lists.pieces[number]);
    const bool differ = set_spread(lanes_, from, count, list, out.count, first, pieces);
    return {nullptr, pixel_floats(count), 0, differ ? pieces : nullptr, first};
  };
  PixelCombination sum{};
  sum.count = 2;
  sum.terms[0] = term(skip.list, skip.count, 0);
  sum.terms[1] = term(task.out_list, task.out_count, 1);
  sum.low = op.after == Function::none ? -kInfinity : 0.0f;
  sum.high = op.after == Function::relu6 ? 6.0f : kInfinity;
  sum.pixel = pixel_floats(out.count);
  sum.vectors = (out.count + lanes_.lanes - 1) / lanes_.lanes;
  sum.last = lanes_.lanes;
  const bool overwrites = skip.data == out.data && sum.terms[0].pieces != nullptr;
  const bool sums = runtime_.wanted_summaries_[static_cast<std::size_t>(op.out)] == static_cast<int>(Summary::l1);
  const std::ptrdiff_t sums_row = round_to_line(out.count);
  // The split does not depend on the number of threads, so that sums are always added in the same order.
  const int parts = std::clamp(t.shape.height / blocks, 1, 4);
  const int product = conv_stages(*op.plan, task) - 1, units = conv_units(*op.plan, task, product) / blocks;
  for (int stage = 0; stage < product; ++stage) run_stage(op, task, stage, 0, conv_units(*op.plan, task, stage));
  const std::int64_t pixels = std::int64_t{t.shape.height} * t.shape.width;
  for (int b = blocks - 1; b >= 0; --b) {
    const std::int64_t begin = pixels * b / blocks, count = pixels * (b + 1) / blocks - begin;
    task.output = own - begin * sum.terms[1].pixel;
    run_stage(op, task, product, b * units, (b + 1) * units);
    const float* addend = skip.data + begin * sum.terms[0].pixel;
    if (overwrites) {
      std::memcpy(copy, addend, sizeof(float) * static_cast<std::size_t>(count * sum.terms[0].pixel));
      addend = copy;
    }
    each(parts, count * sum.pixel, [&](int part, int) {
      const std::int64_t first = count * part / parts;
      PixelCombination some = sum;
      some.terms[0].pixels = addend + first * sum.terms[0].pixel;
      some.terms[1].pixels = own + first * sum.terms[1].pixel;
      some.to = out.data + (begin + first) * sum.pixel;
      some.width = static_cast<int>(count * (part + 1) / parts - first);
      if (sums) some.sums = mine + lay.lists.sums + (b * parts + part) * sums_row;
      lanes_.combine(some, 0, 1);
    });
  }
  if (!sums) return;
  for (int p = 0; p < out.count; ++p) {
    float total = 0.0f;
    for (int row = 0; row < blocks * parts; ++row) total += mine[lay.lists.sums + row * sums_row + p];
    summary(op.out, p) = total / static_cast<float>(pixels);
  }
  note_summaries(op.out);
}

}  // namespace penstock
