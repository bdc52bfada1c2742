// Operations on quantised maps (maps.h).

// 16 channels of a pixel in the order of a result's list.
PENSTOCK_INLINE Byte16 spread_block(const Spread& spread, const std::uint8_t* pixel, int block) {
  Byte16 codes;
  if (spread.starts[block] >= 0) {
    codes = shuffle(pixel + spread.starts[block], spread.masks + 16 * block);
  } else {
    std::uint8_t some[16];
    for (int k = 0; k < 16; ++k) {
      const std::int32_t place = spread.places[16 * block + k];
      some[k] = place < 0 ? std::uint8_t{0} : pixel[place];
    }
    codes = load<Byte16>(some);
  }
  return codes | load<Byte16>(spread.fills + 16 * block);
}

template <Ending kEnding>
static void combine_as(const Combination& c, const Int8Finish& f, int y0, int y1) {
  const Int zero_a = Int{} + c.a.zero, zero_b = Int{} + c.b.zero, zero = Int{} + f.zero;
  for (int block = 0; 16 * block < c.count; ++block) {
    const int room = std::min(16, c.count - 16 * block);
    for (int y = y0; y < y1; ++y) {
      const std::uint8_t* a = c.a.data + (c.a.shape.origin() + static_cast<std::int64_t>(y) * c.a.shape.pitch()) * c.a.bytes;
      const std::uint8_t* b =
          c.b.data ? c.b.data + (c.b.shape.origin() + static_cast<std::int64_t>(y) * c.b.shape.pitch()) * c.b.bytes : nullptr;
      std::uint8_t* to = c.to + (c.shape.origin() + static_cast<std::int64_t>(y) * c.shape.pitch()) * c.bytes + 16 * block;
      Int total[16 / kLanes] = {};
      for (int x = 0; x < c.shape.width; ++x, a += c.a.bytes, to += c.bytes) {
        const Byte16 codes = spread_block(*c.spread_a, a, block);
        Byte16 more{};
        if (b) {
          more = spread_block(*c.spread_b, b, block);
          b += c.b.bytes;
        }
#pragma GCC unroll 2
        for (int lane = 0; lane < 16; lane += kLanes) {
          const int p = 16 * block + lane;
          Vec value = to_float(codes_at(codes, lane) - zero_a) * load(c.first + p);
          if (b) value = value + to_float(codes_at(more, lane) - zero_b) * load(c.second + p);
          if (c.shift) value = value + load(c.shift + p);
          const Int v = quantise<kEnding>(f, value), made = v + zero;
          total[lane / kLanes] += kEnding == Ending::rectified ? v : magnitude(v);
          // Straight to the map: a load of 16 bytes just after two stores of 8 would wait for both.
          if (room == 16) store_codes(to + lane, made);
          else if (lane < room) store_room(to + lane, made, room - lane);
        }
      }
      if (c.sums == nullptr) continue;
      for (int lane = 0; lane < 16; lane += kLanes) {
        std::int32_t* const sums = c.sums + 16 * block + lane;
        store(sums, load<Int>(sums) + total[lane / kLanes]);
      }
    }
  }
}

#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
// One summand of some vectors of channels: where its codes lie in a pixel, and its factors.
template <int kVectors>
struct Picked {
  std::ptrdiff_t starts[kVectors];
  Int index[kVectors], zero[kVectors];  // a channel that is not stored counts as 0
  Vec factors[kVectors];

  Picked(const CodeMap& map, const Spread& spread, const float* all, int p) {
    for (int j = 0; j < kVectors; ++j, p += kLanes) {
      starts[j] = spread.starts[p / 16];
      index[j] = pick_index(spread.masks + p);
      zero[j] = map.zero - load_codes(spread.fills + p);
      factors[j] = load(all + p);
    }
  }
  __attribute__((always_inline)) Vec operator()(const std::uint8_t* pixel, int j) const {
    return to_float(pick_codes(pixel + starts[j], index[j]) - zero[j]) * factors[j];
  }
};

