#include "int8/pixels.h"

#include <cstring>

namespace penstock {

void fill_padding(std::uint8_t* map, Planes shape, int bytes, int zero) {
  if (shape.halo == 0) return;
  const std::int64_t row = static_cast<std::int64_t>(shape.pitch()) * bytes, gap = static_cast<std::int64_t>(shape.halo) * bytes;
  const std::int64_t above = shape.origin() * bytes, wide = static_cast<std::int64_t>(shape.width) * bytes;
  std::memset(map, zero, static_cast<std::size_t>(above));
  for (int y = 0; y < shape.height; ++y) std::memset(map + above + y * row + wide, zero, static_cast<std::size_t>(gap));
  const std::int64_t below = above + shape.height * row;
  std::memset(map + below, zero, static_cast<std::size_t>(pixel_count(shape) * bytes - below));
}

}  // namespace penstock
