// The weights of an image's active channels, brought together by permutations (AVX-512 with VNNI).
//
// One vector of 16 active outputs lies within a window of 64 neighbouring channels, or a few such windows at low densities. A
// permutation over a window drops the skipped outputs and puts the others in their places. With VBMI it takes the bytes of a row to
// their places among those of four inputs (or two); a mask keeps what the other inputs put there. Without, the bytes of two rows are
// interleaved first, and words are permuted, those of two vectors at once where four inputs are brought together. The result is laid out
// as gather.inl does it.

constexpr int kWindow = 64;
#if defined(PENSTOCK_VEC_VBMI)
constexpr int kTogether = 1;  // vectors whose quads are gathered at once
#else
constexpr int kTogether = 2;
#endif
constexpr int kMostOutputs = kTogether * kLanes;

// Active outputs that lie in one window.
struct Window {
#if defined(PENSTOCK_VEC_VBMI)
  alignas(64) std::uint8_t quads[64];  // for every byte of a quad its output within the window
  alignas(64) std::uint8_t pairs[64];  // the same for pairs; the first 32 count
  std::uint64_t quad_mask, pair_mask;
#else
  alignas(64) std::uint16_t quads[32];  // for every pair of 32 outputs where it stands among the interleaved ones of the window
  alignas(64) std::uint16_t pairs[32];  // the same for 16 outputs, twice
  std::uint32_t quad_mask, pair_mask;
#endif
  int from;  // the window's first output

  // Output `o` of the window is number `lane` of those that are gathered.
  void add(int lane, int o) {
#if defined(PENSTOCK_VEC_VBMI)
    std::memset(quads + 4 * lane, o, 4);
    std::memset(pairs + 2 * lane, o, 2);
    quad_mask |= std::uint64_t{15} << (4 * lane);
    pair_mask |= std::uint64_t{3} << (2 * lane);
#else
    // Interleaving takes the lower or upper half of each 16 outputs; what interleaves pairs to quads (gather_quads) does so again.
    const std::uint16_t place = static_cast<std::uint16_t>(o % 16 / 8 * 32 + o / 16 * 8 + o % 8);
    const int to = lane % 16 / 4 * 8 + lane / 16 * 4 + lane % 4;
    quads[to] = place;
    quad_mask |= std::uint32_t{1} << to;
    if (lane >= kLanes) return;
    pairs[2 * lane] = pairs[2 * lane + 1] = place;
    pair_mask |= std::uint32_t{3} << (2 * lane);
#endif
  }
};

// Windows of the outputs [first, first + count) of a list, whose channels begin at `base`.
static int make_windows(const std::int32_t* list, int first, int count, int base, Window* windows) {
  int n = 0;
  for (int lane = 0; lane < count; ++n) {
    Window& w = windows[n];
    std::memset(&w, 0, sizeof w);
    const int output = list[first + lane] - base, line = output / kWindow * kWindow;
    w.from = list[first + count - 1] - base < line + kWindow ? line : output;  // one cache line, where it holds the rest
    for (; lane < count && list[first + lane] - base < w.from + kWindow; ++lane) w.add(lane, list[first + lane] - base - w.from);
  }
  return n;
}

// The rows of a pair or quad of inputs, of which so many are there.
struct Rows {
  const std::int8_t* at[4];
  int present;
};

// One or two vectors of 16 active outputs: their windows, and where their gathered quads go.
struct VectorWindows {
  int first, count;
  bool whole;   // all lanes are used, and lie in one window
  bool second;  // there are two vectors
  std::uint8_t* to[kTogether];
  std::ptrdiff_t input_step[kTogether];  // bytes from one quad of inputs to the next
  std::ptrdiff_t step[kTogether];        // bytes from one tap to the next
};

#if defined(PENSTOCK_VEC_VBMI)
constexpr std::uint64_t kFirstOfQuad = 0x1111111111111111u, kFirstOfPair = 0x5555555555555555u;

