// Maps of pixels besides convolution: combinations, pooling, sums, and the way to planes and back.
namespace penstock {
namespace PENSTOCK_ISA {

PENSTOCK_INLINE Vec load_term(const PixelTerm& term, const float* pixel, int v) {
  Vec value;
  if (term.pieces == nullptr) {
    value = load(pixel + v * kLanes);
  } else {
    value = zero();
    for (std::int32_t n = term.first_piece[v]; n < term.first_piece[v + 1]; ++n) {
      const LanesPiece& piece = term.pieces[n];
      // Bits that only one piece has: a sum keeps them.
      value = value + pick(pixel + piece.from, load_places(piece.places));
    }
  }
  return term.factors ? value * load(term.factors + v * kLanes) : value;
}

template <int kTerms>
PENSTOCK_INLINE void combine_terms(const PixelCombination& c, int row_begin, int row_end) {
  const Vec low = splat(c.low), high = splat(c.high);
  for (int y = row_begin; y < row_end; ++y) {
    const float* a = c.terms[0].pixels + y * c.terms[0].row;
    const float* b = kTerms == 2 ? c.terms[1].pixels + y * c.terms[1].row : nullptr;
    float* to = c.to + y * c.row;
    for (int x = 0; x < c.width; ++x, a += c.terms[0].pixel, b += kTerms == 2 ? c.terms[1].pixel : 0, to += c.pixel)
      for (int v = 0; v < c.vectors; ++v) {
        Vec value = load_term(c.terms[0], a, v);
        if (kTerms == 2) value = value + load_term(c.terms[1], b, v);
        if (c.shift) value = value + load(c.shift + v * kLanes);
        store_lanes_of(to + v * kLanes, clamp(value, low, high), v + 1 < c.vectors ? kLanes : c.last);
      }
  }
}

// Sums of maps that lie alike, which need nothing but loads.
static void add_alike(const PixelCombination& c, int row_begin, int row_end) {
  const Vec low = splat(c.low), high = splat(c.high);
  for (int y = row_begin; y < row_end; ++y) {
    const float* a = c.terms[0].pixels + y * c.terms[0].row;
    const float* b = c.terms[1].pixels + y * c.terms[1].row;
    float* to = c.to + y * c.row;
    for (std::ptrdiff_t i = 0; i < c.width * c.pixel; i += kLanes) store(to + i, clamp(load(a + i) + load(b + i), low, high));
  }
}

static void combine_pixels(const PixelCombination& c, int row_begin, int row_end) {
  if (c.count == 1) return combine_terms<1>(c, row_begin, row_end);
  const PixelTerm &a = c.terms[0], &b = c.terms[1];
  const bool plain = !a.pieces && !b.pieces && !a.factors && !b.factors && !c.shift;
  if (plain && a.pixel == c.pixel && b.pixel == c.pixel && c.last == kLanes) return add_alike(c, row_begin, row_end);
  combine_terms<2>(c, row_begin, row_end);
}

static void pool_pixels(const PixelPool& s, int row_begin, int row_end) {
  // Taps of a window from `start` on that lie in [0, size).
  const auto first_inside = [](int start, int step) { return start >= 0 ? start : start + (-start + step - 1) / step * step; };
  const auto steps = [](int begin, int end, int step) { return end > begin ? (end - begin + step - 1) / step : 0; };
  for (int oy = row_begin; oy < row_end; ++oy)
    for (int ox = 0; ox < s.to_width; ++ox) {
      float* const to = s.to + oy * s.to_row + ox * s.to_pixel;
      const int y0 = oy * s.stride_h - s.pad_h, x0 = ox * s.stride_w - s.pad_w;
      const int top = first_inside(y0, s.dilation_h), left = first_inside(x0, s.dilation_w);
      const int reach_y = y0 + (s.kernel_h - 1) * s.dilation_h + 1, reach_x = x0 + (s.kernel_w - 1) * s.dilation_w + 1;
      const int bottom = reach_y < s.height ? reach_y : s.height, right = reach_x < s.width ? reach_x : s.width;
      int values = steps(top, bottom, s.dilation_h) * steps(left, right, s.dilation_w);
      const bool none = values == 0;
      if (s.count_padding) {
        // Padding counts as far as it was declared, not what ceil mode adds beyond it.
        const int low = y0 + s.kernel_h < s.height + s.pad_h ? y0 + s.kernel_h : s.height + s.pad_h;
        const int far = x0 + s.kernel_w < s.width + s.pad_w ? x0 + s.kernel_w : s.width + s.pad_w;
        values = (low - y0) * (far - x0);
      }
      if (s.divisor > 0) values = s.divisor;
      const Vec count = splat(static_cast<float>(values > 0 ? values : 1));
      for (int v = 0; v < s.vectors; ++v) {
        Vec found = s.max && !none ? splat(-__builtin_inff()) : zero();
        for (int y = top; y < bottom; y += s.dilation_h) {
          const float* at = s.pixels + y * s.row + left * s.pixel + v * kLanes;
          for (int x = left; x < right; x += s.dilation_w, at += s.dilation_w * s.pixel)
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
