#include "api/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace penstock {
namespace {

constexpr std::uint32_t kPolynomial = 0xEDB88320u;
constexpr std::size_t kSlices = 8;
using Table = std::array<std::array<std::uint32_t, 256>, kSlices>;

// table[s][b]: what byte b does to the checksum when s more bytes follow it.
constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? kPolynomial : 0);
    table[0][byte] = rest;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = table[slice - 1][byte];
      table[slice][byte] = (before >> 8) ^ table[0][before & 255];
    }
  return table;
}
constexpr Table kTable = make_table();

// The state is the checksum with all bits inverted, as in every step below.
std::uint32_t by_table(const unsigned char* bytes, std::size_t size, std::uint32_t state) {
  for (; size >= kSlices; bytes += kSlices, size -= kSlices) {
    std::uint32_t low, high;
    std::memcpy(&low, bytes, 4);
    std::memcpy(&high, bytes + 4, 4);
    low ^= state;
    state = kTable[7][low & 255] ^ kTable[6][low >> 8 & 255] ^ kTable[5][low >> 16 & 255] ^ kTable[4][low >> 24] ^
            kTable[3][high & 255] ^ kTable[2][high >> 8 & 255] ^ kTable[1][high >> 16 & 255] ^ kTable[0][high >> 24];
  }
  for (; size > 0; ++bytes, --size) state = (state >> 8) ^ kTable[0][(state ^ *bytes) & 255];
  return state;
}

#if defined(__x86_64__)
bool has_fast() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

__attribute__((target("pclmul,sse4.1"))) inline __m128i folded(__m128i sum, __m128i factors, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(sum, factors, 0x00), high = _mm_clmulepi64_si128(sum, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Carry-less multiplication folds 64 bytes at a time: Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ" (Intel, 2009), with that paper's constants for this polynomial. size: at least 64 and a multiple of 16.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t fast(const unsigned char* bytes, std::size_t size, std::uint32_t state) {
  const auto load = [](const unsigned char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  __m128i sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = load(bytes + 16 * i);
  sum[0] = _mm_xor_si128(sum[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  bytes += 64;
  size -= 64;
  const __m128i by64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  for (; size >= 64; bytes += 64, size -= 64)
    for (int i = 0; i < 4; ++i) sum[i] = folded(sum[i], by64, load(bytes + 16 * i));
  __m128i one = sum[0];
  for (int i = 1; i < 4; ++i) one = folded(one, by16, sum[i]);
  for (; size >= 16; bytes += 16, size -= 16) one = folded(one, by16, load(bytes));
  // 128 bits to 64, then Barrett's reduction to 32.
  const __m128i words = _mm_setr_epi32(-1, 0, -1, 0);
  one = _mm_xor_si128(_mm_srli_si128(one, 8), _mm_clmulepi64_si128(one, by16, 0x10));
  one =
      _mm_xor_si128(_mm_srli_si128(one, 4), _mm_clmulepi64_si128(_mm_and_si128(one, words), _mm_set_epi64x(0, 0x0163cd6124), 0x00));
  const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(one, words), polynomial, 0x10), words);
  one = _mm_xor_si128(one, _mm_clmulepi64_si128(quotient, polynomial, 0x00));
  return static_cast<std::uint32_t>(_mm_extract_epi32(one, 1));
}
#elif defined(__aarch64__) && defined(__linux__)
bool has_fast() {
  constexpr unsigned long kCrc32 = 1 << 7;  // HWCAP_CRC32
  return (getauxval(AT_HWCAP) & kCrc32) != 0;
}

__attribute__((target("+crc"))) std::uint32_t fast(const unsigned char* bytes, std::size_t size, std::uint32_t state) {
  for (; size >= 8; bytes += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    state = __crc32d(state, word);
  }
  return state;
}
#else
bool has_fast() { return false; }
std::uint32_t fast(const unsigned char*, std::size_t, std::uint32_t state) { return state; }
#endif

// Of two polynomials modulo that of the checksum. The highest bit stands for 1, the next one for x.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

}  // namespace

std::uint32_t crc32(const unsigned char* bytes, std::size_t size, std::uint32_t before) {
  std::uint32_t state = ~before;
  if (size >= 64 && has_fast()) {
    const std::size_t part = size / 16 * 16;
    state = fast(bytes, part, state);
    bytes += part;
    size -= part;
  }
  return ~by_table(bytes, size, state);
}

// Bytes that follow multiply the first part's checksum by x^8 each.
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::size_t second_size) {
  std::uint32_t power = 1u << 31, square = 1u << 23;  // 1 and x^8
  for (std::size_t size = second_size; size != 0; size >>= 1, square = multiply(square, square))
    if (size & 1) power = multiply(power, square);
  return multiply(power, first) ^ second;
}

}  // namespace penstock
