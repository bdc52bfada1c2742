#include "int8/maps.h"

#include <cmath>
#include <cstring>

#include "int8/select.h"

namespace penstock {

Spread::Spread(const std::int32_t* out_list, int out_count, const std::int32_t* in_list, int in_count, int zero,
               std::uint8_t* memory) {
  const int blocks = (out_count + 15) / 16;
  std::int32_t* const at = reinterpret_cast<std::int32_t*>(memory);
  std::int32_t* const begins = at + 16 * blocks;
  std::uint8_t* const indices = reinterpret_cast<std::uint8_t*>(begins + blocks);
  std::uint8_t* const missing = indices + 16 * blocks;
  for (int p = 0, q = 0; p < 16 * blocks; ++p) {
    at[p] = -1;
    if (p >= out_count) continue;
    while (q < in_count && in_list[q] < out_list[p]) ++q;
    if (q < in_count && in_list[q] == out_list[p]) at[p] = q;
  }
  for (int b = 0; b < blocks; ++b) {
    int first = -1, last = -1;
    for (int k = 0; k < 16; ++k) {
      if (at[16 * b + k] < 0) continue;
      if (first < 0) first = at[16 * b + k];
      last = at[16 * b + k];
    }
    begins[b] = first < 0 ? 0 : last - first < 16 ? first : -1;
    for (int k = 0; k < 16; ++k) {
      const int place = at[16 * b + k];
      indices[16 * b + k] = place < 0 || begins[b] < 0 ? std::uint8_t{0x80} : static_cast<std::uint8_t>(place - begins[b]);
      missing[16 * b + k] = place < 0 ? static_cast<std::uint8_t>(zero) : std::uint8_t{0};
    }
  }
  places = at;
  starts = begins;
  masks = indices;
  fills = missing;
}

const MapKernels& map_kernels(Isa wanted) { return int8_kernels(wanted).maps; }

float summary_of(const CodeSums& sums, Summary kind, std::int64_t pixels, float scale) {
  const float unit = scale / static_cast<float>(pixels);
  switch (kind) {
    case Summary::l1: return static_cast<float>(sums.magnitude) * unit;
    case Summary::l2: return static_cast<float>(std::sqrt(static_cast<double>(sums.squares))) * unit;
    case Summary::linf: return static_cast<float>(sums.most) * unit;
    default: {
      const double n = static_cast<double>(pixels), sum = static_cast<double>(sums.sum), s = static_cast<double>(scale);
      return static_cast<float>((static_cast<double>(sums.squares) - sum * sum / n) * (s * s) / (n * n));
    }
  }
}

}  // namespace penstock
