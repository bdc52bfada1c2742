// What is done to quantised maps besides convolution: the interface. docs/int8.md has the arithmetic.
#pragma once
#include "int8/pixels.h"
#include "machine/cpu.h"
#include "ops/ops.h"

namespace penstock {

// For every channel of a result's list its place among an input's channels, and the byte shuffles that move the channels.
class Spread {
 public:
  // Bytes of memory that the tables of a result with this many channels take.
  static std::size_t size(int count) { return static_cast<std::size_t>((count + 15) / 16) * (16 * 4 + 4 + 16 + 16); }
  Spread(const std::int32_t* out_list, int out_count, const std::int32_t* in_list, int in_count, int zero, std::uint8_t* memory);

  const std::int32_t* places;  // -1: the input does not store the channel
  const std::int32_t* starts;  // for each 16 channels, where the shuffle reads; -1: they lie too far apart for a shuffle
  const std::uint8_t* masks;
  const std::uint8_t* fills;  // the zero point's code where a channel is missing
};

// A quantised map as it lies in memory for one image.
struct CodeMap {
  const std::uint8_t* data = nullptr;
  int bytes = 0;  // of a pixel
  Planes shape;
  int zero = 0;
};

// What combine() does: for each channel p of the result, with v = q - zero of either summand,
// y = va * first[p] + vb * second[p] + shift[p], if there are shifts, then the function, clamp and rounding of docs/int8.md. The factors
// carry 1 / scale of the result unless the function is more than a clamp.
struct Combination {
  CodeMap a, b;  // b.data may be null
  const Spread *spread_a = nullptr, *spread_b = nullptr;
  const float *first = nullptr, *second = nullptr, *shift = nullptr;  // of whole vectors of 16; shift may be null
  Function function = Function::none;
  float slope = 0.0f;
  Quantised out;
  std::uint8_t* to = nullptr;  // where channel 0 of pixel 0 of the padded map would lie
  int bytes = 0, count = 0;
  Planes shape;
  std::int32_t* sums = nullptr;  // may be null; to these, whole vectors of 16, |q - zero| of the result is added
};

struct CodeSums {
  std::int64_t sum = 0, magnitude = 0, squares = 0;
  std::int32_t most = 0;
};

struct MapKernels {
  // Rows [y0, y1) of the result.
  void (*combine)(const Combination& what, int y0, int y1);
  // Largest code, or rounded mean, under each window; rows [y0, y1) of the result.
  void (*pool)(const CodeMap& in, int count, const PoolShape& window, Pool kind, std::uint8_t* to, int bytes, Planes shape, int y0,
               int y1);
  // Of q - zero, channel by channel [begin, end). only_sums: squares and the largest magnitude may be left out.
  void (*sum)(const CodeMap& in, int begin, int end, bool only_sums, CodeSums* sums);
  // Planes of an image (packed) to codes; false when a value is beyond far_limit(), or is not a number.
  bool (*import_image)(const float* image, int channels, Quantised out, std::uint8_t* to, int bytes, Planes shape);
  // One row of pixels to values of planes, `step` floats apart, and back; false as above.
  void (*to_floats)(const std::uint8_t* row, int bytes, int pixels, int count, Quantised in, float* to, std::int64_t step);
  bool (*from_floats)(const float* from, std::int64_t step, int pixels, int count, Quantised out, std::uint8_t* row, int bytes);
};

// The operations of an instruction set that agrees with the baseline (select.h).
const MapKernels& map_kernels(Isa wanted);

// For each channel q - zero of function(bias), which is what a convolution makes of an input that is zero everywhere.
void find_constants(const MapKernels& maps, const float* bias, int channels, Function function, float slope, Quantised out,
                    float* values);

// ss(x) of the paper from whole sums (docs/int8.md).
float summary_of(const CodeSums& sums, Summary kind, std::int64_t pixels, float scale);

}  // namespace penstock
