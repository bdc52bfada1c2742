// How the scratch of an int8 convolution is laid out, and how much a task may need.
#include <algorithm>

#include "int8/kernels.h"

namespace penstock {
namespace {

// Whether weights of more than int8_stream_bytes are gathered piece by piece (stream.inl).
bool may_stream(const Int8Plan& plan, const Int8Algorithm* algorithm, int threads) {
  return plan.kernels->streams && threads == 1 && plan.shape.groups == 1 && !plan.image_rows && algorithm->few_users &&
         algorithm->few_users(plan);
}

// How many pairs of inputs are compacted together where weights are gathered piece by piece.
int stream_pairs(const Int8Plan& plan, int in_count, int out_count) {
  const int piece = stream_piece(plan), pairs = (in_count + 1) / 2;
  const std::size_t pair = 2 * static_cast<std::size_t>(plan.taps) * static_cast<std::size_t>(stream_pitch(out_count));
  return std::min(std::max(static_cast<int>(plan.tuning.int8_stream_rows / pair) / piece, 1) * piece, pairs);
}

// Vectors of outputs: those of each group begin a vector of their own, unless groups are mixed.
int vector_count(const Int8Plan& plan, const Int8Algorithm* algorithm, int out_count) {
  const Int8Shape& s = plan.shape;
  const int lanes = plan.kernels->lanes;
  if (s.groups == 1 || algorithm->mixes_groups) return (out_count + lanes - 1) / lanes;
  return s.groups * ((s.out_channels / s.groups + lanes - 1) / lanes);
}

// Whether weights may be gathered panel by panel.
bool may_take_panels(const Int8Plan& plan, const Int8Algorithm* algorithm, int threads) {
  return plan.kernels->gather_panel && algorithm->by_panels && threads == 1 && plan.shape.groups == 1;
}

Int8Scratch lay_out_as(const Int8Plan& plan, const Int8Algorithm* algorithm, int in_count, int out_count, int threads,
                       Int8Weights weights) {
  const Int8Shape& s = plan.shape;
  const Int8Kernels& k = *plan.kernels;
  Int8Scratch lay{};
  Int8Room room;
  lay.vectors = vector_count(plan, algorithm, out_count);
  const std::size_t lanes = static_cast<std::size_t>(lay.vectors) * static_cast<std::size_t>(k.lanes);
  const std::size_t taps = static_cast<std::size_t>(plan.taps);
  const std::size_t blocks =
      algorithm->mixes_groups ? 0 : static_cast<std::size_t>(s.groups) * static_cast<std::size_t>(plan.row / 16);
  lay.groups = room.take(sizeof(Int8Group) * static_cast<std::size_t>(s.groups));
  lay.masks = room.take(16 * blocks);
  lay.starts = room.take(4 * blocks);
  lay.places = room.take(algorithm->mixes_groups ? 4 * static_cast<std::size_t>(out_count) : 0);
  lay.mul = room.take(4 * lanes);
  lay.add = room.take(4 * lanes);
  lay.init = room.take(4 * lanes);
  lay.totals = room.take(plan.taps == 1 || s.in.zero != 0 ? 4 * static_cast<std::size_t>(s.out_channels + kInt8RowSlack) : 0);
  lay.tap_totals = room.take(s.in.zero != 0 ? 4 * static_cast<std::size_t>(s.out_channels + kInt8RowSlack) : 0);
  lay.weights = room.take(weights == Int8Weights::gathered ? algorithm->weight_bytes(plan, in_count, lay.vectors) : 0);
  lay.thread = room.taken();
  lay.sums = room.take(4 * lanes) - lay.thread;
  if (weights == Int8Weights::streamed) {
    lay.streamed = stream_pairs(plan, in_count, out_count);
    const int piece = std::min(stream_piece(plan), lay.streamed);
    lay.rows =
        room.take(2 * static_cast<std::size_t>(lay.streamed) * taps * static_cast<std::size_t>(stream_pitch(out_count)) + 64) -
        lay.thread;
    lay.panel = room.take(algorithm->weight_bytes(plan, 2 * piece, k.most_vectors)) - lay.thread;
  } else if (weights == Int8Weights::by_panel) {
    lay.panel_pairs = std::min(plan.tuning.int8_panel_pairs, (in_count + 1) / 2);
    lay.panel = room.take(algorithm->weight_bytes(plan, 2 * lay.panel_pairs, k.most_vectors)) - lay.thread;
  } else {
    lay.rows =
        room.take(static_cast<std::size_t>(std::max(4, k.group)) * taps * static_cast<std::size_t>(compacted_pitch(plan.row))) -
        lay.thread;
  }
  algorithm->lay_out(plan, in_count, out_count, threads, room, lay);
  lay.thread_size = room.taken() - lay.thread;
  lay.total = lay.thread + static_cast<std::size_t>(threads) * lay.thread_size;
  return lay;
}

}  // namespace

Int8Weights weights_of(const Int8Plan& plan, const Int8Algorithm* algorithm, int in_count, int out_count, int threads) {
  const Tuning& t = plan.tuning;
  const bool packed = plan.packed_for == algorithm && all_active(plan, in_count, out_count);
  const std::size_t bytes = algorithm->weight_bytes(plan, in_count, vector_count(plan, algorithm, out_count));
  if (may_take_panels(plan, algorithm, threads) && algorithm->by_panels(plan, in_count, out_count, packed))
    return Int8Weights::by_panel;
  if (may_stream(plan, algorithm, threads) && bytes > (packed ? t.int8_stream_packed : t.int8_stream_bytes))
    return Int8Weights::streamed;
  return packed ? Int8Weights::packed : Int8Weights::gathered;
}

Int8Scratch lay_out(const Int8Plan& plan, const Int8Algorithm* algorithm, int in_count, int out_count, int threads) {
  return lay_out_as(plan, algorithm, in_count, out_count, threads, weights_of(plan, algorithm, in_count, out_count, threads));
}

void lay_out_rows(const Int8Plan& plan, int threads, bool copies, std::size_t pixel, Int8Room& room, Int8Scratch& lay) {
  const Int8Shape& s = plan.shape;
  const Tuning& t = plan.tuning;
  const std::size_t row = pixel * static_cast<std::size_t>(s.input.pitch());
  const int height = s.output.height, reach = (s.kernel_h - 1) * s.dilation_h + 1;
  int rows = static_cast<int>(std::clamp<std::int64_t>(
      (static_cast<std::int64_t>(t.int8_direct_bytes / std::max<std::size_t>(1, row)) - reach) / s.stride_h + 1, 1, height));
  while (rows < height && rows * s.output.width < t.int8_fewest_pixels) ++rows;
  while (rows > 1 && rows * s.output.width > t.int8_most_pixels) --rows;
  if (threads > 1) rows = std::min(rows, std::max(1, (height + 2 * threads - 1) / (2 * threads)));
  if (lay.streamed > 0) rows = height;
  lay.row_units = (height + rows - 1) / rows;
  lay.unit_rows = (height + lay.row_units - 1) / lay.row_units;
  lay.row_units = (height + lay.unit_rows - 1) / lay.unit_rows;
  lay.panel_units = 1;
  if (threads > 1 && s.groups == 1 && lay.unit_rows * s.output.width < t.int8_fewest_pixels) {
    // Few pixels: threads divide the outputs instead.
    lay.unit_rows = height;
    lay.row_units = 1;
    lay.panel_units = std::clamp((lay.vectors + plan.kernels->most_vectors - 1) / plan.kernels->most_vectors, 1, 4 * threads);
  }
  const std::size_t input_rows = static_cast<std::size_t>((lay.unit_rows - 1) * s.stride_h + reach);
  lay.pixels = room.take(copies ? input_rows * row + pixel * static_cast<std::size_t>(s.pad_w + 4) + 256 : 0) - lay.thread;
  const std::size_t pixels = static_cast<std::size_t>(lay.unit_rows) * static_cast<std::size_t>(s.output.width);
  lay.sources = room.take(sizeof(void*) * pixels) - lay.thread;
  lay.targets = room.take(sizeof(void*) * pixels) - lay.thread;
}

std::size_t most_row_bytes(const Int8Plan& plan, const Int8Scratch& lay) {
  return std::max(lay.thread_size, lay.pixels + std::max(plan.tuning.int8_direct_bytes, lay.sources - lay.pixels) + 1024) +
         2 * sizeof(void*) * static_cast<std::size_t>(std::max(plan.tuning.int8_most_pixels, plan.shape.output.width));
}

std::size_t int8_scratch(const Int8Plan& plan, int in_count, int out_count, int threads) {
  const Tuning& t = plan.tuning;
  std::size_t most = 0;
  for (const Int8Algorithm* algorithm : plan.ready) {
    // The bound has to hold for tasks with fewer channels too. They cannot read packed weights, and they take more rows or tiles at a
    // time, up to the limits above. On one thread units are larger.
    for (int members : {1, threads}) {
      const Int8Scratch lay = lay_out_as(plan, algorithm, in_count, out_count, members, Int8Weights::packed);
      const auto bytes = [&](const Int8Scratch& one, std::size_t weights) {
        return one.thread + round_bytes(weights) +
               static_cast<std::size_t>(members) * round_bytes(algorithm->most_thread_bytes(plan, one));
      };
      std::size_t weights = algorithm->weight_bytes(plan, in_count, lay.vectors);
      const bool streamed = may_stream(plan, algorithm, members) && weights > t.int8_stream_bytes;
      if (may_take_panels(plan, algorithm, members))
        most = std::max(most, bytes(lay_out_as(plan, algorithm, in_count, out_count, members, Int8Weights::by_panel), 0));
      if (streamed) weights = std::min(weights, t.int8_stream_bytes);
      most = std::max(most, bytes(lay, weights));
      // Fewer outputs leave room for the rows of more inputs.
      if (streamed)
        most =
            std::max(most, lay_out_as(plan, algorithm, in_count, out_count, 1, Int8Weights::streamed).total + t.int8_stream_rows);
    }
  }
  return most;
}

}  // namespace penstock