// Sums of two maps, or a map times factors, without a shift, for functions that are a clamp: channels [p, p + kVectors * kLanes) of rows
// [y0, y1).
template <Ending kEnding, int kVectors, bool kTwo>
static void add_maps(const Combination& c, const Int8Finish& f, int p, int y0, int y1) {
  const CodeMap& other = kTwo ? c.b : c.a;
  const Picked<kVectors> first(c.a, *c.spread_a, c.first, p),
      second(other, kTwo ? *c.spread_b : *c.spread_a, kTwo ? c.second : c.first, p);
  const WordEnding<kEnding> end(f);
  const int room = c.count - p;
  for (int y = y0; y < y1; ++y) {
    const auto row = [y](Planes shape, int bytes) {
      return (shape.origin() + static_cast<std::int64_t>(y) * shape.pitch()) * bytes;
    };
    const std::uint8_t *a = c.a.data + row(c.a.shape, c.a.bytes), *b = other.data + row(other.shape, other.bytes);
    std::uint8_t* to = c.to + row(c.shape, c.bytes) + p;
    for (int x0 = 0; x0 < c.shape.width; x0 += kWordPixels) {
      Half total = Half{};
      for (int n = std::min(kWordPixels, c.shape.width - x0); n > 0; --n, a += c.a.bytes, b += other.bytes, to += c.bytes) {
        Int whole[2] = {};
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) whole[j] = to_whole(kTwo ? first(a, j) + second(b, j) : first(a, j));
        const Half words = end(join_words(whole[0], whole[1]), total);
        store_words<kVectors>(to, &words, room);
      }
      if (c.sums) add_words<kVectors>(&total, c.sums + p);
    }
  }
}

template <Ending kEnding, bool kTwo>
static void add_all(const Combination& c, const Int8Finish& f, int y0, int y1) {
  // Some rows at a time, which stay in L1 while all channels pass.
  constexpr int kBytes = 8 << 10;
  const int rows = std::max(1, kBytes / (c.shape.pitch() * c.bytes));
  for (int y = y0; y < y1; y += rows)
    for (int p = 0; p < c.count; p += 2 * kLanes)
      (c.count - p > kLanes ? add_maps<kEnding, 2, kTwo> : add_maps<kEnding, 1, kTwo>)(c, f, p, y, std::min(y1, y + rows));
}

// Whether add_all() can compute it.
static bool adds_maps(const Combination& c, const Int8Finish& f) {
  const bool two = c.b.data != nullptr;
  if (c.shift || ending_of(f) == Ending::shaped) return false;
  for (int block = 0; 16 * block < c.count; ++block)
    if (c.spread_a->starts[block] < 0 || (two && c.spread_b->starts[block] < 0)) return false;
  const BoundTerm terms[] = {{c.first, 255.0f}, {c.second, 255.0f}};
  return stays_whole(terms, two ? 2 : 1, (c.count + 15) / 16 * 16 / kLanes);
}
#endif

static void combine(const Combination& c, int y0, int y1) {
  Int8Finish f;
  set_limits(f, c.function, c.slope, c.out);
  const Ending ending = ending_of(f);
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
  if (adds_maps(c, f)) {
    if (c.b.data)
      return (ending == Ending::rectified ? add_all<Ending::rectified, true> : add_all<Ending::clamped, true>)(c, f, y0, y1);
    return (ending == Ending::rectified ? add_all<Ending::rectified, false> : add_all<Ending::clamped, false>)(c, f, y0, y1);
  }
#endif
  switch (ending) {
    case Ending::rectified: return combine_as<Ending::rectified>(c, f, y0, y1);
    case Ending::clamped: return combine_as<Ending::clamped>(c, f, y0, y1);
    default: return combine_as<Ending::shaped>(c, f, y0, y1);
  }
}

// The first `count` of a vector's bytes.
template <typename Bytes>
PENSTOCK_INLINE void store_first(std::uint8_t* to, const Bytes& codes, int count) {
#if defined(PENSTOCK_VEC_AVX512)
  if constexpr (sizeof codes == 64) return _mm512_mask_storeu_epi8(to, (1ull << count) - 1, (__m512i)codes);
#endif
  std::memcpy(to, &codes, static_cast<std::size_t>(count));
}