// Some quads of one tap: 64 bytes. Masks are the same for all whole vectors, so that they stay in registers.
PENSTOCK_INLINE void gather_whole_quad(const Window& w, const Rows& rows, std::ptrdiff_t tap, std::uint8_t* to) {
  const __m512i index = load<__m512i>(w.quads);
  const std::ptrdiff_t at = w.from + tap;
  __m512i quads = _mm512_maskz_permutexvar_epi8(~std::uint64_t{0}, index, load<__m512i>(rows.at[0] + at));
  quads = _mm512_mask_permutexvar_epi8(quads, kFirstOfQuad << 1, index, load<__m512i>(rows.at[1] + at));
  quads = _mm512_mask_permutexvar_epi8(quads, kFirstOfQuad << 2, index, load<__m512i>(rows.at[2] + at));
  store(to, _mm512_mask_permutexvar_epi8(quads, kFirstOfQuad << 3, index, load<__m512i>(rows.at[3] + at)));
}

static void gather_some_quads(const Window* windows, int count, const Rows& rows, std::ptrdiff_t tap, std::uint8_t* to) {
  __m512i quads = _mm512_setzero_si512();
  for (int w = 0; w < count; ++w)
    for (int r = 0; r < rows.present; ++r)
      quads = _mm512_mask_permutexvar_epi8(quads, windows[w].quad_mask & (kFirstOfQuad << r), load<__m512i>(windows[w].quads),
                                           load<__m512i>(rows.at[r] + windows[w].from + tap));
  store(to, quads);
}

PENSTOCK_INLINE void gather_quads(const Window* w, const VectorWindows& v, const Rows& rows, std::ptrdiff_t tap,
                                  std::uint8_t* const* to) {
  if (v.whole && rows.present == kGroup) gather_whole_quad(*w, rows, tap, to[0]);
  else gather_some_quads(w, v.count, rows, tap, to[0]);
}

// A vector of pairs as words.
PENSTOCK_INLINE Half gather_pairs(const Window* windows, int n, const Rows& rows, std::ptrdiff_t tap) {
  __m512i pairs = _mm512_setzero_si512();
  for (int w = 0; w < n; ++w) {
    const __m512i index = load<__m512i>(windows[w].pairs);
    const std::ptrdiff_t at = windows[w].from + tap;
    const std::uint64_t first = windows[w].pair_mask & kFirstOfPair, second = rows.present > 1 ? first << 1 : 0;
    pairs = _mm512_mask_permutexvar_epi8(pairs, first, index, load<__m512i>(rows.at[0] + at));
    pairs = _mm512_mask_permutexvar_epi8(pairs, second, index, load<__m512i>(rows.at[1] + at));
  }
  return (Half)_mm512_maskz_cvtepi8_epi16(~0u, _mm512_castsi512_si256(pairs));
}
#else
// Pairs of the window that begins at `a` and `b`, in the places that the index says.
PENSTOCK_INLINE __m512i permute_pairs(__m512i a, __m512i b, __m512i index, std::uint32_t mask) {
  return _mm512_maskz_permutex2var_epi16(mask, _mm512_maskz_unpacklo_epi8(~0ull, a, b), index,
                                         _mm512_maskz_unpackhi_epi8(~0ull, a, b));
}

template <int kWindows, bool kAll>
PENSTOCK_INLINE void gather_some_quads(const Window* windows, int count, const Rows& rows, std::ptrdiff_t tap, bool second,
                                       std::uint8_t* const* to) {
  const __m512i none = _mm512_setzero_si512();
  const int n = kWindows > 0 ? kWindows : count, present = kAll ? 4 : rows.present;
  __m512i low = none, high = none;  // inputs 0 and 1, 2 and 3
  for (int w = 0; w < n; ++w) {
    const std::ptrdiff_t at = windows[w].from + tap;
    const auto row = [&](int r) { return r < present ? load<__m512i>(rows.at[r] + at) : none; };
    const __m512i index = load<__m512i>(windows[w].quads);
    const __m512i some_low = permute_pairs(row(0), row(1), index, windows[w].quad_mask);
    const __m512i some_high = permute_pairs(row(2), row(3), index, windows[w].quad_mask);
    low = w == 0 ? some_low : _mm512_or_si512(low, some_low);
    high = w == 0 ? some_high : _mm512_or_si512(high, some_high);
  }
  store(to[0], _mm512_maskz_unpacklo_epi16(~0u, low, high));
  if (second) store(to[1], _mm512_maskz_unpackhi_epi16(~0u, low, high));
}

// Quads of one tap: 64 bytes for each vector of outputs.
PENSTOCK_INLINE void gather_quads(const Window* w, const VectorWindows& v, const Rows& rows, std::ptrdiff_t tap,
                                  std::uint8_t* const* to) {
  if (rows.present < kGroup || v.count > 2) gather_some_quads<0, false>(w, v.count, rows, tap, v.second, to);
  else if (v.count == 1) gather_some_quads<1, true>(w, 1, rows, tap, v.second, to);
  else gather_some_quads<2, true>(w, 2, rows, tap, v.second, to);
}

