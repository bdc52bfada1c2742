// How a quantised feature map lies in memory: bytes, [pixel][active channel].
//
// Pixels lie as the values of a float plane do (run/planes.h): `halo` padding pixels between rows and `halo` rows above and
// below. A pixel holds the active channels in the order of the list, rounded up to 8 bytes; what lies between the last
// channel and the next pixel is never used. Images (4 channels or fewer) have no bytes between pixels. Whoever writes
// a map leaves its padding at the zero point's code.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "run/pixels.h"

namespace penstock {

constexpr int kImageChannels = 4;

// Bytes from one pixel to the next.
constexpr int pixel_bytes(int channels, int count) { return channels <= kImageChannels ? channels : (count + 7) / 8 * 8; }

// Vectors and tiles at the lower right may read (never write) 4 pixels and a vector past the last pixel.
constexpr std::int64_t pixels_size(Planes shape, int channels, int count) {
  return (pixel_count(shape) + 4) * pixel_bytes(channels, count) + 64;
}

// A tensor's scale and zero point: a code q stands for scale * (q - zero).
struct Quantised {
  float scale = 1.0f;
  int zero = 0;
};

// Codes saturate: a value beyond a tensor's range silently becomes the largest code. A few such values do no harm. But where more
// than one value in kFarShare lies more than kFarTimes beyond the range that the calibration saw, the result would mean nothing:
// such images have not been preprocessed, or are of another kind than those of the calibration.
constexpr float kFarTimes = 8.0f;
constexpr std::int64_t kFarShare = 64;
inline float far_limit(Quantised q) { return kFarTimes * q.scale * static_cast<float>(std::max(q.zero, 255 - q.zero)); }

// Writes the zero point's code to all padding of a map of `bytes` a pixel.
void fill_padding(std::uint8_t* map, Planes shape, int bytes, int zero);

}  // namespace penstock
