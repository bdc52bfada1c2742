// The register block of direct.inl for NEON: products by an element of a vector, so that 16 bytes of a pixel are loaded at once.
//
// Words: smlal and smlal2. Bytes with dot products (PENSTOCK_VEC_DOT): sdot, on codes less 128, which direct() makes up for. Bytes with
// matrix products (PENSTOCK_VEC_MATRIX): usmmla, 2 pixels x 2 outputs x 8 inputs each.

// Weights of the next element are not loaded before this. GCC would otherwise load those of all elements first and spill sums.
PENSTOCK_INLINE void next_element() { __asm__ volatile("" ::: "memory"); }

#if defined(PENSTOCK_VEC_MATRIX)

// One step of 8 inputs: acc[i][k] += pixels 2i, 2i+1 times outputs 2k, 2k+1.
template <int kVectors, int kPixels>
static void multiply_bytes(const std::uint8_t* w, const std::uint8_t* const* pixels, const std::ptrdiff_t* taps, int tap_count,
                           int groups, std::int32_t* sums) {
  constexpr int kTwos = (kPixels + 1) / 2;
  int32x4_t acc[kTwos][2 * kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kTwos; ++i)
#pragma GCC unroll 8
    for (int k = 0; k < 2 * kVectors; ++k) acc[i][k] = vdupq_n_s32(0);
  const std::uint8_t* at[2 * kTwos];
#pragma GCC unroll 8
  for (int p = 0; p < 2 * kTwos; ++p) at[p] = pixels[p < kPixels ? p : kPixels - 1];
  for (int t = 0; t < tap_count; ++t) {
    const std::ptrdiff_t first = taps[t], last = first + 8 * static_cast<std::ptrdiff_t>(groups);
    for (std::ptrdiff_t g = first; g < last; g += 8, w += kVectors * 32) {
      uint8x16_t u[kTwos];
#pragma GCC unroll 4
      for (int i = 0; i < kTwos; ++i) u[i] = vcombine_u8(vld1_u8(at[2 * i] + g), vld1_u8(at[2 * i + 1] + g));
#pragma GCC unroll 8
      for (int k = 0; k < 2 * kVectors; ++k) {
        if (k % 2 == 0) next_element();
        const int8x16_t s = vreinterpretq_s8_u8(vld1q_u8(w + 16 * k));
#pragma GCC unroll 4
        for (int i = 0; i < kTwos; ++i) acc[i][k] = vusmmlaq_s32(acc[i][k], u[i], s);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const int64x2_t a = vreinterpretq_s64_s32(acc[p / 2][2 * j]), b = vreinterpretq_s64_s32(acc[p / 2][2 * j + 1]);
      store(sums + (p * kVectors + j) * kLanes, p % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
    }
}

#elif defined(PENSTOCK_VEC_DOT)

// 4 inputs of element kElement of each pixel's 16 bytes.
template <int kElement, int kVectors, int kPixels>
PENSTOCK_INLINE void dot_element(int32x4_t (&acc)[kPixels][kVectors], const std::uint8_t* w, const int8x16_t (&u)[kPixels]) {
  next_element();
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const int8x16_t s = vreinterpretq_s8_u8(vld1q_u8(w + j * kVectorBytes));
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) acc[p][j] = vdotq_laneq_s32(acc[p][j], s, u[p], kElement);
  }
}

template <int kVectors, int kPixels>
static void multiply_bytes(const std::uint8_t* w, const std::uint8_t* const* pixels, const std::ptrdiff_t* taps, int tap_count,
                           int groups, std::int32_t* sums) {
  constexpr int kStep = kVectors * kVectorBytes;
  int32x4_t acc[kPixels][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) acc[p][j] = vdupq_n_s32(0);
  const uint8x16_t flip = vdupq_n_u8(0x80);
  const std::uint8_t* at[kPixels];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) at[p] = pixels[p];
  for (int t = 0; t < tap_count; ++t) {
    std::ptrdiff_t g = taps[t];
    const std::ptrdiff_t last = g + 4 * static_cast<std::ptrdiff_t>(groups);
    int8x16_t u[kPixels];
    for (; g + 16 <= last; g += 16, w += 4 * kStep) {
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) u[p] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(at[p] + g), flip));
      dot_element<0>(acc, w, u);
      dot_element<1>(acc, w + kStep, u);
      dot_element<2>(acc, w + 2 * kStep, u);
      dot_element<3>(acc, w + 3 * kStep, u);
    }
    for (; g < last; g += 4, w += kStep) {
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p)
        u[p] = vreinterpretq_s8_u8(veorq_u8(vcombine_u8(load_four(at[p] + g), load_four(at[p] + g)), flip));
      dot_element<0>(acc, w, u);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(sums + (p * kVectors + j) * kLanes, acc[p][j]);
}

