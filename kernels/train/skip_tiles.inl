// The transforms of skip.h, written once against vec.h (which conv.inl has included, with F(4x4, 3x3) itself).
namespace penstock {
namespace PENSTOCK_ISA {

// Stride 1, along one axis: 6 samples, 6 positions, 4 outputs.
struct EveryPixel {
  static constexpr int kStride = 1, kSize = 6;

  PENSTOCK_INLINE void forward(const Vec (&d)[6], Vec (&v)[6]) { Tile4::forward(d, v); }
  PENSTOCK_INLINE void forward_transposed(const Vec (&v)[6], Vec (&d)[6]) { apply_b(v, d); }
  PENSTOCK_INLINE void backward(const Vec (&m)[6], Vec (&y)[4]) { Tile4::backward(m, y); }
  PENSTOCK_INLINE void backward_transposed(const Vec (&y)[4], Vec (&m)[6]) { apply_a(y, m); }
  PENSTOCK_INLINE void filter(const Vec (&g)[3], Vec (&u)[6]) { Tile4::filter_axis(g[0], g[1], g[2], u); }
  PENSTOCK_INLINE void filter_transposed(const Vec (&u)[6], Vec (&g)[3]) { apply_gt(u, g); }
};

// Stride 2, along one axis: 9 samples, of which the even ones meet taps 0 and 2 by F(4, 2) with points 0, 1, -1 and 2 (positions
// 0 to 4) and the odd ones meet tap 1 (positions 5 to 8).
struct EverySecondPixel {
  static constexpr int kStride = 2, kSize = 9;

  PENSTOCK_INLINE void forward(const Vec (&d)[9], Vec (&v)[9]) {
    const Vec two = splat(2.0f), three = splat(3.0f);
    v[0] = fma(two, d[0] - d[4], d[6] - d[2]);
    v[1] = fnma(two, d[2], d[6] - d[4]);
    v[2] = fma(two, d[2], fnma(three, d[4], d[6]));
    v[3] = d[6] - d[2];
    v[4] = fma(two, d[2] - d[6], d[8] - d[4]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) v[5 + j] = d[2 * j + 1];
  }

  PENSTOCK_INLINE void forward_transposed(const Vec (&v)[9], Vec (&d)[9]) {
    const Vec two = splat(2.0f), three = splat(3.0f);
    d[0] = two * v[0];
    d[2] = fma(two, v[2] - v[1] + v[4], zero() - v[0] - v[3]);
    d[4] = fnma(two, v[0], fnma(three, v[2], zero() - v[1] - v[4]));
    d[6] = fnma(two, v[4], v[0] + v[1] + v[2] + v[3]);
    d[8] = v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) d[2 * j + 1] = v[5 + j];
  }

  PENSTOCK_INLINE void backward(const Vec (&m)[9], Vec (&y)[4]) {
    const Vec sum = m[1] + m[2], difference = m[1] - m[2];
    y[0] = m[0] + sum + m[3] + m[5];
    y[1] = fma(splat(2.0f), m[3], difference + m[6]);
    y[2] = fma(splat(4.0f), m[3], sum + m[7]);
    y[3] = fma(splat(8.0f), m[3], difference + m[4] + m[8]);
  }

  PENSTOCK_INLINE void backward_transposed(const Vec (&y)[4], Vec (&m)[9]) {
    const Vec even = y[0] + y[2], odd = y[1] + y[3];
    m[0] = y[0];
    m[1] = even + odd;
    m[2] = even - odd;
    m[3] = fma(splat(8.0f), y[3], fma(splat(4.0f), y[2], fma(splat(2.0f), y[1], y[0])));
    m[4] = y[3];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) m[5 + j] = y[j];
  }

