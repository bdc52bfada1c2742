// How long tensors are needed, and how much scratch operations need.
#include "lanes/lanes.h"
#include "run/program.h"

namespace penstock {

std::vector<int> find_last_uses(const Program& program) {
  std::vector<int> last(program.tensors.size(), -1);
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[static_cast<std::size_t>(i)];
    const auto touch = [&](int tensor) {
      if (tensor >= 0) last[static_cast<std::size_t>(tensor)] = i;
    };
    touch(op.in);
    touch(op.in2);
    touch(op.out);
    for (int input : op.inputs) touch(input);
  }
  return last;
}

PixelScratch pixel_scratch(const Tensor& result) {
  const int channels = result.channels;
  PixelScratch lay;
  const auto take = [&](std::int64_t floats) {
    const std::int64_t here = lay.total;
    lay.total += round_to_line(floats);
    return here;
  };
  lay.factors = take(round_to_line(channels));
  lay.shift = take(round_to_line(channels));
  lay.sums = take(sums_pitch(channels) * result.shape.height);
  for (int term = 0; term < 2; ++term) {
    lay.first[term] = take(channels / 4 + 2);
    lay.pieces[term] = take(spread_pieces(channels, channels) * static_cast<std::int64_t>(sizeof(LanesPiece) / sizeof(float)));
  }
  return lay;
}

SumScratch sum_scratch(const Tensor& result, int blocks) {
  const std::int64_t pixels = (std::int64_t{result.shape.height} * result.shape.width + blocks - 1) / blocks;
  const std::int64_t block = round_to_line(pixels * pixel_floats(result.channels) + kVectorSlack);
  SumScratch lay;
  lay.lists = pixel_scratch(result);
  lay.own = lay.lists.total;
  lay.addend = lay.own + block;
  lay.total = lay.addend + block;
  return lay;
}

OpScratch scratch_for(const Op& op, int most_in, int most_out, int threads) {
  if (op.kind != OpKind::conv) return op.scratch;
  if (op.int8)
    return {round_to_line(static_cast<std::int64_t>(int8_scratch(*op.int8, most_in, most_out, threads) + 3) / 4), 0, 0, 0};
  const ConvScratchFloats floats = conv_scratch(*op.plan, most_in, most_out);
  const auto rounded = [](std::size_t n) { return round_to_line(static_cast<std::int64_t>(n)); };
  return {rounded(floats.shared), rounded(floats.thread), op.scratch.chunk, rounded(floats.spare)};
}

}  // namespace penstock
