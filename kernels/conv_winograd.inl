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
constexpr int kPanelQuads = (kPanel + kQuads - 1) / kQuads * kQuads;
constexpr int kPanelFloats = kPanelQuads * 4;

}  // namespace PENSTOCK_ISA
}  // namespace penstock

#include "conv_winograd_forward.inl"

#include "conv_winograd_multiply.inl"

namespace penstock {
namespace PENSTOCK_ISA {

// The usual case on its own, where registers suffice: groups of tiles that lie in one tile row, and a clamp for an
// activation. Unless kWhole, `height` rows of `run` pixels are inside the plane.
template <typename Tile, bool kWhole>
__attribute__((noinline)) static void back_in_row(const ConvOutput& out, const Finish& finish, const float* sums,
                                                  std::ptrdiff_t group_step, int groups, float* to, int height,
                                                  int run) {
  constexpr int kPixels = Tile::kOut / 2 * kLanes;
  const Finish f = finish;
  const Vec low = splat(out.low), high = splat(out.high);
  const std::ptrdiff_t next_plane = out.stride, pitch = out.pitch;
  for (int group = 0; group < groups; ++group, sums += kGroupFloats, to += kPixels) {
    const Series rows = series(to, pitch);
    Tile::back(sums, group_step, [&](int v, const Vec* values) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int y = 0; y < Tile::kOut; ++y) {
        if (!kWhole && y >= height) break;
        float* at = place(rows, y) + v * kLanes;
        // The same row of the next plane, which will be written next.
        __builtin_prefetch(at + next_plane, 1);
        const Vec value = clamp((values[y] + f.bias) * f.gain, low, high);
        if (kWhole || run >= (v + 1) * kLanes) {
          store(at, value);
        } else if (run > v * kLanes) {
          store_first(at, value, run - v * kLanes);
        }
      }
    });
  }
}

// A tile's pixels, of which `columns` and `rows` are inside the plane.
template <int kOut>
PENSTOCK_INLINE void copy_tile(const float* from, std::ptrdiff_t from_pitch, float* to, std::ptrdiff_t pitch, int columns,
                               int rows) {
  for (int y = 0; y < kOut && y < rows; ++y) {
    if (columns >= kOut) {
      std::memcpy(to + y * pitch, from + y * from_pitch, kOut * sizeof(float));
      continue;
    }
    for (int x = 0; x < kOut; ++x) {
      if (x < columns) to[y * pitch + x] = from[y * from_pitch + x];
    }
  }
}

// Transforms the sums of one output back and stores its pixels.
template <typename Tile>
static void winograd_back(const WinogradArgs& a, int plane, const float* sums, std::ptrdiff_t group_step) {
  constexpr int kVectors = Tile::kOut / 2;  // of one row of a group's pixels
  constexpr int kPixels = kVectors * kLanes;
  const ConvOutput& out = a.out;
  const Finish f = finish_of(out, plane);
  float* pixels = out.planes + plane * out.stride + out.origin;
  // The last tile of a row may run over into the gap after it, which is zeroed afterwards, if that is wide enough.
  const int over = a.tiles_x * Tile::kOut - out.width;
  const int width = over <= out.halo ? out.width + over : out.width;
  int tile_y = a.tile_begin / a.tiles_x, tile_x = a.tile_begin % a.tiles_x;
  const auto advance = [&](int tiles) {
    tile_x += tiles;
    if (tile_x == a.tiles_x) {
      tile_x = 0;
      ++tile_y;
    }
  };
  for (int tile = a.tile_begin; tile < a.tile_end;) {
    const int left = a.tile_end - tile;
    const int count = left < kTileGroup ? left : kTileGroup;
    const int room = width - tile_x * Tile::kOut;
    const int height = out.height - tile_y * Tile::kOut;
    float* const first = pixels + static_cast<std::ptrdiff_t>(tile_y) * Tile::kOut * out.pitch + tile_x * Tile::kOut;
    if (tile_x + count <= a.tiles_x && out.activation < 0) {
      const int row_tiles = left < a.tiles_x - tile_x ? left : a.tiles_x - tile_x;
      const int whole = row_tiles * Tile::kOut <= room ? row_tiles / kTileGroup : room / kPixels;
      const int groups = whole > 0 && height >= Tile::kOut ? whole : 1;
      const int tiles = groups * kTileGroup < left ? groups * kTileGroup : left;
      if (whole > 0 && height >= Tile::kOut) {
        back_in_row<Tile, true>(out, f, sums, group_step, groups, first, height, kPixels);
      } else {
        const int run = room < tiles * Tile::kOut ? room : tiles * Tile::kOut;
        back_in_row<Tile, false>(out, f, sums, group_step, 1, first, height, run);
      }
      sums += groups * kGroupFloats;
      tile += tiles;
      advance(tiles);
      continue;
    }
    // The rest goes to a buffer first, and from there tile by tile.
    float buffer[Tile::kOut * kPixels];
    Tile::back(sums, group_step, [&](int v, const Vec* rows) __attribute__((always_inline)) {
      for (int y = 0; y < Tile::kOut; ++y) store(buffer + y * kPixels + v * kLanes, finish(rows[y], f, out));
    });
    for (int t = 0; t < count; ++t) {
      const int x = tile_x * Tile::kOut, y_begin = tile_y * Tile::kOut;
      float* at = pixels + static_cast<std::ptrdiff_t>(y_begin) * out.pitch + x;
      copy_tile<Tile::kOut>(buffer + t * Tile::kOut, kPixels, at, out.pitch, width - x, out.height - y_begin);
      advance(1);
    }
    sums += kGroupFloats;
    tile += count;
  }
}

// Rows whose gaps and margins this block zeroes: those whose last tile is in it, which may have run over.
template <typename Tile>
static void winograd_padding(const WinogradArgs& a, int plane) {
  const int row_begin = a.tile_begin / a.tiles_x * Tile::kOut;
  const int row_end = a.tile_end / a.tiles_x * Tile::kOut;
  if (row_begin >= row_end) return;
  zero_padding(a.out, plane, row_begin, row_end < a.out.height ? row_end : a.out.height, true);
}

template <typename Tile>
static void winograd_multiply(const WinogradArgs& a, int plane_begin, int plane_end) {
  const Extent<Tile> e(a, plane_begin, plane_end);
  if (a.filters) {
    multiply_fresh<Tile>(a, e, plane_begin);
  } else if (a.gathered) {
    multiply_gathered<Tile>(a, e);
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
