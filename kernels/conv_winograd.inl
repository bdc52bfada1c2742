// Winograd convolution with channel lists: transform active inputs, multiply position by position, transform back.
//
// Weights lie as [out][position group][in][4], so that one output's weights for a group are a run through which the
// input list steps, and a quad is splatted to all tiles of a vector: skipping costs nothing on either side, and
// blocks of any number of tiles are used to the last vector.
#include "conv_winograd_tiles.inl"

namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kTileGroup = 2 * kQuads;   // tiles of the two vectors that the inner loop works on
constexpr int kGroupFloats = 2 * kLanes;
// A packed panel of weights has whole vectors of outputs.
constexpr int kPanelQuads = (kWinogradPanel + kQuads - 1) / kQuads * kQuads;
constexpr int kPanelFloats = kPanelQuads * 4;

}  // namespace PENSTOCK_ISA
}  // namespace penstock

#include "conv_winograd_forward.inl"

#include "conv_winograd_multiply.inl"

namespace penstock {
namespace PENSTOCK_ISA {

// Transforms the sums of one output back and stores its pixels.
template <typename Tile>
static void winograd_back(const WinogradArgs& a, int plane, const float* sums, std::ptrdiff_t group_step) {
  constexpr int kVectors = Tile::kOut / 2;  // of one row of a group's pixels
  const ConvOutput out = a.out;  // a copy, which stores of vectors cannot change
  const Finish f = finish_of(out, plane);
  float* pixels = out.planes + plane * out.stride + out.origin;
  int tile_y = a.tile_begin / a.tiles_x, tile_x = a.tile_begin % a.tiles_x;
  const auto advance = [&](int tiles) {
    tile_x += tiles;
    if (tile_x == a.tiles_x) {
      tile_x = 0;
      ++tile_y;
    }
  };
  for (int tile = a.tile_begin; tile < a.tile_end; tile += kTileGroup, sums += kGroupFloats) {
    const int left = a.tile_end - tile;
    const int count = left < kTileGroup ? left : kTileGroup;
    // Neighbours in one tile row make one run of pixels a row. A group that runs over the end of a tile row goes
    // to a buffer first, and from there tile by tile.
    const bool whole = tile_x + count <= a.tiles_x;
    const int room = out.width - tile_x * Tile::kOut;
    float buffer[Tile::kOut * kVectors * kLanes];
    float* to = buffer;
    std::ptrdiff_t pitch = kVectors * kLanes;
    int run = kVectors * kLanes, height = Tile::kOut;
    if (whole) {
      to = pixels + static_cast<std::ptrdiff_t>(tile_y) * Tile::kOut * out.pitch + tile_x * Tile::kOut;
      pitch = out.pitch;
      run = room < count * Tile::kOut ? room : count * Tile::kOut;
      height = out.height - tile_y * Tile::kOut;
    }
    if (run == kVectors * kLanes && height >= Tile::kOut && out.activation < 0) {
      // Nearly every group: whole vectors, and no call inside.
      Tile::back(sums, group_step, [&](int v, const Vec* rows) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int y = 0; y < Tile::kOut; ++y) {
          float* at = to + y * pitch + v * kLanes;
          // The same row of the next plane, which will be written next.
          __builtin_prefetch(at + out.stride, 1);
          store(at, finish_clamped(rows[y], f, out));
        }
      });
    } else {
      Tile::back(sums, group_step, [&](int v, const Vec* rows) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int y = 0; y < Tile::kOut; ++y) {
          if (y >= height) break;
          const Vec value = finish(rows[y], f, out);
          float* at = to + y * pitch + v * kLanes;
          if (run >= (v + 1) * kLanes) {
            store(at, value);
          } else if (run > v * kLanes) {
            store_first(at, value, run - v * kLanes);
          }
        }
      });
    }
    if (whole) {
      advance(count);
      continue;
    }
    for (int t = 0; t < count; ++t) {
      const int x = tile_x * Tile::kOut;
      const int columns = out.width - x < Tile::kOut ? out.width - x : Tile::kOut;
      for (int y = 0; y < Tile::kOut && tile_y * Tile::kOut + y < out.height; ++y) {
        float* at = pixels + static_cast<std::ptrdiff_t>(tile_y * Tile::kOut + y) * out.pitch + x;
        const float* from = buffer + y * pitch + t * Tile::kOut;
        for (int i = 0; i < columns; ++i) at[i] = from[i];
      }
      advance(1);
    }
  }
}

// Rows whose gaps and margins this block zeroes: those whose first tile is in it.
template <typename Tile>
static void winograd_padding(const WinogradArgs& a, int plane) {
  const int row_begin = (a.tile_begin + a.tiles_x - 1) / a.tiles_x * Tile::kOut;
  const int row_end = (a.tile_end + a.tiles_x - 1) / a.tiles_x * Tile::kOut;
  if (row_begin >= a.out.height) return;
  zero_padding(a.out, plane, row_begin, row_end < a.out.height ? row_end : a.out.height, true);
}

template <typename Tile>
static void winograd_multiply(const WinogradArgs& a, int plane_begin, int plane_end) {
  const Extent<Tile> e(a, plane_begin, plane_end);
  if (a.filters) {
    multiply_fresh<Tile>(a, e, plane_begin);
  } else {
    multiply_planned<Tile>(a, e, plane_begin);
  }
  for (int o = 0; o < e.outs; ++o) {
    winograd_back<Tile>(a, plane_begin + o, a.sums + o * e.sum_out, e.sum_group);
    winograd_padding<Tile>(a, plane_begin + o);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
