// Convolutions of listed pixels: every number of theirs, checked.
#include <climits>

#include "run/loader.h"

namespace penstock {

void Loader::load_listed(Op& op, Row f, Row p) {
  const Tensor &in = at(op.in), &out = at(op.out);
  check(in.layout == Layout::planes && out.layout == Layout::planes, "a convolution of listed pixels works on planes");
  const ConvSizes s = read_sizes<ListedField>(in, out, p);
  check_sizes(s, false);
  const std::int64_t row = std::int64_t{s.kernel_h} * s.kernel_w * in.channels;
  check(row <= INT_MAX, "kernel");
  const float* const kernel = weights(p[ListedField::weights], row * out.channels, "weights");
  const float* const bias = p[ListedField::bias] == -1 ? nullptr : weights(p[ListedField::bias], out.channels, "bias");
  const float* const shift = p[ListedField::shift] == -1 ? nullptr : weights(p[ListedField::shift], out.channels, "shift");
  const std::int64_t area = static_cast<std::int64_t>(out.shape.height) * out.shape.width;
  std::vector<std::int32_t> pixels, nearest;
  if (f[OpField::in2] == -1) {
    check(shift == nullptr, "a shift belongs to pixels that a map decides");
    const auto list = [&](std::int64_t first, std::int64_t count, std::int64_t end, const char* what) {
      check(first >= 0 && first <= raw_.arg_count - count, what);
      std::vector<std::int32_t> read;
      for (std::int64_t i = 0; i < count; ++i) read.push_back(number(raw_.args[first + i], 0, end - 1, what));
      return read;
    };
    const int count = number(p[ListedField::pixels], 1, area, "number of pixels");
    pixels = list(p[ListedField::first_pixel], count, area, "listed pixel");
    for (std::size_t i = 1; i < pixels.size(); ++i) check(pixels[i] > pixels[i - 1], "the list of pixels does not rise");
    nearest = list(p[ListedField::nearest], area, count, "nearest pixel");
  } else {
    op.in2 = index(f[OpField::in2], "second input", true);
    const Tensor& map = at(op.in2);
    check(same_size(map, out) && map.channels == 1 && map.whole, "what decides is one map of the result's size");
    check_apart(op.in2, op.out, false);
  }
  check_apart(op.in, op.out, false);
  const Machine& machine = program_->machine;
  // The largest block that a thread may take has to fit, whatever the plan makes of it.
  check(row * out.channels <= kMaxTensorFloats && area * out.channels <= kMaxTensorFloats && row <= kMaxTensorFloats / 64,
        "too large");
  op.listed = std::make_shared<const ListedPlan>(
      plan_listed(s, machine.isa, kernel, bias, shift, machine.tuning.packed_block_floats, pixels, std::move(nearest)));
  op.scratch.shared = round_to_line(op.listed->sum_floats());
  op.scratch.thread = round_to_line(op.listed->packed_floats());
  check(op.scratch.shared + op.scratch.thread <= kMaxTensorFloats, "scratch too large");
}

}  // namespace penstock
