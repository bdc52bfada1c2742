// Depthwise convolution where a lane multiplies four codes: four taps at a time, 64 channels in a block. Where two or more pixels of
// all channels fit into 64 bytes, a block is so many pixels that lie side by side.
#if PENSTOCK_DEPTHWISE_QUADS

// A block's bytes in the order of its vectors: bytes 16 q + 4 j + i are lane 4 q + i of vector j. That is how unpacking leaves them, and
// packing turns it back.
constexpr int block_byte(int vector, int lane) { return lane / 4 * 16 + vector * 4 + lane % 4; }

// Pixels side by side in a block.
static int block_pixels(const Int8Shape& s, int bytes) { return s.stride_w == 1 ? std::max(1, 64 / bytes) : 1; }

// Weights of the active outputs, [block][use][vector]; zeros where the input is skipped.
static void gather_depthwise(const Int8Run& run, std::uint8_t* to) {
  const DepthwiseTaps& taps = run.plan.depthwise;
  const Int8Task& task = run.task;
  const int uses = static_cast<int>(taps.uses.size()), bytes = pixel_bytes(run.plan.shape.out_channels, task.out_count);
  const int pixels = block_pixels(run.plan.shape, bytes);
  const std::int32_t* const places = reinterpret_cast<const std::int32_t*>(run.scratch + run.lay.places);
  for (int block = 0; 64 * block < task.out_count; ++block, to += uses * kDepthwiseBytes) {
    std::memset(to, 0, static_cast<std::size_t>(uses * kDepthwiseBytes));
    for (int byte = 0; byte < 64; ++byte) {
      const int p = 64 * block + (pixels > 1 ? byte % bytes : byte);
      if ((pixels > 1 && byte >= pixels * bytes) || p >= task.out_count || places[p] < 0) continue;
      const std::int8_t* const from = taps.weights.data() + static_cast<std::int64_t>(task.out_list[p]) * uses * 4;
      std::uint8_t* const target = to + byte % 16 / 4 * 64 + byte / 16 * 16 + byte % 4 * 4;
      for (int u = 0; u < uses; ++u) std::memcpy(target + u * kDepthwiseBytes, from + 4 * u, 4);
    }
  }
}

// The codes of four taps side by side, as four vectors.
PENSTOCK_INLINE void zip_taps(const std::uint8_t* at, const std::ptrdiff_t* taps, std::uint8_t* to) {
  const __m512i a = load<__m512i>(at + taps[0]), b = load<__m512i>(at + taps[1]), c = load<__m512i>(at + taps[2]),
                d = load<__m512i>(at + taps[3]);
  const __m512i ab = _mm512_maskz_unpacklo_epi8(~0ull, a, b), ab2 = _mm512_maskz_unpackhi_epi8(~0ull, a, b),
                cd = _mm512_maskz_unpacklo_epi8(~0ull, c, d), cd2 = _mm512_maskz_unpackhi_epi8(~0ull, c, d);
  store(to, _mm512_maskz_unpacklo_epi16(~0u, ab, cd));
  store(to + 64, _mm512_maskz_unpackhi_epi16(~0u, ab, cd));
  store(to + 128, _mm512_maskz_unpacklo_epi16(~0u, ab2, cd2));
  store(to + 192, _mm512_maskz_unpackhi_epi16(~0u, ab2, cd2));
}

// What the outputs of a block have in common.
struct DepthwiseBlock {
  alignas(64) float mul[64], add[64];
  alignas(64) std::int32_t init[64], totals[64];
};

// Sums of kPixels outputs (each of a block's pixels side by side), `step` bytes of brought-together codes apart.
template <int kPixels>
static void multiply_taps(const std::uint8_t* codes, const std::ptrdiff_t* uses, int count, const std::uint8_t* w,
                          std::ptrdiff_t step, const std::int32_t* init, std::int32_t* sums) {
  Int acc[kPixels][4];
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[p][j] = load<Int>(init + j * kLanes);
  for (int u = 0; u < count; ++u, w += kDepthwiseBytes) {
    const std::uint8_t* const at = codes + uses[u];
    Int s[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) s[j] = load<Int>(w + j * kVectorBytes);
#pragma GCC unroll 4
    for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) acc[p][j] = dot_quads(acc[p][j], load<Int>(at + p * step + j * kVectorBytes), s[j]);
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) store(sums + (p * 4 + j) * kLanes, acc[p][j]);
}

