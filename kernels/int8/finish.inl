// The end of a convolution: int32 sums to codes, and the sums of codes that the next gate will ask for.

// Functions that are more than a clamp.
PENSTOCK_INLINE Vec curve(Function f, Vec v) {
  switch (f) {
    case Function::silu: return v * (splat(1.0f) / (splat(1.0f) + exponential(-v)));
    case Function::gelu: return splat(0.5f) * v * (splat(1.0f) + error_function(v * splat(0.70710678f)));
    case Function::hardswish: return v * min(max(v + splat(3.0f), splat(0.0f)), splat(6.0f)) * splat(1.0f / 6.0f);
    default: return v;
  }
}

// What the function needs besides the clamp to [low, high]: `clamped` nothing, `rectified` nothing either, and no code is below the
// zero point, `shaped` a formula of its own, and the others one that is known when compiling.
enum class Ending { rectified, clamped, shaped, silu, gelu, hardswish, leaky };

constexpr Function function_of(Ending ending) {
  return ending == Ending::silu        ? Function::silu
         : ending == Ending::gelu      ? Function::gelu
         : ending == Ending::hardswish ? Function::hardswish
                                       : Function::leaky_relu;
}

PENSTOCK_INLINE Ending ending_of(const Int8Finish& f) {
  const bool clamp = f.function == Function::none || f.function == Function::relu || f.function == Function::relu6;
  return !clamp ? Ending::shaped : f.low >= 0.0f ? Ending::rectified : Ending::clamped;
}

// From y to q - zero, where q is its code.
template <Ending kEnding>
PENSTOCK_INLINE Int quantise(const Int8Finish& f, Vec y) {
  if constexpr (kEnding >= Ending::shaped) {
    const Function function = kEnding == Ending::shaped ? f.function : function_of(kEnding);
    if (function == Function::leaky_relu) y = choose((Int)(y < splat(0.0f)), y * splat(f.slope), y);
    else y = curve(function, y) * splat(f.inverse);
  }
  return to_whole(min(max(y, splat(f.low)), splat(f.high)));
}

PENSTOCK_INLINE void store_room(std::uint8_t* to, Int codes, int room) {
  if (room >= kLanes) return store_codes(to, codes);
  std::uint8_t some[kLanes];
  store_codes(some, codes);
  std::memcpy(to, some, static_cast<std::size_t>(room));
}

template <Ending kEnding>
PENSTOCK_INLINE void finish_as(const Int8Finish& f, int vector, const std::int32_t* sums, std::ptrdiff_t step, int count,
                               std::uint8_t* const* targets, std::ptrdiff_t offset, int room) {
  const Vec mul = load(f.mul + vector * kLanes), add = load(f.add + vector * kLanes);
  const Int init = load<Int>(f.init + vector * kLanes), zero = Int{} + f.zero;
  Int total = load<Int>(f.sums + vector * kLanes);
  for (int i = 0; i < count; ++i) {
    const Int v = quantise<kEnding>(f, to_float(load<Int>(sums + i * step) + init) * mul + add);
    total += kEnding == Ending::rectified ? v : magnitude(v);
    store_room(targets[i] + offset, v + zero, room);
  }
  store(f.sums + vector * kLanes, total);
}

// Finishes `count` sums of one vector of outputs, `step` lanes apart, and stores them at targets[i] + offset.
PENSTOCK_INLINE void finish_vector(const Int8Finish& f, int vector, const std::int32_t* sums, std::ptrdiff_t step, int count,
                                   std::uint8_t* const* targets, std::ptrdiff_t offset, int room) {
  switch (ending_of(f)) {
    case Ending::rectified: return finish_as<Ending::rectified>(f, vector, sums, step, count, targets, offset, room);
    case Ending::clamped: return finish_as<Ending::clamped>(f, vector, sums, step, count, targets, offset, room);
    default: return finish_as<Ending::shaped>(f, vector, sums, step, count, targets, offset, room);
  }
}

#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
// Whether every result stays, before it is clamped, where rounding to whole numbers cannot overflow: then results may be rounded
// first and clamped as words. `terms` holds `count` pairs of a factor's array and the largest magnitude that it multiplies.
struct BoundTerm {
  const float* factors;
  float most;
};
PENSTOCK_INLINE bool stays_whole(const BoundTerm* terms, int count, int vectors) {
  // Magnitudes compare as their bits do, and the bits of infinity and NaN are larger than any.
  const Int limit = (Int)splat(1073741824.0f);
  Int bad = Int{};
  for (int v = 0; v < vectors; ++v) {
    Vec most = splat(0.0f);
    for (int t = 0; t < count; ++t) most = most + magnitude(load(terms[t].factors + v * kLanes)) * splat(terms[t].most);
    bad |= (Int)((Int)most >= limit);
  }
  for (int i = 0; i < kLanes; ++i)
    if (bad[i]) return false;
  return true;
}

