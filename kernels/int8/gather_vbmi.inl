// The weights of an image's active channels, brought together by byte permutations (AVX512-VBMI).
//
// One vector of 16 active outputs lies within a window of 32 neighbouring channels, or a few such windows at low densities. The
// rows of two inputs over a window are one register and those of four are two, so one permutation drops the skipped outputs and
// interleaves the inputs at once. The result is laid out as gather.inl does it.

// Active outputs of one vector that lie in one window.
struct Window {
  alignas(64) std::uint8_t quads[64];  // indices into [4 inputs][32 outputs]
  alignas(64) std::uint8_t pairs[64];  // into [2 inputs][32 outputs]; the first 32 count
  std::uint64_t quad_mask, pair_mask;
  int from;  // the window's first output
};

// Windows of the outputs [first, first + count) of a list, whose channels begin at `base`.
static int make_windows(const std::int32_t* list, int first, int count, int base, Window* windows) {
  int n = 0;
  for (int lane = 0; lane < count; ++n) {
    Window& w = windows[n];
    std::memset(&w, 0, sizeof w);
    w.from = list[first + lane] - base;
    for (; lane < count && list[first + lane] - base < w.from + 32; ++lane) {
      const int o = list[first + lane] - base - w.from;
      for (int r = 0; r < 4; ++r) w.quads[4 * lane + r] = static_cast<std::uint8_t>(32 * r + o);
      for (int r = 0; r < 2; ++r) w.pairs[2 * lane + r] = static_cast<std::uint8_t>(32 * r + o);
      w.quad_mask |= std::uint64_t{15} << (4 * lane);
      w.pair_mask |= std::uint64_t{3} << (2 * lane);
    }
  }
  return n;
}

PENSTOCK_INLINE __m512i two_rows(const std::int8_t* a, const std::int8_t* b) {
  return _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(load<__m256i>(a)), load<__m256i>(b), 1);
}

// The rows of a pair or quad of inputs. One that is not there repeats the first, and its bytes are masked out.
struct Rows {
  const std::int8_t* at[4];
  std::uint64_t mask;
};

// Quads: 64 bytes for each tap, `step` bytes apart.
template <int kWindows>
static void gather_quads(const Window* windows, int count, const Rows& rows, std::ptrdiff_t row, int taps, std::uint8_t* to,
                         std::ptrdiff_t step) {
  const int n = kWindows > 0 ? kWindows : count;
  for (std::ptrdiff_t t = 0; t < taps; ++t, to += step) {
    __m512i quads = _mm512_setzero_si512();
    for (int w = 0; w < n; ++w) {
      const std::ptrdiff_t at = windows[w].from + t * row;
      const __m512i found =
          _mm512_maskz_permutex2var_epi8(windows[w].quad_mask & rows.mask, two_rows(rows.at[0] + at, rows.at[1] + at),
                                         load<__m512i>(windows[w].quads), two_rows(rows.at[2] + at, rows.at[3] + at));
      quads = w == 0 ? found : _mm512_or_si512(quads, found);
    }
    store(to, quads);
  }
}

// Pairs of a 3x3 layer: transformed to 36 positions, `step` bytes apart.
template <int kWindows>
static void gather_filters(const Window* windows, int count, const Rows& rows, std::ptrdiff_t row, std::uint8_t* to,
                           std::ptrdiff_t step) {
  const int n = kWindows > 0 ? kWindows : count;
  const auto words = [&](std::ptrdiff_t t) {
    __m512i pairs = _mm512_setzero_si512();
    for (int w = 0; w < n; ++w) {
      const std::ptrdiff_t at = windows[w].from + t * row;
      const __m512i found = _mm512_maskz_permutexvar_epi8(windows[w].pair_mask & rows.mask, load<__m512i>(windows[w].pairs),
                                                          two_rows(rows.at[0] + at, rows.at[1] + at));
      pairs = w == 0 ? found : _mm512_or_si512(pairs, found);
    }
    return (Half)_mm512_maskz_cvtepi8_epi16(~0u, load<__m256i>(&pairs));
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

static void gather(const Int8Run& run, int number, int begin, int end, bool with_transform, std::uint8_t*, std::uint8_t* to) {
  const Int8Plan& plan = run.plan;
  const Int8Group& group = run.groups()[number];
  const int taps = plan.taps, size = with_transform ? 2 : kGroup;
  const int inputs = plan.image_rows ? plan.inputs : group.in_count, groups = (inputs + size - 1) / size;
  const int first_input = number * (plan.shape.in_channels / plan.shape.groups);
  const int first_output = number * (plan.shape.out_channels / plan.shape.groups);
  const std::int8_t* const weights = plan.weights_of(number);
  const std::ptrdiff_t row = plan.row, all_taps = static_cast<std::ptrdiff_t>(taps) * row;
  const auto row_of = [&](int input) {
    const int channel = plan.image_rows ? input : run.task.in_list[group.in_begin + input] - first_input;
    return weights + channel * all_taps;
  };
  const Panels panels(group.out_count, kLanes, kMostVectors);
  to += group.weights;
  for (int p = 0; p < panels.n; ++p) {
    const int v0 = panels.first(p), vectors = panels.first(p + 1) - v0;
    const std::ptrdiff_t step = with_transform ? filter_position_bytes(groups, vectors, kLanes)
                                               : static_cast<std::ptrdiff_t>(groups) * vectors * kGroupBytes;
    const std::ptrdiff_t panel =
        with_transform ? panel_filters(v0, p, groups) : static_cast<std::ptrdiff_t>(v0) * taps * groups * kGroupBytes;
    Window windows[kMostVectors][kLanes];
    int counts[kMostVectors];
    for (int j = 0; j < vectors; ++j)
      counts[j] = make_windows(run.task.out_list, group.out_begin + (v0 + j) * kLanes,
                               std::min(kLanes, group.out_count - (v0 + j) * kLanes), first_output, windows[j]);
    const int first = windows[0][0].from, last = windows[vectors - 1][counts[vectors - 1] - 1].from + 32;
    for (int q = begin; q < end; ++q) {
      Rows rows;
      const int present = std::min(size, inputs - size * q);
      for (int r = 0; r < size; ++r) rows.at[r] = row_of(size * q + (r < present ? r : 0));
      const std::uint64_t bytes = (std::uint64_t{1} << present) - 1;
      rows.mask = with_transform ? bytes * 0x5555555555555555u : bytes * 0x1111111111111111u;
      for (int r = 0; r < size; ++r) {
        const std::int8_t* const next = row_of(std::min(inputs - 1, size * (q + 2) + r));
        for (int t = 0; t < taps; ++t)
          for (std::ptrdiff_t line = first; line < last; line += 64) fetch_near(next + t * row + line);
      }
      for (int j = 0; j < vectors; ++j) {
        std::uint8_t* const target =
            to + panel + (static_cast<std::ptrdiff_t>(q) * vectors + j) * (with_transform ? kVectorBytes : kGroupBytes);
        const Window* const w = windows[j];
        const int n = counts[j];
        if (with_transform)
          (n == 1 ? gather_filters<1> : n == 2 ? gather_filters<2> : gather_filters<0>)(w, n, rows, row, target, step);
        else (n == 1 ? gather_quads<1> : n == 2 ? gather_quads<2> : gather_quads<0>)(w, n, rows, row, taps, target, step);
      }
    }
  }
}
