// Winograd convolution with channel lists: transform active inputs, multiply position by position, transform back.
//
// Weights lie as [out][position group][in][4], so that one output's weights for a group are a run through which the
// input list steps, and a quad is splatted to all tiles of a vector: skipping costs nothing on either side, and
// blocks of any number of tiles are used to the last vector.
#include "conv/winograd_tiles.inl"

namespace penstock {
namespace PENSTOCK_ISA {

constexpr int kTileGroup = 2 * kQuads;  // tiles of the two vectors that the inner loop works on
constexpr int kGroupFloats = 2 * kLanes;
// A packed panel of weights has whole vectors of outputs.
constexpr int kPanelQuads = (kPanel + kQuads - 1) / kQuads * kQuads;
constexpr int kPanelFloats = kPanelQuads * 4;

}  // namespace PENSTOCK_ISA
}  // namespace penstock

#include "conv/winograd_forward.inl"

#include "conv/winograd_multiply.inl"

namespace penstock {
namespace PENSTOCK_ISA {

// Where a block's pixels go, the same for every output: spans in the order of the tiles.
template <typename Tile>
struct Places {
  static constexpr int kVectors = Tile::kOut / 2;  // of one row of a group's pixels
  static constexpr int kPixels = kVectors * kLanes;
  static constexpr int kVectorTiles = kTileGroup / kVectors;

  // Pixels of a vector that lie in one row of tiles: lanes [begin, end) of each of `height` rows of pixels, from `at` on.
  struct Piece {
    std::ptrdiff_t at;
    int begin, end, height;
  };
  // Whole groups side by side in one row of tiles, from `at` on; or, with none, a group in pieces.
  struct Span {
    int groups;
    std::ptrdiff_t at;
    int piece, ends[kVectors];  // the first piece, and where each vector's pieces end
  };

  Span spans[kWinogradTiles / kTileGroup + 1];
  Piece pieces[kWinogradTiles];
  int count = 0;

  explicit Places(const WinogradArgs& a) {
    const ConvOutput& out = a.out;
    // The last tile of a row may run over into the gap after it, which is zeroed afterwards, if that is wide enough.
    const int over = a.tiles_x * Tile::kOut - out.width;
    const int width = over <= out.halo ? out.width + over : out.width;
    int tile_y = a.tile_begin / a.tiles_x, tile_x = a.tile_begin % a.tiles_x, made = 0;
    const auto at = [&] { return static_cast<std::ptrdiff_t>(tile_y) * Tile::kOut * out.pitch + tile_x * Tile::kOut; };
    const auto advance = [&](int tiles) {
      tile_x += tiles;
      if (tile_x == a.tiles_x) {
        tile_x = 0;
        ++tile_y;
      }
    };
    for (int tile = a.tile_begin; tile < a.tile_end; ++count) {
      const int left = least(a.tile_end - tile, a.tiles_x - tile_x);
      const int whole = least(left / kTileGroup, (width - tile_x * Tile::kOut) / kPixels);
      Span& span = spans[count];
      if (whole > 0 && out.height >= (tile_y + 1) * Tile::kOut && out.activation < 0) {
        span.groups = whole;
        span.at = at();
        tile += whole * kTileGroup;
        advance(whole * kTileGroup);
        continue;
      }
      span.groups = 0;
      span.piece = made;
      for (int v = 0; v < kVectors; ++v) {
        for (int stored = 0; stored < kVectorTiles && tile < a.tile_end; ++made) {
          const int tiles = least(least(kVectorTiles - stored, a.tile_end - tile), a.tiles_x - tile_x);
          const int begin = stored * Tile::kOut, run = least(tiles * Tile::kOut, width - tile_x * Tile::kOut);
          pieces[made] = {at(), begin, begin + run, out.height - tile_y * Tile::kOut};
          stored += tiles;
          tile += tiles;
          advance(tiles);
        }
        span.ends[v] = made;
      }
    }
  }