// Rounded results as words, two vectors in each: clamped, summed, and turned into codes.
template <Ending kEnding>
struct WordEnding {
  const Half low, high, zero;
  explicit WordEnding(const Int8Finish& f)
      : low(splat_word(static_cast<int>(f.low))), high(splat_word(to_whole(splat(f.high))[0])), zero(splat_word(f.zero)) {}
  __attribute__((always_inline)) Half operator()(Half words, Half& total) const {
    const Half v = within(words, low, high);
    total += kEnding == Ending::rectified ? v : word_magnitudes(v);
    return v + zero;
  }
};
constexpr int kWordPixels = 256;  // whose sum a word without a sign holds

template <int kVectors>
PENSTOCK_INLINE void add_words(const Half* totals, std::int32_t* sums) {
  for (int j = 0; j < kVectors; ++j) {
    const Int total = j % 2 == 0 ? first_words(totals[j / 2]) : second_words(totals[j / 2]);
    store(sums + j * kLanes, load<Int>(sums + j * kLanes) + total);
  }
}

// Rounded results of a convolution: those of a clamp may be clamped later, as words (stays_whole).
template <Ending kEnding>
PENSTOCK_INLINE Int round_result(const Int8Finish& f, Vec y) {
  if constexpr (kEnding >= Ending::shaped) return quantise<kEnding>(f, y);
  else return to_whole(y);
}

// As finish_block below, for functions that are known when compiling.
template <Ending kEnding, bool kInit, int kVectors>
static void finish_pixels(const Int8Finish& f, int vector, const std::int32_t* sums, int count, std::uint8_t* const* targets,
                          std::ptrdiff_t offset, int room) {
  constexpr int kPairs = (kVectors + 1) / 2;
  Vec mul[kVectors], add[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    mul[j] = load(f.mul + (vector + j) * kLanes);
    add[j] = load(f.add + (vector + j) * kLanes);
  }
  const WordEnding<kEnding> end(f);
  for (int first = 0; first < count; first += kWordPixels) {
    Half totals[kPairs] = {};
    for (int i = first; i < std::min(count, first + kWordPixels); ++i, sums += kVectors * kLanes) {
      Int whole[2 * kPairs] = {};
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        Int sum = load<Int>(sums + j * kLanes);
        if constexpr (kInit) sum += load<Int>(f.init + (vector + j) * kLanes);
        whole[j] = round_result<kEnding>(f, to_float(sum) * mul[j] + add[j]);
      }
      Half words[kPairs];
#pragma GCC unroll 2
      for (int j = 0; j < kPairs; ++j) words[j] = end(join_words(whole[2 * j], whole[2 * j + 1]), totals[j]);
      store_words<kVectors>(targets[i] + offset, words, room);
    }
    add_words<kVectors>(totals, f.sums + vector * kLanes);
  }
}

using FinishPixels = void (*)(const Int8Finish&, int, const std::int32_t*, int, std::uint8_t* const*, std::ptrdiff_t, int);

template <Ending kEnding, bool kInit>
static FinishPixels finish_pixels_of(int vectors) {
#if defined(PENSTOCK_VEC_AVX512)
  if (vectors == 4) return finish_pixels<kEnding, kInit, 4>;
  if (vectors == 3) return finish_pixels<kEnding, kInit, 3>;
#endif
  return vectors == 2 ? finish_pixels<kEnding, kInit, 2> : finish_pixels<kEnding, kInit, 1>;
}

template <Ending kEnding>
static FinishPixels finish_pixels_of(bool init, int vectors) {
  return init ? finish_pixels_of<kEnding, true>(vectors) : finish_pixels_of<kEnding, false>(vectors);
}

// Null where results of a clamp may not stay whole numbers before it.
static FinishPixels finish_pixels_of(const Int8Finish& f, int vectors) {
  switch (f.function) {
    case Function::silu: return finish_pixels_of<Ending::silu, true>(vectors);
    case Function::gelu: return finish_pixels_of<Ending::gelu, true>(vectors);
    case Function::hardswish: return finish_pixels_of<Ending::hardswish, true>(vectors);
    case Function::leaky_relu: return finish_pixels_of<Ending::leaky, true>(vectors);
    default: break;
  }
  if (!f.stays_whole) return nullptr;
  return ending_of(f) == Ending::rectified ? finish_pixels_of<Ending::rectified>(f.has_init, vectors)
                                           : finish_pixels_of<Ending::clamped>(f.has_init, vectors);
}
#endif

// Finishes the sums [pixel][vector] of `vectors` vectors of outputs and stores them at targets[i] + offset, where a pixel has
// `room` bytes left.
PENSTOCK_INLINE void finish_block(const Int8Finish& f, int vector, int vectors, const std::int32_t* sums, int count,
                                  std::uint8_t* const* targets, std::ptrdiff_t offset, int room) {
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
  if (const FinishPixels run = finish_pixels_of(f, vectors)) return run(f, vector, sums, count, targets, offset, room);
#endif
  for (int j = 0; j < vectors; ++j)
    finish_vector(f, vector + j, sums + j * kLanes, vectors * kLanes, count, targets, offset + j * kLanes, room - j * kLanes);
}
