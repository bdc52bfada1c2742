// How a float map with its channels in the lanes lies in memory: [pixel][active channel].
//
// Pixels lie as the values of a plane do (planes.h): `halo` pixels of zeros between rows and `halo` rows of them above and below. A
// pixel holds the active channels in the order of the list and begins a cache line; what lies between the last channel and the
// next pixel is never used. Whoever writes a map leaves its padding at zero.
#pragma once
#include <cstddef>
#include <cstdint>

#include "run/planes.h"

namespace penstock {

// Floats from one pixel to the next. Not a multiple of 2 KB: the pixels of a register tile would fall into one set of the cache.
constexpr int pixel_floats(int count) {
  const int lines = (count + 15) / 16 * 16;
  return lines > 0 && lines % 512 == 0 ? lines + 16 : lines;
}

// Those of the padding included.
constexpr std::int64_t pixel_count(Planes shape) {
  return static_cast<std::int64_t>(shape.height + 2 * shape.halo) * shape.pitch() + shape.halo;
}

// kVectorSlack floats may be read (never written) past the last pixel.
constexpr std::int64_t pixels_floats(Planes shape, int count) { return pixel_count(shape) * pixel_floats(count) + kVectorSlack; }

}  // namespace penstock
