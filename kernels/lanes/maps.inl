// Maps of pixels besides convolution: combinations, pooling, sums, and the way to planes and back.
namespace penstock {
namespace PENSTOCK_ISA {

// A vector of a term: as it lies, or N pieces of it brought together.
struct PlainTerm {
  std::ptrdiff_t at;
  __attribute__((always_inline)) Vec load_from(const float* pixel) const { return load(pixel + at); }
};

template <int N>
struct PickedTerm {
  std::ptrdiff_t at[N];
  LanePlaces places[N];
  __attribute__((always_inline)) Vec load_from(const float* pixel) const {
    Vec value = pick(pixel + at[0], places[0]);
    // Every lane has one piece, so that a sum keeps its bits.
    for (int n = 1; n < N; ++n) value = value + pick(pixel + at[n], places[n]);
    return value;
  }
};

struct ManyPieces {
  const LanesPiece* pieces;
  int count;
  __attribute__((always_inline)) Vec load_from(const float* pixel) const {
    Vec value = zero();
    for (int n = 0; n < count; ++n) value = value + pick(pixel + pieces[n].from, load_places(pieces[n].places));
    return value;
  }
};

template <int N>
PENSTOCK_INLINE PickedTerm<N> picked(const LanesPiece* pieces) {
  PickedTerm<N> term;
  for (int n = 0; n < N; ++n) {
    term.at[n] = pieces[n].from;
    term.places[n] = load_places(pieces[n].places);
  }
  return term;
}

// Calls f with vector `v` of the term, in the form that loads it fastest.
template <typename F>
PENSTOCK_INLINE void with_term(const PixelTerm& term, int v, F f) {
  if (term.pieces == nullptr) return f(PlainTerm{static_cast<std::ptrdiff_t>(v) * kLanes});
  const LanesPiece* const pieces = term.pieces + term.first_piece[v];
  const int count = term.first_piece[v + 1] - term.first_piece[v];
  if (count == 1) return f(picked<1>(pieces));
  if (count == 2) return f(picked<2>(pieces));
  f(ManyPieces{pieces, count});
}

// Pixels whose vectors are combined before the next vector's turn: all of them stay in L1.
constexpr int kCombinePixels = 8;

// value(x) of `count` pixels, scaled, shifted, clamped and stored; `sums` gets the magnitudes.
template <typename Value>
PENSTOCK_INLINE void combine_vector(const PixelCombination& c, float* to, int v, int count, float* sums, Value value) {
  const Vec low = splat(c.low), high = splat(c.high), shift = c.shift ? load(c.shift + v * kLanes) : zero();
  const int lanes = v + 1 < c.vectors ? kLanes : c.last;
  Vec sum = zero();
  for (int x = 0; x < count; ++x) {
    const Vec result = clamp(value(x) + shift, low, high);
    store_lanes_of(to + x * c.pixel + v * kLanes, result, lanes);
    sum = sum + abs(result);
  }
  if (sums) store(sums + v * kLanes, load(sums + v * kLanes) + sum);
}

static void combine_pixels(const PixelCombination& c, int row_begin, int row_end) {
  const PixelTerm &a = c.terms[0], &b = c.terms[1];
  for (int y = row_begin; y < row_end; ++y) {
    float* const sums = c.sums ? c.sums + static_cast<std::ptrdiff_t>(y) * c.sums_row : nullptr;
    for (int v = 0; sums && v < c.vectors; ++v) store(sums + v * kLanes, zero());
    for (int first = 0; first < c.width; first += kCombinePixels) {
      const int count = c.width - first < kCombinePixels ? c.width - first : kCombinePixels;
      const float* const from = a.pixels + y * a.row + first * a.pixel;
      float* const to = c.to + y * c.row + first * c.pixel;
      for (int v = 0; v < c.vectors; ++v) {
        with_term(a, v, [&](const auto& term) __attribute__((always_inline)) {
          if (c.count == 1) {
            const Vec factors = c.factors ? load(c.factors + v * kLanes) : splat(1.0f);
            combine_vector(c, to, v, count, sums,
                           [&](int x) __attribute__((always_inline)) { return term.load_from(from + x * a.pixel) * factors; });
            return;
          }
          const float* const other = b.pixels + y * b.row + first * b.pixel;
          with_term(b, v, [&](const auto& second) __attribute__((always_inline)) {
            combine_vector(c, to, v, count, sums, [&](int x) __attribute__((always_inline)) {
              return term.load_from(from + x * a.pixel) + second.load_from(other + x * b.pixel);
            });
          });
        });
      }
    }
  }
}

static void pool_pixels(const PixelPool& s, int row_begin, int row_end) {
  for (int oy = row_begin; oy < row_end; ++oy)
    for (int ox = 0; ox < s.to_width; ++ox) {
      float* const to = s.to + oy * s.to_row + ox * s.to_pixel;
      const PoolWindow window = pool_window(s, s.height, s.width, oy * s.stride_h - s.pad_h, ox * s.stride_w - s.pad_w);
      const bool none = window.empty();
      const int values = window.divisor(s);
      const Vec count = splat(static_cast<float>(values > 0 ? values : 1));
      for (int v = 0; v < s.vectors; ++v) {
        Vec found = s.max && !none ? splat(-__builtin_inff()) : zero();
        for (int y = window.down.begin; y < window.down.end; y += s.dilation_h) {
          const float* at = s.pixels + y * s.row + window.across.begin * s.pixel + v * kLanes;
          for (int x = window.across.begin; x < window.across.end; x += s.dilation_w, at += s.dilation_w * s.pixel)
            found = s.max ? maximum(found, load(at)) : found + load(at);
        }
        store(to + v * kLanes, s.max ? found : found / count);
      }
    }
}

struct AddValue {
  Vec operator()(Vec a, Vec x) const { return a + x; }
};
struct AddMagnitude {
  Vec operator()(Vec a, Vec x) const { return a + abs(x); }
};
struct AddSquare {
  Vec operator()(Vec a, Vec x) const { return fma(x, x, a); }
};
struct LargerMagnitude {
  Vec operator()(Vec a, Vec x) const { return maximum(a, abs(x)); }
};
struct LargerValue {
  Vec operator()(Vec a, Vec x) const { return maximum(a, x); }
};

// Sums run over the pixels of a row, then over rows, so that rounding stays small.
template <typename Step>
PENSTOCK_INLINE void sum_rows(const PixelSums& s, const float* centre, int v, float* sums, Step step) {
  const Vec middle = centre ? load(centre + v * kLanes) : zero();
  Vec total = zero();
  for (int y = 0; y < s.height; ++y) {
    Vec a = zero(), b = zero();
    const float* at = s.pixels + y * s.row + v * kLanes;
    int x = 0;
    for (; x + 2 <= s.width; x += 2, at += 2 * s.pixel) {
      a = step(a, load(at) - middle);
      b = step(b, load(at + s.pixel) - middle);
    }
    if (x < s.width) a = step(a, load(at) - middle);
    total = total + (a + b);
  }
  store(sums + v * kLanes, total);
}

template <typename Step>
PENSTOCK_INLINE void fold_rows(const PixelSums& s, int v, float* sums, Vec start, Step step) {
  Vec found = start;
  for (int y = 0; y < s.height; ++y) {
    const float* at = s.pixels + y * s.row + v * kLanes;
    for (int x = 0; x < s.width; ++x, at += s.pixel) found = step(found, load(at));
  }
  store(sums + v * kLanes, found);
}

static void sum_pixels(const PixelSums& s, PixelSum kind, const float* centre, int vector_begin, int vector_end, float* sums) {
  for (int v = vector_begin; v < vector_end; ++v) switch (kind) {
      case PixelSum::values: sum_rows(s, centre, v, sums, AddValue{}); break;
      case PixelSum::magnitudes: sum_rows(s, centre, v, sums, AddMagnitude{}); break;
      case PixelSum::squares: sum_rows(s, centre, v, sums, AddSquare{}); break;
      case PixelSum::largest: fold_rows(s, v, sums, zero(), LargerMagnitude{}); break;
      case PixelSum::largest_value: fold_rows(s, v, sums, splat(-__builtin_inff()), LargerValue{}); break;
    }
}

// 4 channels of kLanes pixels at a time. Loads may run over the end of a row.
static void to_pixels(const PixelExchange& e, int row_begin, int row_end) {
  for (int y = row_begin; y < row_end; ++y)
    for (int x = 0; x < e.width; x += kLanes) {
      const float* const from = e.planes + y * e.plane_row + x;
      float* const to = e.pixels + y * e.pixel_row + x * e.pixel;
      for (int c = 0; c < e.count; c += 4) {
        Vec v[4];
        for (int j = 0; j < 4; ++j) v[j] = load(from + (c + j < e.count ? c + j : e.count - 1) * e.plane);
        transpose_quads(v[0], v[1], v[2], v[3]);
        if (x + kLanes <= e.width) {
          for (int j = 0; j < 4; ++j) store_quads(to + j * e.pixel + c, 4 * e.pixel, v[j]);
          continue;
        }
        float lanes[4][kLanes];
        for (int j = 0; j < 4; ++j) store(lanes[j], v[j]);
        for (int i = 0; i < e.width - x; ++i) std::memcpy(to + i * e.pixel + c, lanes[i % 4] + i / 4 * 4, 4 * sizeof(float));
      }
    }
}

static void to_planes(const PixelExchange& e, int row_begin, int row_end) {
  for (int y = row_begin; y < row_end; ++y)
    for (int x = 0; x < e.width; x += kLanes) {
      float* const to = e.planes + y * e.plane_row + x;
      const float* from[4][kQuads];
      for (int i = 0; i < kLanes; ++i) {
        const int pixel = x + i < e.width ? x + i : e.width - 1;
        from[i % 4][i / 4] = e.pixels + y * e.pixel_row + pixel * e.pixel;
      }
      for (int c = 0; c < e.count; c += 4) {
        Vec v[4];
        for (int j = 0; j < 4; ++j) v[j] = load_quads(from[j], c);
        transpose_quads(v[0], v[1], v[2], v[3]);
        for (int j = 0; j < 4 && c + j < e.count; ++j) {
          if (x + kLanes <= e.width) {
            store(to + (c + j) * e.plane, v[j]);
          } else {
            store_first(to + (c + j) * e.plane, v[j], e.width - x);
          }
        }
      }
    }
}

}  // namespace PENSTOCK_ISA
}  // namespace penstock