// The first `count` of 64 bytes.
constexpr std::uint64_t first_bytes(int count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// Ends `count` outputs; of each, the bytes in `mask` are stored and counted. kWhole: as finish_pixels, results are clamped as words.
template <Ending kEnding, bool kWhole>
static void finish_taps(const Int8Finish& f, DepthwiseBlock& block, const std::int32_t* sums, int count, std::uint8_t* to,
                        std::ptrdiff_t step, std::uint64_t mask) {
  const WordEnding<kEnding> end(f);
  Vec mul[4], add[4];
  for (int j = 0; j < 4; ++j) {
    mul[j] = load(block.mul + j * kLanes);
    add[j] = load(block.add + j * kLanes);
  }
  Half totals[2] = {};
  for (int i = 0; i < count; ++i, sums += 4 * kLanes, to += step) {
    Int whole[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Vec y = to_float(load<Int>(sums + j * kLanes)) * mul[j] + add[j];
      whole[j] = kWhole ? to_whole(y) : quantise<kEnding>(f, y);
    }
    const Half low = end(join_words(whole[0], whole[1]), totals[0]), high = end(join_words(whole[2], whole[3]), totals[1]);
    _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_packus_epi16(~0ull, (__m512i)low, (__m512i)high));
  }
  // Bytes beyond the mask hold numbers of no pixel.
  for (int j = 0; j < 4; ++j) {
    const Int total = j % 2 == 0 ? first_words(totals[j / 2]) : second_words(totals[j / 2]);
    unsigned lanes = 0;
    if (mask == ~0ull) {
      lanes = 0xffff;
    } else {
      for (int lane = 0; lane < kLanes; ++lane) lanes |= static_cast<unsigned>(mask >> block_byte(j, lane) & 1) << lane;
    }
    std::int32_t* const all = block.totals + j * kLanes;
    store(all, load<Int>(all) + (Int)_mm512_maskz_mov_epi32(static_cast<__mmask16>(lanes), (__m512i)total));
  }
}

using FinishTaps = void (*)(const Int8Finish&, DepthwiseBlock&, const std::int32_t*, int, std::uint8_t*, std::ptrdiff_t,
                            std::uint64_t);
static FinishTaps finish_taps_of(const Int8Finish& f) {
  switch (f.function) {
    case Function::silu: return finish_taps<Ending::silu, false>;
    case Function::gelu: return finish_taps<Ending::gelu, false>;
    case Function::hardswish: return finish_taps<Ending::hardswish, false>;
    case Function::leaky_relu: return finish_taps<Ending::leaky, false>;
    default: break;
  }
  switch (ending_of(f)) {
    case Ending::rectified: return f.stays_whole ? finish_taps<Ending::rectified, true> : finish_taps<Ending::rectified, false>;
    default: return f.stays_whole ? finish_taps<Ending::clamped, true> : finish_taps<Ending::clamped, false>;
  }
}

// One unit's way through a block: the codes of a run of columns are brought together, then the outputs above them are computed.
struct DepthwiseWalk {
  static constexpr int kOutputs = 16;  // whose sums are finished together

  const DepthwiseTaps& taps;
  int bytes, pixels, step, streams;
  std::ptrdiff_t offsets[kMostTaps][4], uses[kMostTaps];
  // By stream: the columns that one output reads, and whether those between the columns of the outputs are read as well.
  int spans[kMostTaps];
  bool needed[kMostTaps];
  std::uint8_t* codes;
  int longest;  // outputs of a run

  DepthwiseWalk(const Int8Run& run, std::uint8_t* room, int pixel)
      : taps(run.plan.depthwise),
        bytes(pixel),
        pixels(block_pixels(run.plan.shape, pixel)),
        step(pixels > 1 ? pixels : run.plan.shape.stride_w),
        streams(static_cast<int>(taps.streams.size())),
        codes(room) {
    for (int i = 0; i < streams; ++i) {
      needed[i] = false;
      spans[i] = 1;
      for (int r = 0; r < 4; ++r)
        offsets[i][r] =
            (static_cast<std::ptrdiff_t>(taps.streams[static_cast<std::size_t>(i)].row[r]) * run.plan.shape.input.pitch() +
             taps.streams[static_cast<std::size_t>(i)].column[r]) *
            bytes;
    }
    for (std::size_t u = 0; u < taps.uses.size(); ++u) {
      uses[u] = (static_cast<std::ptrdiff_t>(taps.uses[u].column) * streams + taps.uses[u].stream) * kDepthwiseBytes;
      needed[taps.uses[u].stream] |= taps.uses[u].column % step != 0;
      spans[taps.uses[u].stream] = std::max(spans[taps.uses[u].stream], taps.uses[u].column + 1);
    }
    longest = std::max(1, (kDepthwiseColumns / streams - taps.span) / step + 1);
  }

  void bring(const std::uint8_t* from, int outputs) const {
    for (int i = 0; i < streams; ++i) {
      const int apart = needed[i] ? 1 : step, columns = (outputs - 1) * step + spans[i];
      for (int c = 0; c < columns; c += apart)
        zip_taps(from + static_cast<std::ptrdiff_t>(c) * bytes, offsets[i],
                 codes + (static_cast<std::ptrdiff_t>(c) * streams + i) * kDepthwiseBytes);
    }
  }