// A vector of pairs as words: every pair of bytes stands there twice, and each copy keeps one of them.
PENSTOCK_INLINE Half gather_pairs(const Window* windows, int n, const Rows& rows, std::ptrdiff_t tap) {
  __m512i pairs = _mm512_setzero_si512();
  for (int w = 0; w < n; ++w) {
    const std::ptrdiff_t at = windows[w].from + tap;
    const __m512i b = rows.present > 1 ? load<__m512i>(rows.at[1] + at) : _mm512_setzero_si512();
    const __m512i some = permute_pairs(load<__m512i>(rows.at[0] + at), b, load<__m512i>(windows[w].pairs), windows[w].pair_mask);
    pairs = w == 0 ? some : _mm512_or_si512(pairs, some);
  }
  const __m512i left = _mm512_maskz_sllv_epi16(~0u, pairs, _mm512_set1_epi32(8));  // only the first of each two
  return (Half)_mm512_maskz_srai_epi16(~0u, left, 8);
}
#endif

// Pairs of a 3x3 layer: transformed to 36 positions, `step` bytes apart.
template <int kWindows>
static void gather_filters(const Window* windows, int count, const Rows& rows, std::ptrdiff_t row, std::uint8_t* to,
                           std::ptrdiff_t step) {
  const int n = kWindows > 0 ? kWindows : count;
  const auto words = [&](std::ptrdiff_t t) { return gather_pairs(windows, n, rows, t * row); };
  Half half[3][6];
#pragma GCC unroll 3
  for (int x = 0; x < 3; ++x) {
    const Half g[3] = {words(x), words(3 + x), words(6 + x)};
    transform_filter(g, half[x]);
  }
#pragma GCC unroll 6
  for (int y = 0; y < 6; ++y) {
    const Half g[3] = {half[0][y], half[1][y], half[2][y]};
    Half t[6];
    transform_filter(g, t);
#pragma GCC unroll 6
    for (int x = 0; x < 6; ++x) store(to + (y * 6 + x) * step, t[x]);
  }
}

// Transformed filters of pairs [begin, end) for one panel of outputs, [position][pair][vector]: positions are `step` bytes apart, and
// pair `begin` is the first.
static void transform_panel(const Int8Run& run, int panel, int begin, int end, std::uint8_t* to, std::ptrdiff_t step) {
  const Int8Plan& plan = run.plan;
  const int in_count = run.task.in_count, out_count = run.task.out_count;
  const std::int32_t* const out_list = run.task.out_list;
  const Panels panels(out_count, kLanes, kMostVectors);
  const int v0 = panels.first(panel), vectors = panels.first(panel + 1) - v0;
  const std::ptrdiff_t row = plan.row;
  Window windows[kMostVectors][kLanes];
  int counts[kMostVectors];
  for (int j = 0; j < vectors; ++j)
    counts[j] = make_windows(out_list, (v0 + j) * kLanes, std::min(kLanes, out_count - (v0 + j) * kLanes), 0, windows[j]);
  const std::ptrdiff_t first = out_list[v0 * kLanes] / 64 * 64, last = out_list[std::min(out_count, (v0 + vectors) * kLanes) - 1];
  const auto rows_of = [&](int input) {
    return plan.weights_of(0) + static_cast<std::int64_t>(run.task.in_list[std::min(input, in_count - 1)]) * plan.taps * row;
  };
  for (int q = begin; q < end; ++q) {
    const bool both = 2 * q + 1 < in_count;
    const Rows rows{{rows_of(2 * q), rows_of(2 * q + both)}, 1 + both};
    for (int r = 0; r < 2; ++r) {
      const std::int8_t* const next = rows_of(2 * (q + 2) + r);
      for (int t = 0; t < plan.taps; ++t)
        for (std::ptrdiff_t line = first; line <= last; line += 64) fetch_near(next + t * row + line);
    }
    for (int j = 0; j < vectors; ++j) {
      const int n = counts[j];
      std::uint8_t* const target = to + (static_cast<std::ptrdiff_t>(q - begin) * vectors + j) * kVectorBytes;
      (n == 1 ? gather_filters<1> : n == 2 ? gather_filters<2> : gather_filters<0>)(windows[j], n, rows, row, target, step);
    }
  }
}

