// The kernels of train/conv.h, written once against vec.h.
#include "machine/vec.h"

#include "conv/winograd_tiles.inl"

namespace penstock {
namespace PENSTOCK_ISA {

using Index = std::int64_t;
constexpr int kBlock = 16;
constexpr int kParts = kBlock / kLanes;  // vectors in a block of channels

PENSTOCK_INLINE Vec load_first(const float* p, Index n) {
  if (n >= kLanes) return load(p);
  float some[kLanes] = {};
  for (Index i = 0; i < n; ++i) some[i] = p[i];
  return load(some);
}

// B v: 6 -> 6, the transpose of Tile4::forward.
PENSTOCK_INLINE void apply_b(const Vec (&v)[6], Vec (&d)[6]) {
  const Vec two = splat(2.0f), four = splat(4.0f), five = splat(5.0f);
  const Vec s = v[1] + v[2], e = v[1] - v[2], p = v[3] + v[4], q = two * (v[3] - v[4]);
  d[0] = four * v[0];
  d[1] = fma(four, v[5], fnma(four, e, zero())) - q;
  d[2] = fnma(five, v[0], fnma(four, s, zero())) - p;
  d[3] = fnma(five, v[5], e) + q;
  d[4] = v[0] + s + p;
  d[5] = v[5];
}

// A y: 4 -> 6, the transpose of Tile4::backward.
PENSTOCK_INLINE void apply_a(const Vec (&y)[4], Vec (&m)[6]) {
  const Vec two = splat(2.0f), four = splat(4.0f), eight = splat(8.0f);
  const Vec even = y[0] + y[2], odd = y[1] + y[3];
  const Vec even2 = fma(four, y[2], y[0]), odd2 = fma(eight, y[3], two * y[1]);
  m[0] = y[0];
  m[1] = even + odd;
  m[2] = even - odd;
  m[3] = even2 + odd2;
  m[4] = even2 - odd2;
  m[5] = y[3];
}

// G^T u: 6 -> 3, the transpose of Tile4::filter_axis.
PENSTOCK_INLINE void apply_gt(const Vec (&u)[6], Vec (&g)[3]) {
  const Vec sixth = splat(1.0f / 6), twelfth = splat(1.0f / 12), small = splat(1.0f / 24);
  const Vec s = sixth * (u[1] + u[2]), p = u[3] + u[4];
  g[0] = fma(splat(0.25f), u[0], fma(small, p, zero() - s));
  g[1] = fma(twelfth, u[3] - u[4], sixth * (u[2] - u[1]));
  g[2] = fma(sixth, p, u[5] - s);
}

// Both axes of a transform From x From -> To x To; `at(r, c)` gives a value and `put(r, c, value)` takes a result.
template <int From, int To, typename Apply, typename At, typename Put>
PENSTOCK_INLINE void both_axes(const Apply& apply, const At& at, const Put& put) {
  Vec half[To][From];
#pragma GCC unroll 9
  for (int c = 0; c < From; ++c) {
    Vec column[From], done[To];
#pragma GCC unroll 9
    for (int r = 0; r < From; ++r) column[r] = at(r, c);
    apply(column, done);
#pragma GCC unroll 9
    for (int r = 0; r < To; ++r) half[r][c] = done[r];
  }
#pragma GCC unroll 9
  for (int r = 0; r < To; ++r) {
    Vec done[To];
    apply(half[r], done);
#pragma GCC unroll 9
    for (int c = 0; c < To; ++c) put(r, c, done[c]);
  }
}

// The places of a tile's Size x Size pixels in an image, null outside of it.
template <int Size, typename Pixel>
PENSTOCK_INLINE bool pixels_of(Pixel* image, Index height, Index width, Index channels, Index top, Index left,
                               Pixel* (&at)[Size][Size]) {
  bool whole = true;
  for (int r = 0; r < Size; ++r)
    for (int c = 0; c < Size; ++c) {
      const Index y = top + r, x = left + c;
      const bool inside = y >= 0 && y < height && x >= 0 && x < width;
      at[r][c] = inside ? image + (y * width + x) * channels : nullptr;
      whole = whole && inside;
    }
  return whole;
}

// Calls work(tile number, tile row, tile column) for every tile of an image.
template <typename Work>
PENSTOCK_INLINE void each_tile(const TrainConvShape& s, const Work& work) {
  Index tile = 0;
  for (Index ty = 0; ty < s.tiles_down(); ++ty)
    for (Index tx = 0; tx < s.tiles_across(); ++tx) work(tile++, ty, tx);
}

// Reads Size x Size pixels of every channel, transforms them, and writes 36 positions of the matrix.
template <int Size, typename Apply>
PENSTOCK_INLINE void to_matrix(const float* (&at)[Size][Size], bool whole, Index channels, const Apply& apply, float* to,
                               Index rows, Index step) {
  const Index blocks = (channels + kBlock - 1) / kBlock;
  for (Index b = 0; b < blocks; ++b)
    for (int part = 0; part < kParts; ++part) {
      const Index first = b * kBlock + part * kLanes;
      float* const target = to + b * rows * kBlock + part * kLanes;
      const auto put = [&](int r, int c, Vec v) { store(target + (r * 6 + c) * step, v); };
      if (whole && first + kLanes <= channels) both_axes<Size, 6>(apply, [&](int r, int c) { return load(at[r][c] + first); }, put);
      else
        both_axes<Size, 6>(
            apply, [&](int r, int c) { return at[r][c] ? load_first(at[r][c] + first, channels - first) : zero(); }, put);
    }
}

static void input_tiles(const TrainConvShape& s, const float* x, float* v, Index rows, Index step, Index first) {
  each_tile(s, [&](Index tile, Index ty, Index tx) {
    const float* at[6][6];
    const bool whole = pixels_of<6>(x, s.height, s.width, s.in, 4 * ty - s.padding, 4 * tx - s.padding, at);
    to_matrix<6>(at, whole, s.in, [](const auto& a, auto& b) { Tile4::forward(a, b); }, v + (first + tile) * kBlock, rows, step);
  });
}

static void gradient_tiles(const TrainConvShape& s, const float* dy, float* d, Index rows, Index step, Index first) {
  each_tile(s, [&](Index tile, Index ty, Index tx) {
    const float* at[4][4];
    const bool whole = pixels_of<4>(dy, s.out_height(), s.out_width(), s.out, 4 * ty, 4 * tx, at);
    to_matrix<4>(at, whole, s.out, [](const auto& a, auto& b) { apply_a(a, b); }, d + (first + tile) * kBlock, rows, step);
  });
}

// Transforms 36 positions of the matrix back to Size x Size pixels; put(place, value, channels left) takes each.
template <int Size, typename Apply, typename Put>
PENSTOCK_INLINE void from_matrix(const float* from, Index rows, Index step, float* (&at)[Size][Size], Index channels,
                                 const Apply& apply, const Put& put_at) {
  const Index blocks = (channels + kBlock - 1) / kBlock;
  for (Index b = 0; b < blocks; ++b)
    for (int part = 0; part < kParts; ++part) {
      const Index first = b * kBlock + part * kLanes, left = channels - first;
      if (left <= 0) return;
      const float* const source = from + b * rows * kBlock + part * kLanes;
      both_axes<6, Size>(
          apply, [&](int r, int c) { return load(source + (r * 6 + c) * step); },
          [&](int r, int c, Vec v) {
            if (at[r][c]) put_at(at[r][c] + first, v, left);
          });
    }
}

static void output_tiles(const TrainConvShape& s, const float* m, Index rows, Index step, Index first, float* y) {
  each_tile(s, [&](Index tile, Index ty, Index tx) {
    float* at[4][4];
    pixels_of<4>(y, s.out_height(), s.out_width(), s.out, 4 * ty, 4 * tx, at);
    from_matrix<4>(
        m + (first + tile) * kBlock, rows, step, at, s.out, [](const auto& a, auto& b) { Tile4::backward(a, b); },
        [](float* p, Vec v, Index left) { store_first(p, v, static_cast<int>(left < kLanes ? left : kLanes)); });
  });
}

static void add_input_tiles(const TrainConvShape& s, const float* dv, Index rows, Index step, Index first, float* dx) {
  std::memset(dx, 0, sizeof(float) * static_cast<std::size_t>(s.height * s.width * s.in));
  each_tile(s, [&](Index tile, Index ty, Index tx) {
    float* at[6][6];
    pixels_of<6>(dx, s.height, s.width, s.in, 4 * ty - s.padding, 4 * tx - s.padding, at);
    from_matrix<6>(
        dv + (first + tile) * kBlock, rows, step, at, s.in, [](const auto& a, auto& b) { apply_b(a, b); },
        [](float* p, Vec v, Index left) {
          if (left >= kLanes) return store(p, load(p) + v);
          store_first(p, load_first(p, left) + v, static_cast<int>(left));
        });
  });
}

// The transform of one filter a lane; `tap(r, c)` gives the weights.
template <typename Tap, typename Put>
PENSTOCK_INLINE void transform_filters(const Tap& tap, const Put& put) {
  both_axes<3, 6>([](const auto& a, auto& b) { Tile4::filter_axis(a[0], a[1], a[2], b); }, tap, put);
}

static void filters(const TrainConvShape& s, const float* w, Index block, float* u) {
  const Index in_padded = s.in_blocks() * kBlock;
  for (Index i = 0; i < in_padded; ++i)
    for (int part = 0; part < kParts; ++part) {
      const Index first = block * kBlock + part * kLanes;
      const Index some = i < s.in ? std::min<Index>(s.out - first, kLanes) : 0;
      float* const to = u + (block * in_padded + i) * kBlock + part * kLanes;
      transform_filters(
          [&](int r, int c) {
            float lanes[kLanes] = {};
            for (Index l = 0; l < some; ++l) lanes[l] = w[((first + l) * 9 + r * 3 + c) * s.in + i];
            return load(lanes);
          },
          [&](int r, int c, Vec v) { store(to + (r * 6 + c) * s.filter_step(), v); });
    }
}

static void turned_filters(const TrainConvShape& s, const float* w, Index o, float* ut) {
  const Index out_padded = s.out_blocks() * kBlock;
  const float* const filter = w + o * 9 * s.in;
  for (Index first = 0; first < s.in_blocks() * kBlock; first += kLanes) {
    const Index left = s.in - first;
    float* const to = ut + (first / kBlock * out_padded + o) * kBlock + first % kBlock;
    transform_filters([&](int r, int c) { return left > 0 ? load_first(filter + (r * 3 + c) * s.in + first, left) : zero(); },
                      [&](int r, int c, Vec v) { store(to + (r * 6 + c) * s.filter_step(), v); });
  }
}

static void filter_gradient(const TrainConvShape& s, const float* du, Index block, float* dw) {
  const Index outs = std::min<Index>(kBlock, s.out - block * kBlock);
  for (Index first = 0; first < s.in; first += kBlock) {
    // Transposed here: writing dw one number at a time, its cache lines would evict each other.
    float turned[9][kBlock][kBlock];
    const Index ins = std::min<Index>(kBlock, s.in - first);
    for (Index i = 0; i < ins; ++i)
      for (int part = 0; part < kParts; ++part) {
        const float* const from = du + ((first + i) * s.out_blocks() + block) * kBlock + part * kLanes;
        both_axes<6, 3>([](const auto& a, auto& b) { apply_gt(a, b); },
                        [&](int r, int c) { return load(from + (r * 6 + c) * s.filter_step()); },
                        [&](int r, int c, Vec v) {
                          float lanes[kLanes];
                          store(lanes, v);
                          for (int l = 0; l < kLanes; ++l) turned[r * 3 + c][part * kLanes + l][i] = lanes[l];
                        });
      }
    for (Index o = 0; o < outs; ++o)
      for (int tap = 0; tap < 9; ++tap)
        std::memcpy(dw + ((block * kBlock + o) * 9 + tap) * s.in + first, turned[tap][o],
                    sizeof(float) * static_cast<std::size_t>(ins));
  }
}

constexpr int kRows = kRegisters >= 32 ? 12 : 6;
static_assert(kTrainRows % kRows == 0, "a matrix has whole groups of rows");

static void multiply(const float* a, const float* b, float* m, Index rows, Index k_blocks, Index n_blocks) {
  for (Index n = 0; n < n_blocks; ++n) {
    const float* const panel = b + n * k_blocks * kBlock * kBlock;
    for (Index row = 0; row < rows; row += kRows) {
      Vec sum[kRows][kParts];
      for (int i = 0; i < kRows; ++i)
        for (int part = 0; part < kParts; ++part) sum[i][part] = zero();
      for (Index k = 0; k < k_blocks; ++k) {
        const float* const left = a + (k * rows + row) * kBlock;
        const float* const right = panel + k * kBlock * kBlock;
#pragma GCC unroll 4
        for (int c = 0; c < kBlock; ++c) {
          Vec values[kParts];
#pragma GCC unroll 4
          for (int part = 0; part < kParts; ++part) values[part] = load(right + c * kBlock + part * kLanes);
#pragma GCC unroll 12
          for (int i = 0; i < kRows; ++i) {
            const Vec scale = splat(left[i * kBlock + c]);
#pragma GCC unroll 4
            for (int part = 0; part < kParts; ++part) sum[i][part] = fma(scale, values[part], sum[i][part]);
          }
        }
      }
      for (int i = 0; i < kRows; ++i)
        for (int part = 0; part < kParts; ++part) store(m + (n * rows + row + i) * kBlock + part * kLanes, sum[i][part]);
    }
  }
}

constexpr int kTall = kRegisters >= 32 ? 8 : 4;

static void accumulate(const float* a, const float* d, float* du, Index rows, Index used, Index in_blocks, Index out_blocks) {
  for (Index n = 0; n < out_blocks; ++n) {
    const float* const right = d + n * rows * kBlock;
    for (Index c = 0; c < in_blocks * kBlock; c += kTall) {
      const float* const left = a + c / kBlock * rows * kBlock + c % kBlock;
      Vec sum[kTall][kParts];
      for (int i = 0; i < kTall; ++i)
        for (int part = 0; part < kParts; ++part) sum[i][part] = load(du + ((c + i) * out_blocks + n) * kBlock + part * kLanes);
      for (Index t = 0; t < used; ++t) {
        Vec values[kParts];
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) values[part] = load(right + t * kBlock + part * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < kTall; ++i) {
          const Vec scale = splat(left[t * kBlock + i]);
#pragma GCC unroll 4
          for (int part = 0; part < kParts; ++part) sum[i][part] = fma(scale, values[part], sum[i][part]);
        }
      }
      for (int i = 0; i < kTall; ++i)
        for (int part = 0; part < kParts; ++part) store(du + ((c + i) * out_blocks + n) * kBlock + part * kLanes, sum[i][part]);
    }
  }
}

static const TrainConvKernels kTrainConv = {filters,         turned_filters, input_tiles, output_tiles,   gradient_tiles,
                                            add_input_tiles, multiply,       accumulate,  filter_gradient};

}  // namespace PENSTOCK_ISA
}  // namespace penstock