// The largest codes of one window, a vector of channels at a time; the zero point's where no pixel lies inside the image.
PENSTOCK_INLINE void largest_codes(const CodeMap& in, int count, const PoolShape& s, const PoolWindow& window, std::uint8_t* to,
                                   int bytes) {
  const std::ptrdiff_t down = static_cast<std::ptrdiff_t>(s.dilation_h) * in.shape.pitch() * in.bytes;
  const std::ptrdiff_t across = static_cast<std::ptrdiff_t>(s.dilation_w) * in.bytes;
  const std::uint8_t* const corner =
      in.data +
      (in.shape.origin() + static_cast<std::int64_t>(window.down.begin) * in.shape.pitch() + window.across.begin) * in.bytes;
  const auto largest = [&](auto most, int p) {
    std::memset(&most, window.empty() ? in.zero : 0, sizeof most);
    const std::uint8_t* row = corner + p;
    for (int y = window.down.begin; y < window.down.end; y += s.dilation_h, row += down) {
      const std::uint8_t* at = row;
      for (int x = window.across.begin; x < window.across.end; x += s.dilation_w, at += across)
        most = larger_codes(load<decltype(most)>(at), most);
    }
    const int size = static_cast<int>(sizeof most);
    if (bytes - p >= size) store(to + p, most);
    else store_first(to + p, most, bytes - p);
    return size;
  };
  for (int p = 0; p < count;) p += count - p > 16 ? largest(Codes{}, p) : largest(Byte16{}, p);
}

static void pool_codes(const CodeMap& in, int count, const PoolShape& s, Pool kind, std::uint8_t* to, int bytes, Planes shape,
                       int y0, int y1) {
  for (int y = y0; y < y1; ++y)
    for (int x = 0; x < shape.width; ++x) {
      std::uint8_t* const target = to + (shape.origin() + static_cast<std::int64_t>(y) * shape.pitch() + x) * bytes;
      const PoolWindow window = pool_window(s, in.shape.height, in.shape.width, y * s.stride_h - s.pad_h, x * s.stride_w - s.pad_w);
      if (kind == Pool::max) {
        largest_codes(in, count, s, window, target, bytes);
        continue;
      }
      const float share = 1.0f / static_cast<float>(std::max(1, window.divisor(s)));
      const Vec low = splat(static_cast<float>(-in.zero)), high = splat(static_cast<float>(255 - in.zero));
      for (int p = 0; p < count; p += kLanes) {
        Int sum = Int{};
        for (int row = window.down.begin; row < window.down.end; row += s.dilation_h)
          for (int column = window.across.begin; column < window.across.end; column += s.dilation_w)
            sum += load_codes(in.data +
                              (in.shape.origin() + static_cast<std::int64_t>(row) * in.shape.pitch() + column) * in.bytes + p) -
                   in.zero;
        store_room(target + p, to_whole(min(max(to_float(sum) * splat(share), low), high)) + in.zero, bytes - p);
      }
    }
}

// Sums of codes of channels [begin, end), as words of up to 128 pixels. kSigned: the zero point is not 0.
template <bool kSigned>
static void sum_plain(const CodeMap& in, int begin, int end, CodeSums* sums) {
  constexpr int kWords = 2 * kLanes, kMostPixels = 128;
  for (int p = begin; p < end; p += kWords) {
    std::int64_t total[kWords] = {}, sizes[kWords] = {};
    for (int y = 0; y < in.shape.height; ++y)
      for (int x0 = 0; x0 < in.shape.width; x0 += kMostPixels) {
        const std::uint8_t* at =
            in.data + (in.shape.origin() + static_cast<std::int64_t>(y) * in.shape.pitch() + x0) * in.bytes + p;
        Half words = Half{}, size = Half{};
        for (int n = std::min(kMostPixels, in.shape.width - x0); n > 0; --n, at += in.bytes) {
          const Half v = kSigned ? widen_codes(at) - static_cast<std::int16_t>(in.zero) : widen_codes(at);
          words += v;
          if constexpr (kSigned) size += v > 0 ? v : -v;
        }
        for (int i = 0; i < kWords; ++i) total[i] += words[i];
        for (int i = 0; kSigned && i < kWords; ++i) sizes[i] += size[i];
      }
    for (int i = 0; i < kWords && p + i < end; ++i) {
      sums[p + i] = CodeSums{};
      sums[p + i].sum = total[i];
      sums[p + i].magnitude = kSigned ? sizes[i] : total[i];
    }
  }
}

