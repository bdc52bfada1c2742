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

// What the function asks for besides the clamp to [low, high]. rectified: nothing, and no code is below the zero point. clamped:
// nothing. shaped: its own formula.
enum class Ending { rectified, clamped, shaped };

PENSTOCK_INLINE Ending ending_of(const Int8Finish& f) {
  const bool clamp = f.function == Function::none || f.function == Function::relu || f.function == Function::relu6;
  return !clamp ? Ending::shaped : f.low >= 0.0f ? Ending::rectified : Ending::clamped;
}

// From y to q - zero, where q is its code.
template <Ending kEnding>
PENSTOCK_INLINE Int quantise(const Int8Finish& f, Vec y) {
  if constexpr (kEnding == Ending::shaped) {
    if (f.function == Function::leaky_relu) y = choose((Int)(y < splat(0.0f)), y * splat(f.slope), y);
    else y = curve(f.function, y) * splat(f.inverse);
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
// As finish_block below, for functions that are a clamp.
template <Ending kEnding, bool kInit, int kVectors>
static void finish_pixels(const Int8Finish& f, int vector, const std::int32_t* sums, int count, std::uint8_t* const* targets,
                          std::ptrdiff_t offset, int room) {
  Vec mul[kVectors], add[kVectors];
  Int total[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    mul[j] = load(f.mul + (vector + j) * kLanes);
    add[j] = load(f.add + (vector + j) * kLanes);
    total[j] = load<Int>(f.sums + (vector + j) * kLanes);
  }
  const Int zero = Int{} + f.zero;
  for (int i = 0; i < count; ++i, sums += kVectors * kLanes) {
    Int codes[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      Int sum = load<Int>(sums + j * kLanes);
      if constexpr (kInit) sum += load<Int>(f.init + (vector + j) * kLanes);
      const Int v = quantise<kEnding>(f, to_float(sum) * mul[j] + add[j]);
      total[j] += kEnding == Ending::rectified ? v : magnitude(v);
      codes[j] = v + zero;
    }
    store_codes<kVectors>(targets[i] + offset, codes, room);
  }
  for (int j = 0; j < kVectors; ++j) store(f.sums + (vector + j) * kLanes, total[j]);
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
#endif

// Finishes the sums [pixel][vector] of `vectors` vectors of outputs and stores them at targets[i] + offset, where a pixel has
// `room` bytes left.
PENSTOCK_INLINE void finish_block(const Int8Finish& f, int vector, int vectors, const std::int32_t* sums, int count,
                                  std::uint8_t* const* targets, std::ptrdiff_t offset, int room) {
#if defined(PENSTOCK_VEC_AVX2) || defined(PENSTOCK_VEC_AVX512)
  const Ending ending = ending_of(f);
  if (ending != Ending::shaped) {
    const FinishPixels run = ending == Ending::rectified ? (f.has_init ? finish_pixels_of<Ending::rectified, true>(vectors)
                                                                       : finish_pixels_of<Ending::rectified, false>(vectors))
                                                         : (f.has_init ? finish_pixels_of<Ending::clamped, true>(vectors)
                                                                       : finish_pixels_of<Ending::clamped, false>(vectors));
    return run(f, vector, sums, count, targets, offset, room);
  }
#endif
  for (int j = 0; j < vectors; ++j)
    finish_vector(f, vector + j, sums + j * kLanes, vectors * kLanes, count, targets, offset + j * kLanes, room - j * kLanes);
}
