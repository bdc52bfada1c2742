// The weights of an image's active channels, brought together by byte permutations (AVX512-VBMI).
//
// One vector of 16 active outputs lies within a window of 64 neighbouring channels, or a few such windows at low densities. One
// permutation of a row over a window drops the skipped outputs and puts the others in their places among those of four inputs (or
// two); a mask keeps what the other inputs put there. The result is laid out as gather.inl does it.

constexpr int kWindow = 64;

// Active outputs of one vector that lie in one window.
struct Window {
  alignas(64) std::uint8_t quads[64];  // for every byte of a quad its output within the window
  alignas(64) std::uint8_t pairs[64];  // the same for pairs; the first 32 count
  std::uint64_t quad_mask, pair_mask;
  int from;  // the window's first output
};

// Windows of the outputs [first, first + count) of a list, whose channels begin at `base`.
static int make_windows(const std::int32_t* list, int first, int count, int base, Window* windows) {
  int n = 0;
  for (int lane = 0; lane < count; ++n) {
    Window& w = windows[n];
    std::memset(&w, 0, sizeof w);
    const int output = list[first + lane] - base, line = output / kWindow * kWindow;
    w.from = list[first + count - 1] - base < line + kWindow ? line : output;  // one cache line, where it holds the rest
    for (; lane < count && list[first + lane] - base < w.from + kWindow; ++lane) {
      const std::uint8_t o = static_cast<std::uint8_t>(list[first + lane] - base - w.from);
      std::memset(w.quads + 4 * lane, o, 4);
      std::memset(w.pairs + 2 * lane, o, 2);
      w.quad_mask |= std::uint64_t{15} << (4 * lane);
      w.pair_mask |= std::uint64_t{3} << (2 * lane);
    }
  }
  return n;
}

// The rows of a pair or quad of inputs, of which so many are there.
struct Rows {
  const std::int8_t* at[4];
  int present;
};

constexpr std::uint64_t kFirstOfQuad = 0x1111111111111111u, kFirstOfPair = 0x5555555555555555u;

// A vector of 16 active outputs: its windows, and where its gathered quads go.
struct VectorWindows {
  int first, count;
  bool whole;  // all lanes are used, and lie in one window
  std::uint8_t* to;
  std::ptrdiff_t input_step;  // bytes from one quad of inputs to the next
  std::ptrdiff_t step;        // bytes from one tap to the next
};

// Some quads of one tap: 64 bytes. Masks are the same for all whole vectors, so that they stay in registers.
PENSTOCK_INLINE void gather_whole_quad(const Window& w, const Rows& rows, std::ptrdiff_t tap, std::uint8_t* to) {
  const __m512i index = load<__m512i>(w.quads);
  const std::ptrdiff_t at = w.from + tap;
  __m512i quads = _mm512_maskz_permutexvar_epi8(~std::uint64_t{0}, index, load<__m512i>(rows.at[0] + at));
  quads = _mm512_mask_permutexvar_epi8(quads, kFirstOfQuad << 1, index, load<__m512i>(rows.at[1] + at));
  quads = _mm512_mask_permutexvar_epi8(quads, kFirstOfQuad << 2, index, load<__m512i>(rows.at[2] + at));
  store(to, _mm512_mask_permutexvar_epi8(quads, kFirstOfQuad << 3, index, load<__m512i>(rows.at[3] + at)));
}

static void gather_quad(const Window* windows, int count, const Rows& rows, std::ptrdiff_t tap, std::uint8_t* to) {
  __m512i quads = _mm512_setzero_si512();
  for (int w = 0; w < count; ++w)
    for (int r = 0; r < rows.present; ++r)
      quads = _mm512_mask_permutexvar_epi8(quads, windows[w].quad_mask & (kFirstOfQuad << r), load<__m512i>(windows[w].quads),
                                           load<__m512i>(rows.at[r] + windows[w].from + tap));
  store(to, quads);
}

// Pairs of a 3x3 layer: transformed to 36 positions, `step` bytes apart.
template <int kWindows>
static void gather_filters(const Window* windows, int count, const Rows& rows, std::ptrdiff_t row, std::uint8_t* to,
                           std::ptrdiff_t step) {
  const int n = kWindows > 0 ? kWindows : count;
  const auto words = [&](std::ptrdiff_t t) {
    __m512i pairs = _mm512_setzero_si512();
    for (int w = 0; w < n; ++w) {
      const __m512i index = load<__m512i>(windows[w].pairs);
      const std::ptrdiff_t at = windows[w].from + t * row;
      const std::uint64_t first = windows[w].pair_mask & kFirstOfPair, second = rows.present > 1 ? first << 1 : 0;
      pairs = _mm512_mask_permutexvar_epi8(pairs, first, index, load<__m512i>(rows.at[0] + at));
      pairs = _mm512_mask_permutexvar_epi8(pairs, second, index, load<__m512i>(rows.at[1] + at));
    }
    return (Half)_mm512_maskz_cvtepi8_epi16(~0u, _mm512_castsi512_si256(pairs));
  };
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
    for (; vector < panels.vectors && used + kLanes <= kWindows; ++vector, ++count) {
      while (vector >= panels.first(panel + 1)) ++panel;
      const int v0 = panels.first(panel), width = panels.first(panel + 1) - v0;
      VectorWindows& v = vectors[count];
      v.first = used;
      v.count = make_windows(run.task.out_list, group.out_begin + vector * kLanes,
                             std::min(kLanes, group.out_count - vector * kLanes), first_output, windows + used);
      v.whole = v.count == 1 && windows[used].quad_mask == ~std::uint64_t{0};
      used += v.count;
      v.step = static_cast<std::ptrdiff_t>(groups) * width * kGroupBytes;
      v.input_step = static_cast<std::ptrdiff_t>(width) * kGroupBytes;
      v.to = to + group.weights + (v0 * taps * groups + vector - v0) * kGroupBytes;
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
          const Window* const w = windows + v.first;
          std::uint8_t* const target = v.to + q * v.input_step + t * v.step;
          if (v.whole && rows.present == kGroup) gather_whole_quad(*w, rows, t * row, target);
          else gather_quad(w, v.count, rows, t * row, target);
        }
      }
    }
  }
}
