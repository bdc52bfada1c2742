#include "train/conv.h"

#include <algorithm>

#include "run/team.h"
#include "train/kernels.h"

namespace penstock {
namespace {

constexpr std::int64_t kPositions = 36;
constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLine = 16;               // floats in a cache line
constexpr std::int64_t kMatrixFloats = 3 << 18;  // size of one matrix (3 MiB), so that all of them together stay in L3

// How many images are worked on at a time, and how their tiles lie in a matrix.
struct Chunk {
  std::int64_t images, rows;

  explicit Chunk(const TrainConvShape& s) {
    const std::int64_t widest = std::max(s.in_blocks(), s.out_blocks()) * kBlock;
    images = std::clamp<std::int64_t>(kMatrixFloats / (kPositions * widest * s.tiles()), 1, s.images);
    rows = (images * s.tiles() + kTrainRows - 1) / kTrainRows * kTrainRows;
  }
  // One cache line is left free: without it all positions of a tile would fall into the same cache set.
  std::int64_t step(std::int64_t blocks) const { return blocks * rows * kBlock + kLine; }
};

// Calls work(first image, images) chunk by chunk.
template <typename Work>
void each_chunk(const TrainConvShape& s, const Chunk& chunk, const Work& work) {
  for (std::int64_t first = 0; first < s.images; first += chunk.images) work(first, std::min(chunk.images, s.images - first));
}

}  // namespace

float* Scratch::take(std::int64_t floats) {
  if (floats > count_) {
    buffer_.allocate(static_cast<std::size_t>(floats));
    count_ = floats;
    std::fill_n(buffer_.data(), floats, 0.0f);
  }
  return buffer_.data();
}

bool valid(const TrainConvShape& s, const char** what) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 20;
  const auto within = [&](std::int64_t value, std::int64_t low) { return value >= low && value <= kLimit; };
  *what = nullptr;
  if (!within(s.images, 1)) *what = "images";
  else if (!within(s.in, 1) || !within(s.out, 1) || s.in * s.out > (std::int64_t{1} << 26)) *what = "channels";
  else if (!within(s.padding, 0) || s.padding > 2) *what = "padding";
  else if (!within(s.height, 1) || !within(s.width, 1) || s.out_height() < 1 || s.out_width() < 1) *what = "size";
  else if (s.height * s.width > (std::int64_t{1} << 24) || s.tiles() * std::max(s.in, s.out) > (std::int64_t{1} << 28))
    *what = "size";
  return *what == nullptr;
}

void train_conv_forward(Isa isa, Team& team, Scratch& scratch, const TrainConvShape& s, const float* x, const float* w, float* y) {
  const TrainConvKernels& kernel = train_kernels(isa).conv;
  const Chunk chunk(s);
  const std::int64_t filter = s.filter_step();
  const std::int64_t v_step = chunk.step(s.in_blocks()), m_step = chunk.step(s.out_blocks());
  float* const u = scratch.take(kPositions * (filter + v_step + m_step));
  float* const v = u + kPositions * filter;
  float* const m = v + kPositions * v_step;
  team.run(static_cast<int>(s.out_blocks()), [&](int block, int) { kernel.filters(s, w, block, u); });
  const std::int64_t pixels = s.height * s.width * s.in, results = s.out_height() * s.out_width() * s.out;
  each_chunk(s, chunk, [&](std::int64_t first, std::int64_t images) {
    const std::int64_t rows = chunk.rows;
    team.run(static_cast<int>(images),
             [&](int i, int) { kernel.input_tiles(s, x + (first + i) * pixels, v, rows, v_step, i * s.tiles()); });
    team.run(kPositions, [&](int p, int) {
      kernel.multiply(v + p * v_step, u + p * filter, m + p * m_step, rows, s.in_blocks(), s.out_blocks());
    });
    team.run(static_cast<int>(images),
             [&](int i, int) { kernel.output_tiles(s, m, rows, m_step, i * s.tiles(), y + (first + i) * results); });
  });
}

void train_conv_backward(Isa isa, Team& team, Scratch& scratch, const TrainConvShape& s, const float* x, const float* w,
                         const float* dy, float* dx, float* dw) {
  const TrainConvKernels& kernel = train_kernels(isa).conv;
  const Chunk chunk(s);
  const std::int64_t filter = s.filter_step();
  const std::int64_t v_step = chunk.step(s.in_blocks()), d_step = chunk.step(s.out_blocks());
  float* const ut = scratch.take(kPositions * (2 * filter + v_step + d_step));
  float* const du = ut + kPositions * filter;
  float* const v = du + kPositions * filter;
  float* const d = v + kPositions * v_step;
  if (dx) {
    if (s.out % kBlock) std::fill_n(ut, kPositions * filter, 0.0f);  // zeros for the outputs that pad the last block
    team.run(static_cast<int>(s.out), [&](int o, int) { kernel.turned_filters(s, w, o, ut); });
  }
  std::fill_n(du, kPositions * filter, 0.0f);
  const std::int64_t pixels = s.height * s.width * s.in, results = s.out_height() * s.out_width() * s.out;
  each_chunk(s, chunk, [&](std::int64_t first, std::int64_t images) {
    const std::int64_t rows = chunk.rows, used = images * s.tiles();
    team.run(static_cast<int>(images), [&](int i, int) {
      kernel.input_tiles(s, x + (first + i) * pixels, v, rows, v_step, i * s.tiles());
      kernel.gradient_tiles(s, dy + (first + i) * results, d, rows, d_step, i * s.tiles());
    });
    team.run(kPositions, [&](int p, int) {
      float* const left = v + p * v_step;
      const float* const right = d + p * d_step;
      kernel.accumulate(left, right, du + p * filter, rows, used, s.in_blocks(), s.out_blocks());
      if (dx) kernel.multiply(right, ut + p * filter, left, rows, s.out_blocks(), s.in_blocks());  // v is done with
    });
    if (dx)
      team.run(static_cast<int>(images),
               [&](int i, int) { kernel.add_input_tiles(s, v, rows, v_step, i * s.tiles(), dx + (first + i) * pixels); });
  });
  team.run(static_cast<int>(s.out_blocks()), [&](int block, int) { kernel.filter_gradient(s, du, block, dw); });
}

}  // namespace penstock