  PENSTOCK_INLINE void filter(const Vec (&g)[3], Vec (&u)[9]) {
    const Vec half = splat(0.5f), sixth = splat(1.0f / 6);
    u[0] = half * g[0];
    u[1] = zero() - half * (g[0] + g[2]);
    u[2] = sixth * (g[2] - g[0]);
    u[3] = sixth * (g[0] + g[2] + g[2]);
    u[4] = g[2];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) u[5 + j] = g[1];
  }

  PENSTOCK_INLINE void filter_transposed(const Vec (&u)[9], Vec (&g)[3]) {
    const Vec half = splat(0.5f), sixth = splat(1.0f / 6);
    g[0] = fma(half, u[0] - u[1], sixth * (u[3] - u[2]));
    g[1] = (u[5] + u[6]) + (u[7] + u[8]);
    g[2] = fma(sixth, u[2] + u[3] + u[3], fnma(half, u[1], u[4]));
  }
};

// Positions of a transformed tile, one vector of kLanes channels each, and how they lie in memory: a channel's positions are
// vectors themselves, in groups of kQuads quads. Quads of positions keep their order. Where the number of quads is no multiple of
// kQuads one quad is left over. It does not get vectors of its own: a vector of the last group holds the last quad of kQuads tiles,
// and a filter's last quad is repeated to fill one.
template <typename Axis>
struct Positions {
  static constexpr int kSize = Axis::kSize;
  static constexpr int kUsedQuads = (kSize * kSize + 3) / 4;
  static constexpr int kWhole = kUsedQuads / kQuads;  // groups of one tile's quads
  static constexpr int kLeft = kUsedQuads % kQuads;
  static constexpr int kGroups = kWhole + kLeft;
  static_assert(kLeft <= 1, "the last group holds one quad of each tile");

  Vec all[kUsedQuads * 4];

  PENSTOCK_INLINE Index offset(int quad, Index group_step) { return quad / kQuads * group_step + quad % kQuads * 4; }

  // One quad of kLanes channels, `step` apart.
  PENSTOCK_INLINE void put_quad(const Positions& p, int quad, float* to, Index step) {
    Vec a = p.all[4 * quad], b = p.all[4 * quad + 1], c = p.all[4 * quad + 2], d = p.all[4 * quad + 3];
    transpose_quads(a, b, c, d);
    store_quads(to, 4 * step, a);
    store_quads(to + step, 4 * step, b);
    store_quads(to + 2 * step, 4 * step, c);
    store_quads(to + 3 * step, 4 * step, d);
  }

  // The last quad goes to `last`, `copies` times side by side.
  PENSTOCK_INLINE void put(Positions& p, float* to, Index group_step, Index step, float* last, int copies) {
#pragma GCC unroll 4
    for (int i = kSize * kSize; i < kUsedQuads * 4; ++i) p.all[i] = zero();
    for (int quad = 0; quad < kWhole * kQuads; ++quad) put_quad(p, quad, to + offset(quad, group_step), step);
    if constexpr (kLeft == 1)
      for (int copy = 0; copy < copies; ++copy) put_quad(p, kUsedQuads - 1, last + 4 * copy, step);
  }

  PENSTOCK_INLINE void get_quad(Positions& p, int quad, const float* from, Index step, int copies) {
    const float* channel[kQuads];
    for (int q = 0; q < kQuads; ++q) channel[q] = from + 4 * q * step;
    Vec a = load_quads(channel, 0), b = load_quads(channel, step);
    Vec c = load_quads(channel, 2 * step), d = load_quads(channel, 3 * step);
    for (int copy = 1; copy < copies; ++copy) {
      const Index at = 4 * copy;
      a = a + load_quads(channel, at), b = b + load_quads(channel, at + step);
      c = c + load_quads(channel, at + 2 * step), d = d + load_quads(channel, at + 3 * step);
    }
    transpose_quads(a, b, c, d);
    p.all[4 * quad] = a, p.all[4 * quad + 1] = b, p.all[4 * quad + 2] = c, p.all[4 * quad + 3] = d;
  }