static void gather_panel(const Int8Run& run, int panel, int begin, int end, std::uint8_t* to) {
  const Panels panels(run.task.out_count, kLanes, kMostVectors);
  const int vectors = panels.first(panel + 1) - panels.first(panel);
  transform_panel(run, panel, begin, end, to, filter_position_bytes(end - begin, vectors, kLanes));
}

static void gather_transformed(const Int8Run& run, int begin, int end, std::uint8_t* to) {
  const Panels panels(run.task.out_count, kLanes, kMostVectors);
  const int pairs = (run.task.in_count + 1) / 2;
  for (int p = 0; p < panels.n; ++p) {
    const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
    transform_panel(run, p, begin, end,
                    to + panel_filters(v0, p, pairs) + static_cast<std::ptrdiff_t>(begin) * vectors * kVectorBytes,
                    filter_position_bytes(pairs, vectors, kLanes));
  }
}

static void gather(const Int8Run& run, int number, int begin, int end, bool with_transform, std::uint8_t*, std::uint8_t* to) {
  if (with_transform) return gather_transformed(run, begin, end, to);
  const Int8Plan& plan = run.plan;
  const Int8Group& group = run.groups()[number];
  const int inputs = plan.image_rows ? plan.inputs : group.in_count, groups = (inputs + kGroup - 1) / kGroup;
  const int first_input = number * (plan.shape.in_channels / plan.shape.groups);
  const int first_output = number * (plan.shape.out_channels / plan.shape.groups);
  const std::ptrdiff_t row = plan.row, taps = plan.taps;
  const auto rows_of = [&](int input) {
    const int channel = plan.image_rows ? input : run.task.in_list[group.in_begin + input] - first_input;
    return plan.weights_of(number) + channel * taps * row;
  };
  const bool far = has_far_filters(plan);  // nearer ones have been fetched by the layer before
  const Panels panels(group.out_count, kLanes, kMostVectors);
  // As many vectors of outputs at a time as there is room for windows.
  constexpr int kWindows = 96;
  Window windows[kWindows];
  VectorWindows vectors[kWindows];
  for (int vector = 0, panel = 0; vector < panels.vectors;) {
    int count = 0, used = 0;
    for (; vector < panels.vectors && used + kMostOutputs <= kWindows; ++count) {
      VectorWindows& v = vectors[count];
      const int outputs = std::min(kMostOutputs, group.out_count - vector * kLanes);
      v.first = used;
      v.count = make_windows(run.task.out_list, group.out_begin + vector * kLanes, outputs, first_output, windows + used);
      v.whole = v.count == 1 && outputs == kMostOutputs;
      v.second = outputs > kLanes;
      used += v.count;
      for (int i = 0; i < kTogether && vector < panels.vectors; ++i, ++vector) {
        while (vector >= panels.first(panel + 1)) ++panel;
        const int v0 = panels.first(panel), width = panels.first(panel + 1) - v0;
        v.step[i] = static_cast<std::ptrdiff_t>(groups) * width * kGroupBytes;
        v.input_step[i] = static_cast<std::ptrdiff_t>(width) * kGroupBytes;
        v.to[i] = to + group.weights + (v0 * taps * groups + vector - v0) * kGroupBytes;
      }
    }
    for (int q = begin; q < end; ++q) {
      Rows rows;
      rows.present = std::min(kGroup, inputs - kGroup * q);
      for (int r = 0; r < rows.present; ++r) rows.at[r] = rows_of(kGroup * q + r);
      // Tap by tap, so that rows are read from end to end: the processor then fetches ahead, several lines at a time.
      for (std::ptrdiff_t t = 0; t < taps; ++t) {
        for (int r = 0; far && q + 1 < end && r < kGroup; ++r) {
          const std::int8_t* const next = rows_of(std::min(inputs - 1, kGroup * (q + 1) + r)) + t * row;
          for (std::ptrdiff_t line = 0; line < row; line += 64) fetch_far(next + line);
        }
        for (int i = 0; i < count; ++i) {
          const VectorWindows& v = vectors[i];
          std::uint8_t* targets[kTogether];
          for (int k = 0; k < kTogether && k <= v.second; ++k) targets[k] = v.to[k] + q * v.input_step[k] + t * v.step[k];
          gather_quads(windows + v.first, v, rows, t * row, targets);
        }
      }
    }
  }
}
