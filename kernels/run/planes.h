// How a feature map in planes lies in memory. Maps of pixels (pixels.h) and of codes (int8/pixels.h) keep the same padding.
//
// Only active channels are stored, one plane each, in the order of the tensor's channel list
// (`list[p]` is the channel that plane p holds; lists are strictly increasing).
//
// A plane holds `height` rows of `width` values. Between rows lie `halo` zeros (they are the right padding of
// one row and the left padding of the next); `halo` zero rows lie above and below. So every tap of a
// convolution with padding <= halo is one constant offset, with no edge case. Whoever writes a plane leaves
// all of its padding at exactly zero.
#pragma once
#include <cstddef>
#include <cstdint>

namespace penstock {

constexpr int kVectorSlack = 32;  // floats that may be read (never written) past a plane's last row

struct Planes {
  int height = 0;
  int width = 0;
  int halo = 0;

  constexpr int pitch() const { return width + halo; }
  // Offset of element (0, 0) from the plane's base; (y, x) is origin() + y * pitch() + x.
  constexpr std::ptrdiff_t origin() const { return static_cast<std::ptrdiff_t>(halo) * pitch() + halo; }
  // Floats from one plane to the next, a multiple of 16 so that planes are 64-byte aligned.
  constexpr std::ptrdiff_t stride() const {
    const std::ptrdiff_t used = static_cast<std::ptrdiff_t>(height + 2 * halo) * pitch() + 2 * halo + kVectorSlack;
    return (used + 15) / 16 * 16;
  }
};

}  // namespace penstock