  // The last quad is the sum of `copies` quads from `last` on.
  PENSTOCK_INLINE void get(Positions& p, const float* from, Index group_step, Index step, const float* last, int copies) {
    for (int quad = 0; quad < kWhole * kQuads; ++quad) get_quad(p, quad, from + offset(quad, group_step), step, 1);
    if constexpr (kLeft == 1) get_quad(p, kUsedQuads - 1, last, step, copies);
  }
};

// Calls work(tile number, tile row, tile column) for every tile of an image.
template <typename Work>
PENSTOCK_INLINE void each_skip_tile(const SkipShape& s, const Work& work) {
  Index tile = 0;
  for (Index ty = 0; ty < s.tiles_down(); ++ty)
    for (Index tx = 0; tx < s.tiles_across(); ++tx) work(tile++, ty, tx);
}

// Size x Size pixels of each tile, transformed by `apply`, to the image's tiles.
template <typename Axis, int Size, typename Apply>
PENSTOCK_INLINE void pixels_to_tiles(const float* (&at)[Size][Size], Index pitch, Index tile, const Apply& apply,
                                     const SkipTiles& to) {
  for (Index first = 0; first < pitch; first += kLanes) {
    Positions<Axis> p;
    both_axes<Size, Axis::kSize>(
        apply, [&](int r, int c) { return at[r][c] ? load(at[r][c] + first) : zero(); },
        [&](int r, int c, Vec v) { p.all[r * Axis::kSize + c] = v; });
    float* const place = to.data + first * to.place_step;
    Positions<Axis>::put(p, place + tile * kLanes, to.group_step, to.place_step,
                         place + Positions<Axis>::kWhole * to.group_step + tile * 4, 1);
  }
}

// Zeros where the last group's last vector has room for more tiles than there are: a weight gradient sums over whole vectors.
template <typename Axis>
PENSTOCK_INLINE void clear_missing_tiles(const SkipShape& s, Index pitch, const SkipTiles& to) {
  if constexpr (Positions<Axis>::kLeft == 1) {
    float* const last = to.data + Positions<Axis>::kWhole * to.group_step;
    const Index tiles = s.tiles(), missing = (kQuads - tiles % kQuads) % kQuads;
    for (Index place = 0; place < pitch; ++place)
      std::memset(last + place * to.place_step + tiles * 4, 0, sizeof(float) * static_cast<std::size_t>(missing * 4));
  }
}

template <typename Axis, int Size, typename Apply, typename Put>
PENSTOCK_INLINE void tiles_to_pixels(const SkipTiles& from, Index pitch, Index tile, const Apply& apply, float* (&at)[Size][Size],
                                     const Put& put) {
  for (Index first = 0; first < pitch; first += kLanes) {
    Positions<Axis> p;
    const float* const place = from.data + first * from.place_step;
    Positions<Axis>::get(p, place + tile * kLanes, from.group_step, from.place_step,
                         place + Positions<Axis>::kWhole * from.group_step + tile * 4, 1);
    both_axes<Axis::kSize, Size>(
        apply, [&](int r, int c) { return p.all[r * Axis::kSize + c]; },
        [&](int r, int c, Vec v) {
          if (at[r][c]) put(at[r][c] + first, v);
        });
  }
}

template <typename Axis>
static void skip_input_tiles(const SkipShape& s, const float* x, Index pitch, const SkipTiles& to) {
  constexpr int kSize = Axis::kSize;
  each_skip_tile(s, [&](Index tile, Index ty, Index tx) {
    const float* at[kSize][kSize];
    pixels_of<kSize>(x, s.height, s.width, pitch, 4 * Axis::kStride * ty - s.padding, 4 * Axis::kStride * tx - s.padding, at);
    pixels_to_tiles<Axis>(at, pitch, tile, [](const auto& a, auto& b) { Axis::forward(a, b); }, to);
  });
  clear_missing_tiles<Axis>(s, pitch, to);
}

