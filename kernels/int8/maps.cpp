#include "int8/maps.h"

#include <cmath>
#include <cstring>
#include <vector>

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

void find_constants(const MapKernels& maps, const float* bias, int channels, Function function, float slope, Quantised out,
                    float* values) {
  const std::size_t room = static_cast<std::size_t>((channels + 15) / 16) * 16;
  const bool curved = function == Function::silu || function == Function::gelu || function == Function::hardswish;
  std::vector<std::int32_t> list(room);
  for (std::size_t c = 0; c < room; ++c) list[c] = static_cast<std::int32_t>(c);
  std::vector<std::int32_t> memory(Spread::size(channels) / 4 + 1);
  std::vector<std::uint8_t> zeros(room), codes(room);
  std::vector<float> factors(room), shift(room);
  for (int c = 0; c < channels; ++c) shift[static_cast<std::size_t>(c)] = curved ? bias[c] : bias[c] * (1.0f / out.scale);
  // One pixel of zeros, so that rounding is that of every other pixel.
  const Spread spread(list.data(), channels, list.data(), channels, 0, reinterpret_cast<std::uint8_t*>(memory.data()));
  Combination c;
  c.a = {zeros.data(), static_cast<int>(room), Planes{1, 1, 0}, 0};
  c.spread_a = &spread;
  c.first = factors.data();
  c.shift = shift.data();
  c.function = function;
  c.slope = slope;
  c.out = out;
  c.to = codes.data();
  c.bytes = static_cast<int>(room);
  c.count = channels;
  c.shape = Planes{1, 1, 0};
  maps.combine(c, 0, 1);
  for (int p = 0; p < channels; ++p) values[p] = static_cast<float>(codes[static_cast<std::size_t>(p)] - out.zero);
}

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