// What the sums of multiply_bytes lack: 128 times the weights of each output.
PENSTOCK_INLINE void sum_weights(const std::uint8_t* w, std::int64_t steps, int vectors, Int* to) {
  for (int j = 0; j < vectors; ++j) to[j] = Int{};
  const int8x16_t ones = vdupq_n_s8(1);
  for (std::int64_t i = 0; i < steps; ++i)
    for (int j = 0; j < vectors; ++j, w += kVectorBytes)
      to[j] = (Int)vdotq_s32((int32x4_t)to[j], vreinterpretq_s8_u8(vld1q_u8(w)), ones);
  for (int j = 0; j < vectors; ++j) to[j] = (Int)((Mod)to[j] << 7);
}

#endif

// Pair kElement of each pixel's 8 words.
template <int kElement, int kVectors, int kPixels>
PENSTOCK_INLINE void multiply_element(int32x4_t (&acc)[kPixels][kVectors], const std::uint8_t* w, const int16x8_t (&u)[kPixels]) {
  next_element();
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const int16x8_t s = vreinterpretq_s16_u8(vld1q_u8(w + j * kVectorBytes));
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
      acc[p][j] = vmlal_laneq_s16(acc[p][j], vget_low_s16(s), u[p], 2 * kElement);
      acc[p][j] = vmlal_high_laneq_s16(acc[p][j], s, u[p], 2 * kElement + 1);
    }
  }
}

template <int kVectors, int kPixels>
static void multiply_words(const std::uint8_t* w, const std::uint8_t* const* pixels, const std::ptrdiff_t* taps, int tap_count,
                           int groups, std::int32_t* sums) {
  constexpr int kStep = kVectors * kVectorBytes;
  int32x4_t acc[kPixels][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) acc[p][j] = vdupq_n_s32(0);
  const std::uint8_t* at[kPixels];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) at[p] = pixels[p];
  for (int t = 0; t < tap_count; ++t) {
    std::ptrdiff_t g = taps[t];
    const std::ptrdiff_t last = g + 4 * static_cast<std::ptrdiff_t>(groups);
    int16x8_t u[kPixels];
    for (; g + 16 <= last; g += 16, w += 4 * kStep) {
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) u[p] = vreinterpretq_s16_u8(vld1q_u8(at[p] + g));
      multiply_element<0>(acc, w, u);
      multiply_element<1>(acc, w + kStep, u);
      multiply_element<2>(acc, w + 2 * kStep, u);
      multiply_element<3>(acc, w + 3 * kStep, u);
    }
    for (; g < last; g += 4, w += kStep) {
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) u[p] = vreinterpretq_s16_u8(vcombine_u8(load_four(at[p] + g), load_four(at[p] + g)));
      multiply_element<0>(acc, w, u);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(sums + (p * kVectors + j) * kLanes, acc[p][j]);
}

template <bool kQuads, int kVectors, int kPixels>
static void multiply(const std::uint8_t* w, const std::uint8_t* const* pixels, const std::ptrdiff_t* taps, int tap_count,
                     int groups, std::int32_t* sums, Int8Lines) {
#if defined(PENSTOCK_VEC_DOT) || defined(PENSTOCK_VEC_MATRIX)
  if constexpr (kQuads) return multiply_bytes<kVectors, kPixels>(w, pixels, taps, tap_count, groups, sums);
#endif
  multiply_words<kVectors, kPixels>(w, pixels, taps, tap_count, groups, sums);
}
