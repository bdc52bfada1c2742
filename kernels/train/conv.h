// 3x3 convolutions of stride 1 for training: forward, and both gradients, by Winograd's F(4x4, 3x3).
//
// Unlike conv.h this is for whole batches of dense channels, with channels last. With 6x6 tiles d of the input, filters g and
// 4x4 tiles e of the gradient of the output,
//
//   y = A^T [(G g G^T) . (B^T d B)] A      36 products of (tiles x in) and (in x out) matrices: M = V U
//   dd = B [D U^T] B^T,  D = A e A^T       the same steps backwards; tiles of dd overlap and add up
//   dg = G^T [V^T D] G
//
// a quarter of the direct multiplications, for each of the three. Matrices lie as [position][block of 16
// channels][tile][16]. All work is divided in parts that do not depend on the number of threads: neither do the results.
#pragma once
#include <cstddef>
#include <cstdint>

#include "conv/buffer.h"
#include "machine/cpu.h"

namespace penstock {

class Team;

struct TrainConvShape {
  std::int64_t images, in, out, height, width, padding;  // height and width of the input

  std::int64_t out_height() const { return height + 2 * padding - 2; }
  std::int64_t out_width() const { return width + 2 * padding - 2; }
  std::int64_t tiles_down() const { return (out_height() + 3) / 4; }
  std::int64_t tiles_across() const { return (out_width() + 3) / 4; }
  std::int64_t tiles() const { return tiles_down() * tiles_across(); }  // of one image
  std::int64_t in_blocks() const { return (in + 15) / 16; }
  std::int64_t out_blocks() const { return (out + 15) / 16; }
  // Floats from one position of the transformed filters to the next. One cache line is left free: without it all positions of a
  // filter would fall into the same cache set.
  std::int64_t filter_step() const { return in_blocks() * out_blocks() * 256 + 16; }
};

// False when a size is out of range; `what` then says which.
bool valid(const TrainConvShape& shape, const char** what);

// Memory that stays from call to call, since fresh pages cost as much as a transform.
class Scratch {
 public:
  // Returns at least this many floats, aligned to cache lines, and takes back what it gave before. New memory is zeroed, so that
  // padding which is read but never written holds no NaN.
  float* take(std::int64_t floats);

 private:
  ConvBuffer buffer_;
  std::int64_t count_ = 0;
};

// x [image][row][column][in], w [out][3][3][in], y [image][row][column][out].
void train_conv_forward(Isa isa, Team& team, Scratch& scratch, const TrainConvShape& shape, const float* x, const float* w,
                        float* y);

// From dy (like y) to dx (like x; may be null) and dw (like w).
void train_conv_backward(Isa isa, Team& team, Scratch& scratch, const TrainConvShape& shape, const float* x, const float* w,
                         const float* dy, float* dx, float* dw);

// One instruction set's kernels. `step` is the distance between positions of a matrix, in floats.
struct TrainConvKernels {
  // Filters of output block `block` to u [36][out block][in][16]; and of output `o` to ut [36][in block][out][16].
  void (*filters)(const TrainConvShape& s, const float* w, std::int64_t block, float* u);
  void (*turned_filters)(const TrainConvShape& s, const float* w, std::int64_t o, float* ut);
  // Tiles of one image, `channels` wide, from tile `at` of the matrix with `rows` tiles.
  void (*input_tiles)(const TrainConvShape& s, const float* x, float* v, std::int64_t rows, std::int64_t step, std::int64_t at);
  void (*output_tiles)(const TrainConvShape& s, const float* m, std::int64_t rows, std::int64_t step, std::int64_t at, float* y);
  void (*gradient_tiles)(const TrainConvShape& s, const float* dy, float* d, std::int64_t rows, std::int64_t step, std::int64_t at);
  void (*add_input_tiles)(const TrainConvShape& s, const float* dv, std::int64_t rows, std::int64_t step, std::int64_t at,
                          float* dx);
  // m [n block][row][16] = a [k block][row][16] x b [n block][k][16]; k counts padded channels, rows is a multiple of kRows.
  void (*multiply)(const float* a, const float* b, float* m, std::int64_t rows, std::int64_t k_blocks, std::int64_t n_blocks);
  // du [in, padded][out block][16] += a^T d over the first `used` tiles.
  void (*accumulate)(const float* a, const float* d, float* du, std::int64_t rows, std::int64_t used, std::int64_t in_blocks,
                     std::int64_t out_blocks);
  // dw of output block `block`, all inputs, from du [36][in, padded][out block][16].
  void (*filter_gradient)(const TrainConvShape& s, const float* du, std::int64_t block, float* dw);
};

constexpr std::int64_t kTrainRows = 12;  // tiles come in multiples of this

}  // namespace penstock