  void multiply(const std::uint8_t* w, const DepthwiseBlock& block, int first, int count, std::int32_t* sums) const {
    const std::ptrdiff_t apart = static_cast<std::ptrdiff_t>(step) * streams * kDepthwiseBytes;
    const int n = static_cast<int>(taps.uses.size());
    while (count > 0) {
      const int now = count >= 4 ? 4 : count;
      const std::uint8_t* const at = codes + first * apart;
      switch (now) {
        case 4: multiply_taps<4>(at, uses, n, w, apart, block.init, sums); break;
        case 3: multiply_taps<3>(at, uses, n, w, apart, block.init, sums); break;
        case 2: multiply_taps<2>(at, uses, n, w, apart, block.init, sums); break;
        default: multiply_taps<1>(at, uses, n, w, apart, block.init, sums); break;
      }
      first += now;
      count -= now;
      sums += now * 4 * kLanes;
    }
  }
};

static void depthwise(const Int8Run& run, int unit, int member) {
  const Int8Plan& plan = run.plan;
  const Int8Shape& s = plan.shape;
  const Int8Task& task = run.task;
  const int bytes = pixel_bytes(s.out_channels, task.out_count);
  const int y0 = unit * run.lay.unit_rows, y1 = std::min(s.output.height, y0 + run.lay.unit_rows);
  std::uint8_t* const mine = run.mine(member);
  const std::int64_t first_row = static_cast<std::int64_t>(y0) * s.stride_h - s.pad_h;
  const std::int64_t last_row =
      static_cast<std::int64_t>(y1 - 1) * s.stride_h - s.pad_h + static_cast<std::int64_t>(s.kernel_h - 1) * s.dilation_h;
  const std::int64_t start = s.input.origin() + first_row * s.input.pitch() - s.pad_w;
  const std::int64_t end = s.input.origin() + last_row * s.input.pitch() + s.input.width + s.pad_w;
  const std::uint8_t* const input = align_channels(run, start, end, mine + run.lay.pixels);

  const DepthwiseWalk walk(run, mine + run.lay.columns, bytes);
  const Int8Finish f = finish_of(run, member);
  const FinishTaps finish = finish_taps_of(f);
  const int lanes = run.lay.vectors * kLanes, outputs = (s.output.width + walk.pixels - 1) / walk.pixels;
  const int width = walk.pixels > 1 ? walk.pixels * bytes : 64;  // of a block, in bytes
  alignas(64) std::int32_t sums[DepthwiseWalk::kOutputs * 4 * kLanes];
  for (int b = 0; 64 * b < task.out_count; ++b) {
    const std::uint8_t* const w = run.weights() + b * static_cast<std::ptrdiff_t>(plan.depthwise.uses.size()) * kDepthwiseBytes;
    const auto channel = [&](int j, int lane) {
      const int byte = block_byte(j, lane), p = 64 * b + (walk.pixels > 1 ? byte % bytes : byte);
      return byte < width && p < lanes ? p : -1;
    };
    DepthwiseBlock block{};
    for (int i = 0; i < 64; i += 4) {
      const int p = channel(i / kLanes, i % kLanes);
      if (p < 0) continue;
      std::memcpy(block.mul + i, f.mul + p, 16);
      std::memcpy(block.add + i, f.add + p, 16);
      std::memcpy(block.init + i, f.init + p, 16);
    }
    const int room = std::min(width, walk.pixels > 1 ? width : bytes - 64 * b);
    for (int y = y0; y < y1; ++y) {
      const std::uint8_t* const from = input + static_cast<std::int64_t>(y - y0) * s.stride_h * s.input.pitch() * bytes + 64 * b;
      std::uint8_t* const to = task.output + (s.output.origin() + static_cast<std::int64_t>(y) * s.output.pitch()) * bytes + 64 * b;
      for (int x0 = 0; x0 < outputs; x0 += walk.longest) {
        const int count = std::min(walk.longest, outputs - x0);
        walk.bring(from + static_cast<std::int64_t>(x0) * walk.step * bytes, count);
        for (int i = 0; i < count; i += DepthwiseWalk::kOutputs) {
          const int some = std::min(DepthwiseWalk::kOutputs, count - i);
          walk.multiply(w, block, i, some, sums);
          // The last block of a row may have fewer pixels.
          const int left = s.output.width - (x0 + i + some - 1) * walk.pixels;
          const int whole = left < walk.pixels ? some - 1 : some;
          std::uint8_t* const target = to + static_cast<std::int64_t>(x0 + i) * walk.pixels * bytes;
          const std::ptrdiff_t apart = static_cast<std::ptrdiff_t>(walk.pixels) * bytes;
          finish(f, block, sums, whole, target, apart, first_bytes(room));
          if (whole < some)
            finish(f, block, sums + whole * 4 * kLanes, 1, target + whole * apart, apart, first_bytes(left * bytes));
        }
      }
    }
    for (int i = 0; i < 64; ++i) {
      const int p = channel(i / kLanes, i % kLanes);
      if (p >= 0) f.sums[p] += block.totals[i];
    }
  }
}
#endif