// Sums of an image, whose pixels have no bytes between them: kLanes pixels are as many vectors as there are channels.
template <int kChannels>
static void sum_image(const CodeMap& in, CodeSums* sums) {
  std::fill(sums, sums + kChannels, CodeSums{});
  const auto add = [&](int channel, int sum, int size) {
    sums[channel].sum += sum;
    sums[channel].magnitude += size;
  };
  const int rows = std::max(1, (1 << 20) / in.shape.width);  // whose sums fit int32
  for (int y0 = 0; y0 < in.shape.height; y0 += rows) {
    Int sum[kChannels] = {}, size[kChannels] = {};
    for (int y = y0; y < std::min(in.shape.height, y0 + rows); ++y) {
      const std::uint8_t* const row = in.data + (in.shape.origin() + static_cast<std::int64_t>(y) * in.shape.pitch()) * kChannels;
      int x = 0;
      for (; x + kLanes <= in.shape.width; x += kLanes)
        for (int k = 0; k < kChannels; ++k) {
          const Int v = load_codes(row + x * kChannels + k * kLanes) - in.zero;
          sum[k] += v;
          size[k] += magnitude(v);
        }
      for (int i = x * kChannels; i < in.shape.width * kChannels; ++i)
        add(i % kChannels, row[i] - in.zero, std::abs(row[i] - in.zero));
    }
    for (int i = 0; i < kChannels * kLanes; ++i) add(i % kChannels, sum[i / kLanes][i % kLanes], size[i / kLanes][i % kLanes]);
  }
}

static void sum_codes(const CodeMap& in, int begin, int end, bool only_sums, CodeSums* sums) {
  if (only_sums && in.bytes == 3 && begin == 0 && end == 3) return sum_image<3>(in, sums);
  if (only_sums) return (in.zero == 0 ? sum_plain<false> : sum_plain<true>)(in, begin, end, sums);
  for (int p = begin; p < end; p += kLanes) {
    CodeSums some[kLanes];
    for (int y = 0; y < in.shape.height; ++y) {
      // A row has at most 2^16 pixels: sums of codes fit int32, squares only 2^15 pixels at a time.
      for (int x0 = 0; x0 < in.shape.width; x0 += 1 << 14) {
        Int sum = Int{}, size = Int{}, squares = Int{}, most = Int{};
        const std::uint8_t* at =
            in.data + (in.shape.origin() + static_cast<std::int64_t>(y) * in.shape.pitch() + x0) * in.bytes + p;
        for (int x = x0; x < std::min(in.shape.width, x0 + (1 << 14)); ++x, at += in.bytes) {
          const Int v = load_codes(at) - in.zero, m = magnitude(v);
          sum += v;
          size += m;
          squares += v * v;
          most = m > most ? m : most;
        }
        for (int i = 0; i < kLanes; ++i) {
          some[i].sum += sum[i];
          some[i].magnitude += size[i];
          some[i].squares += squares[i];
          some[i].most = std::max(some[i].most, static_cast<std::int32_t>(most[i]));
        }
      }
    }
    for (int i = 0; i < kLanes && p + i < end; ++i) sums[p + i] = some[i];
  }
}

// Codes of n floats, which need not be a whole vector. `bad` is no longer 0 when one is beyond far_limit(), or is not a number.
PENSTOCK_INLINE void quantise_row(const float* from, int n, Quantised out, std::uint8_t* to, Int& bad) {
  const Vec inverse = splat(1.0f / out.scale), low = splat(static_cast<float>(-out.zero)),
            high = splat(static_cast<float>(255 - out.zero));
  // Magnitudes compare as their bits do, and the bits of infinity and NaN are larger than any.
  const Int far = (Int)splat(far_limit(out));
  const auto codes = [&](Vec v) {
    bad |= (Int)((Int)magnitude(v) > far);
    return to_whole(min(max(v * inverse, low), high)) + out.zero;
  };
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_codes(to + i, codes(load(from + i)));
  if (i < n) {
    float some[kLanes] = {};
    std::memcpy(some, from + i, sizeof(float) * static_cast<std::size_t>(n - i));
    // Under the sanitizers GCC 12 warns that this copy may begin before the buffer (array-bounds, for AVX2). That would take an i below
    // 0, and i counts up from 0.
    store_room(to + i, codes(load(some)), n - i);
  }
}

