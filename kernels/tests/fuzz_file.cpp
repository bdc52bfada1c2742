// Compiled files with bytes changed at random: each must be refused, or run within bounds.
//
//     fuzz_file FILE.penstock [mutations] [seed]
//
// Most get a right checksum again, since a wrong one is refused at once. Meant to be built with AddressSanitizer and UBSan
// (`make sanitize`): a read or write out of bounds ends it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "api/checksum.h"
#include "api/model.h"

namespace {

using namespace penstock;
using Bytes = std::vector<unsigned char>;
using Random = std::mt19937_64;

template <typename T>
void put(Bytes& bytes, std::size_t at, T value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <typename T>
T get(const Bytes& bytes, std::size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// A number a little or much beside the old one.
std::uint64_t other_number(std::uint64_t value, Random& random) {
  static const std::uint64_t kOdd[] = {0,        1,        2,          7,          63,         64,    128,        255,       65535,
                                       1u << 20, 1u << 31, 1ull << 32, 1ull << 40, 1ull << 62, ~0ull, ~0ull >> 1, ~0ull - 63};
  switch (random() % 4) {
    case 0: return value + random() % 17 - 8;
    case 1: return value + 64 * (random() % 9 - 4);
    case 2: return kOdd[random() % (sizeof kOdd / sizeof *kOdd)];
    default: return value ^ (1ull << (random() % 64));
  }
}

void mutate(Bytes& bytes, Random& random) {
  constexpr std::size_t kHeader = 64, kEntry = 128;
  const std::size_t sections = std::min<std::size_t>(get<std::uint32_t>(bytes, 12), (bytes.size() - kHeader) / kEntry);
  const std::size_t entry = kHeader + kEntry * (sections > 0 ? random() % sections : 0);
  switch (random() % 8) {
    case 0:  // any byte
      bytes[random() % bytes.size()] ^= static_cast<unsigned char>(1u << random() % 8);
      break;
    case 1:  // a number of the header
      if (random() % 2) put(bytes, 12, static_cast<std::uint32_t>(other_number(get<std::uint32_t>(bytes, 12), random)));
      else put(bytes, 16, other_number(get<std::uint64_t>(bytes, 16), random));
      break;
    case 2: {  // a number of the table
      const std::size_t at = entry + 72 + 8 * (random() % 6);
      put(bytes, at, other_number(get<std::uint64_t>(bytes, at), random));
      break;
    }
    case 3:  // an element type or a number of axes
      put(bytes, entry + 64 + 4 * (random() % 2), static_cast<std::uint32_t>(random() % 9));
      break;
    case 4:  // the end
      // What is left after an earlier change may be shorter than what is taken away.
      bytes.resize(std::max<std::size_t>(
          kHeader, bytes.size() - std::min<std::size_t>(bytes.size(), random() % (random() % 4 ? 130 : bytes.size()))));
      if (random() % 2) put(bytes, 16, static_cast<std::uint64_t>(bytes.size()));
      break;
    case 5: {  // two entries change places, or one stands for another
      const std::size_t other = kHeader + kEntry * (sections > 0 ? random() % sections : 0);
      if (std::max(entry, other) + kEntry > bytes.size()) break;
      const std::size_t from = random() % 2 ? 0 : 64;  // with or without the name
      for (std::size_t i = from; i < kEntry; ++i) std::swap(bytes[entry + i], bytes[other + i]);
      break;
    }
    default: {  // a number inside a section
      const std::uint64_t offset = get<std::uint64_t>(bytes, entry + 104), size = get<std::uint64_t>(bytes, entry + 112);
      if (size < 8 || offset > bytes.size() || size > bytes.size() - offset) break;
      const std::size_t at = static_cast<std::size_t>(offset + random() % (size / 8) * 8);
      put(bytes, at, other_number(get<std::uint64_t>(bytes, at), random));
    }
  }
}

void seal(Bytes& bytes) { put(bytes, 24, crc32(bytes.data() + 32, bytes.size() - 32, crc32(bytes.data(), 24))); }

// True when the file's network ran.
bool try_file(const Bytes& bytes, Isa isa, int threads) {
  try {
    const Model model(File::copy(bytes.data(), bytes.size()), isa, threads);
    const Runtime& runtime = model.runtime();
    if (runtime.image_floats() > (1 << 22) || runtime.result_floats() > (1 << 22) || runtime.context_bytes() > (1 << 27))
      return false;
    const std::vector<float> image(static_cast<std::size_t>(runtime.image_floats()), 0.5f);
    std::vector<float> result(static_cast<std::size_t>(runtime.result_floats()));
    RunRequest request;
    request.images = image.data();
    request.count = 1;
    request.winners = model.default_winners().data();
    request.results = result.data();
    model.runtime().run(request);
    return true;
  } catch (const FileError&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::printf("usage: fuzz_file FILE.penstock [mutations] [seed]\n"), 2;
  std::ifstream stream(argv[1], std::ios::binary);
  const Bytes base((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const int mutations = argc > 2 ? std::atoi(argv[2]) : 20000;
  Random random(argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1u);
  std::vector<Isa> sets;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) sets.push_back(static_cast<Isa>(i));
  for (Isa isa : sets)
    if (base.empty() || !try_file(base, isa, 2)) return std::printf("%s itself was refused\n", argv[1]), 1;
  int ran = 0;
  for (int n = 0; n < mutations; ++n) {
    Bytes changed = base;
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) mutate(changed, random);
    if (random() % 16) seal(changed);
    ran += try_file(changed, sets[random() % sets.size()], n % 50 == 0 ? 2 : 1);
  }
  std::printf("%d files changed: %d refused, %d ran within bounds\n", mutations, mutations - ran, ran);
  return 0;
}