  static int least(int a, int b) { return a < b ? a : b; }
};

// Whole groups of tiles with a clamp for an activation, the usual case on its own, where registers suffice.
template <typename Tile>
__attribute__((noinline)) static void back_in_row(const ConvOutput& out, const Finish& finish, const float* sums,
                                                  std::ptrdiff_t group_step, int groups, float* to) {
  const Finish f = finish;
  const Vec low = splat(out.low), high = splat(out.high);
  const std::ptrdiff_t next_plane = out.stride, pitch = out.pitch;
  for (int group = 0; group < groups; ++group, sums += kGroupFloats, to += Places<Tile>::kPixels) {
    const Series rows = series(to, pitch);
    Tile::back(sums, group_step, [&](int v, const Vec* values) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int y = 0; y < Tile::kOut; ++y) {
        float* at = place(rows, y) + v * kLanes;
        // The same row of the next plane, which will be written next.
        fetch_to_write(at + next_plane);
        store(at, clamp(f(values[y]), low, high));
      }
    });
  }
}

// Groups of tiles in pieces, from `span` on; returns the first span that is not.
template <typename Tile, bool kCurve>
__attribute__((noinline)) static const typename Places<Tile>::Span* back_in_pieces(const ConvOutput& out, const Finish& finish,
                                                                                   const float* sums, std::ptrdiff_t group_step,
                                                                                   const Places<Tile>& places,
                                                                                   const typename Places<Tile>::Span* span,
                                                                                   float* pixels) {
  const Finish f = finish;
  const Vec low = splat(out.low), high = splat(out.high);
  const std::ptrdiff_t next_plane = out.stride, pitch = out.pitch;
  for (const auto* last = places.spans + places.count; span != last && span->groups == 0; ++span, sums += kGroupFloats) {
    const auto* piece = places.pieces + span->piece;
    Tile::back(sums, group_step, [&](int v, const Vec* rows) __attribute__((always_inline)) {
      Vec values[Tile::kOut];
#pragma GCC unroll 4
      for (int y = 0; y < Tile::kOut; ++y) {
        const Vec value = f(rows[y]);
        values[y] = kCurve ? activate_curve(value, out.activation, out.slope) : clamp(value, low, high);
      }
      for (const auto* const end = places.pieces + span->ends[v]; piece != end; ++piece) {
        float* at = pixels + piece->at;
#pragma GCC unroll 4
        for (int y = 0; y < Tile::kOut; ++y, at += pitch) {
          if (y >= piece->height) break;
          fetch_to_write(at + next_plane);
          store_lanes(at, values[y], piece->begin, piece->end);
        }
      }
    });
  }
  return span;
}

// Transforms the sums of one output back and stores its pixels.
template <typename Tile>
static void winograd_back(const WinogradArgs& a, const Places<Tile>& places, int plane, const float* sums,
                          std::ptrdiff_t group_step) {
  const Finish f = finish_of(a.out, plane);
  float* pixels = a.out.planes + plane * a.out.stride + a.out.origin;
  const auto in_pieces = a.out.activation < 0 ? back_in_pieces<Tile, false> : back_in_pieces<Tile, true>;
  const auto *span = places.spans, *last = span + places.count;
  while (span != last) {
    if (span->groups > 0) {
      back_in_row<Tile>(a.out, f, sums, group_step, span->groups, pixels + span->at);
      sums += span->groups * kGroupFloats;
      ++span;
      continue;
    }
    const auto* next = in_pieces(a.out, f, sums, group_step, places, span, pixels);
    sums += (next - span) * kGroupFloats;
    span = next;
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
  switch (a.weight_format) {
    case WeightFormat::gathered: multiply_gathered<Tile>(a, e); break;
    case WeightFormat::filters: multiply_fresh<Tile, FromFilters<Tile>>(a, e, plane_begin); break;
    case WeightFormat::lines:
      if constexpr (Tile::kOut == 2) multiply_fresh<Tile, FromLines>(a, e, plane_begin);
      break;
    default: multiply_planned<Tile>(a, e, plane_begin);
  }
  const Places<Tile> places(a);
  for (int o = 0; o < e.outs; ++o) {
    winograd_back<Tile>(a, places, plane_begin + o, a.sums + o * e.sum_out, e.sum_group);
    winograd_padding<Tile>(a, plane_begin + o);
  }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