PENSTOCK_INLINE bool none(Int bad) {
  for (int i = 0; i < kLanes; ++i)
    if (bad[i]) return false;
  return true;
}

// Images of 3 channels, 16 pixels at a time; what is left of a row is done again from its end.
static bool import_three(const float* image, Quantised out, std::uint8_t* to, Planes shape) {
  // Byte i of the 48 comes from channel i % 3, pixel i / 3.
  alignas(16) std::uint8_t index[3][3][16];
  for (int i = 0; i < 48; ++i)
    for (int c = 0; c < 3; ++c) index[c][i / 16][i % 16] = i % 3 == c ? static_cast<std::uint8_t>(i / 3) : std::uint8_t{0x80};
  Int bad = Int{};
  const std::int64_t plane = static_cast<std::int64_t>(shape.height) * shape.width;
  for (int y = 0; y < shape.height; ++y)
    for (int x0 = 0; x0 < shape.width; x0 += 16) {
      const int x = std::min(x0, shape.width - 16);
      alignas(16) std::uint8_t codes[3][16];
      for (int c = 0; c < 3; ++c)
        quantise_row(image + c * plane + static_cast<std::int64_t>(y) * shape.width + x, 16, out, codes[c], bad);
      std::uint8_t* const target = to + (shape.origin() + static_cast<std::int64_t>(y) * shape.pitch() + x) * 3;
      for (int part = 0; part < 3; ++part)
        store(target + 16 * part,
              shuffle(codes[0], index[0][part]) | shuffle(codes[1], index[1][part]) | shuffle(codes[2], index[2][part]));
    }
  return none(bad);
}

static bool import_codes(const float* image, int channels, Quantised out, std::uint8_t* to, int bytes, Planes shape) {
  if (channels == 3 && bytes == 3 && shape.width >= 16) return import_three(image, out, to, shape);
  constexpr int kRun = 256;
  std::uint8_t codes[kRun];
  Int bad = Int{};
  for (int c = 0; c < channels; ++c)
    for (int y = 0; y < shape.height; ++y)
      for (int x0 = 0; x0 < shape.width; x0 += kRun) {
        const int n = std::min(kRun, shape.width - x0);
        quantise_row(image + (static_cast<std::int64_t>(c) * shape.height + y) * shape.width + x0, n, out, codes, bad);
        std::uint8_t* const target = to + (shape.origin() + static_cast<std::int64_t>(y) * shape.pitch() + x0) * bytes + c;
        for (int x = 0; x < n; ++x) target[static_cast<std::int64_t>(x) * bytes] = codes[x];
      }
  return none(bad);
}

static void codes_to_floats(const std::uint8_t* row, int bytes, int pixels, int count, Quantised in, float* to, std::int64_t step) {
  for (int x = 0; x < pixels; ++x)
    for (int p = 0; p < count; ++p)
      to[p * step + x] = static_cast<float>(row[static_cast<std::int64_t>(x) * bytes + p] - in.zero) * in.scale;
}

static bool floats_to_codes(const float* from, std::int64_t step, int pixels, int count, Quantised out, std::uint8_t* row,
                            int bytes) {
  constexpr int kRun = 256;
  std::uint8_t codes[kRun];
  Int bad = Int{};
  for (int p = 0; p < count; ++p)
    for (int x0 = 0; x0 < pixels; x0 += kRun) {
      const int n = std::min(kRun, pixels - x0);
      quantise_row(from + p * step + x0, n, out, codes, bad);
      for (int x = 0; x < n; ++x) row[static_cast<std::int64_t>(x0 + x) * bytes + p] = codes[x];
    }
  return none(bad);
}