template <typename Axis>
static void skip_gradient_tiles(const SkipShape& s, const float* dy, Index pitch, const SkipTiles& to) {
  each_skip_tile(s, [&](Index tile, Index ty, Index tx) {
    const float* at[4][4];
    pixels_of<4>(dy, s.out_height(), s.out_width(), pitch, 4 * ty, 4 * tx, at);
    pixels_to_tiles<Axis>(at, pitch, tile, [](const auto& a, auto& b) { Axis::backward_transposed(a, b); }, to);
  });
  clear_missing_tiles<Axis>(s, pitch, to);
}

template <typename Axis>
static void skip_output_tiles(const SkipShape& s, const SkipTiles& from, float* y, Index pitch) {
  each_skip_tile(s, [&](Index tile, Index ty, Index tx) {
    float* at[4][4];
    pixels_of<4>(y, s.out_height(), s.out_width(), pitch, 4 * ty, 4 * tx, at);
    tiles_to_pixels<Axis>(
        from, pitch, tile, [](const auto& a, auto& b) { Axis::backward(a, b); }, at, [](float* p, Vec v) { store(p, v); });
  });
}

template <typename Axis>
static void skip_add_input_tiles(const SkipShape& s, const SkipTiles& from, float* dx, Index pitch) {
  constexpr int kSize = Axis::kSize;
  std::memset(dx, 0, sizeof(float) * static_cast<std::size_t>(s.height * s.width * pitch));
  each_skip_tile(s, [&](Index tile, Index ty, Index tx) {
    float* at[kSize][kSize];
    pixels_of<kSize>(dx, s.height, s.width, pitch, 4 * Axis::kStride * ty - s.padding, 4 * Axis::kStride * tx - s.padding, at);
    tiles_to_pixels<Axis>(
        from, pitch, tile, [](const auto& a, auto& b) { Axis::forward_transposed(a, b); }, at,
        [](float* p, Vec v) { store(p, load(p) + v); });
  });
}

template <typename Axis>
static void skip_filters(const SkipShape& s, const float* w, Index o, const SkipFilters& to) {
  const float* const filter = w + o * 9 * s.in;
  for (Index first = 0; first < s.in; first += kLanes) {
    const Index left = s.in - first;
    Positions<Axis> p;
    both_axes<3, Axis::kSize>([](const auto& a, auto& b) { Axis::filter(a, b); },
                              [&](int r, int c) { return load_first(filter + (r * 3 + c) * s.in + first, left); },
                              [&](int r, int c, Vec v) { p.all[r * Axis::kSize + c] = v; });
    float* const row = to.data + o * to.out_step + first * to.in_step;
    Positions<Axis>::put(p, row, to.group_step, to.in_step, row + Positions<Axis>::kWhole * to.group_step, kQuads);
  }
}

template <typename Axis>
static void skip_filter_gradient(const SkipShape& s, const SkipFilters& du, Index o, float* dw) {
  float* const filter = dw + o * 9 * s.in;
  for (Index first = 0; first < s.in; first += kLanes) {
    const int left = static_cast<int>(s.in - first < kLanes ? s.in - first : kLanes);
    Positions<Axis> p;
    const float* const row = du.data + o * du.out_step + first * du.in_step;
    Positions<Axis>::get(p, row, du.group_step, du.in_step, row + Positions<Axis>::kWhole * du.group_step, kQuads);
    both_axes<Axis::kSize, 3>([](const auto& a, auto& b) { Axis::filter_transposed(a, b); },
                              [&](int r, int c) { return p.all[r * Axis::kSize + c]; },
                              [&](int r, int c, Vec v) { store_first(filter + (r * 3 + c) * s.in + first, v, left); });
  }
}

template <typename Axis>
constexpr SkipTransforms skip_transforms() {
  return {Positions<Axis>::kGroups,  Positions<Axis>::kLeft == 1 ? kQuads : 1,
          skip_filters<Axis>,        skip_filter_gradient<Axis>,
          skip_input_tiles<Axis>,    skip_output_tiles<Axis>,
          skip_gradient_tiles<Axis>, skip_add_input_tiles<Axis>};
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
