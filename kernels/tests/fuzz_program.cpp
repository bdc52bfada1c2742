// Programs with numbers changed at random: each must be refused, or run within bounds.
//
//     fuzz_program [mutations] [seed]
//
// Meant to be built with AddressSanitizer and UBSan (`make sanitize`): a read or write out of bounds ends it.
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "tests/programs.h"

namespace {

using namespace penstock;

// Convolutions at listed pixels: of a fixed list, and where a map says.
Arrays listed_program(int height, int width) {
  Writer w;
  const int low = (height + 1) / 2, narrow = (width + 1) / 2;
  const int image = w.tensor(true, 3, height, width, 1);
  w.op(OpKind::import_image, -1, -1, image, Function::none, false, false, {});
  const int a = w.tensor(true, 8, height, width, 1);
  const std::int64_t pixels = static_cast<std::int64_t>(w.arrays.args.size()), count = height * width / 2;
  for (std::int64_t i = 0; i < count; ++i) w.arrays.args.push_back(2 * i);
  const std::int64_t nearest = static_cast<std::int64_t>(w.arrays.args.size());
  for (std::int64_t i = 0; i < height * width; ++i) w.arrays.args.push_back(i / 2 < count ? i / 2 : count - 1);
  w.op(OpKind::listed, image, -1, a, Function::silu, true, false,
       {3, 3, 1, 1, 1, 1, 1, 1, w.weights(8 * 27), w.weights(8), -1, pixels, count, nearest});
  const int b = w.tensor(true, 12, height, width, 1);
  w.conv(a, b, 8, 12, 3, 1, 1, 1, 1, Function::relu, true);
  const int map = w.tensor(true, 1, low, narrow, 0);
  w.conv(b, map, 12, 1, 1, 2, 0, 1, 1, Function::relu, false);
  const int c = w.tensor(true, 7, low, narrow, 0);
  w.op(OpKind::listed, b, map, c, Function::relu, true, false,
       {3, 3, 2, 2, 1, 1, 1, 1, w.weights(7 * 12 * 9), -1, w.weights(7), -1, 0, -1});
  w.op(OpKind::export_result, c, -1, -1, Function::none, false, false, {});
  return w.arrays;
}

std::int64_t other_number(std::int64_t value, std::mt19937_64& random) {
  static const std::int64_t kOdd[] = {-1,      0,         1,         2,         3,         16,        255,       65535, 65536,
                                      1 << 20, 1LL << 30, 1LL << 31, 1LL << 32, 1LL << 62, INT64_MAX, INT64_MIN, -16};
  switch (random() % 5) {
    case 0: return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + 1);  // wraps where it must
    case 1: return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) - 1);
    case 2: return static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + random() % 33 - 16);
    case 3: return kOdd[random() % (sizeof kOdd / sizeof *kOdd)];
    default: return value ^ (std::int64_t{1} << (random() % 63));
  }
}

void mutate(Arrays& a, std::mt19937_64& random) {
  const auto change = [&](std::vector<std::int64_t>& v) {
    std::int64_t& x = v[random() % v.size()];
    x = other_number(x, random);
  };
  switch (random() % 12) {
    case 0:
    case 1:
    case 2:
    case 3: change(a.tensors); break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8: change(a.ops); break;
    case 9: change(a.args); break;
    case 10: {
      static const float kOdd[] = {0.0f, -1.0f, 1e30f, -1e30f, __builtin_inff(), __builtin_nanf("")};
      auto& v = random() % 2 ? a.scalars : a.weights;
      v[random() % v.size()] = kOdd[random() % 6];
      break;
    }
    default:
      if (random() % 3 == 0) a.weights.resize(random() % (a.weights.size() + 1));
      else if (random() % 2) a.layers = other_number(a.layers, random);
      else a.knobs = other_number(a.knobs, random);
  }
}

// True when the program ran.
bool try_program(const Arrays& a, Isa isa, int threads) {
  RawProgram raw;
  raw.format = kFormat;
  raw.tensors = a.tensors.data();
  raw.tensor_count = static_cast<std::int64_t>(a.tensors.size()) / kTensorFields;
  raw.ops = a.ops.data();
  raw.op_count = static_cast<std::int64_t>(a.ops.size()) / kOpFields;
  raw.scalars = a.scalars.data();
  raw.args = a.args.data();
  raw.arg_count = static_cast<std::int64_t>(a.args.size());
  raw.weights = a.weights.data();
  raw.weight_count = static_cast<std::int64_t>(a.weights.size());
  raw.layers = a.layers;
  raw.knobs = a.knobs;
  try {
    std::unique_ptr<Program> program = load_program(raw, this_machine(isa));
    if (program->arena_floats > (1 << 26)) return false;  // sound, but slow to run a hundred thousand times
    Runtime runtime(std::move(program), threads);
    const std::size_t images = static_cast<std::size_t>(runtime.image_floats()) * 2;
    if (images > (1u << 22) || runtime.result_floats() > (1 << 22)) return false;
    std::vector<float> image(images, 0.5f), result(static_cast<std::size_t>(runtime.result_floats()) * 2);
    std::vector<std::int32_t> winners;
    for (int channels : runtime.program().knob_channels) winners.push_back((channels + 1) / 2);
    RunRequest request;
    request.images = image.data();
    request.count = 2;
    request.winners = winners.data();
    request.results = result.data();
    runtime.run(request);
    return true;
  } catch (const ProgramError&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int mutations = argc > 1 ? std::atoi(argv[1]) : 20000;
  std::mt19937_64 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
  // The second one's image is read where the caller has it.
  const Arrays bases[] = {base_program(11, 9),
                          base_program(12, 8),
                          int8_program(11, 9),
                          separable_program(11, 9, false),
                          separable_program(11, 9, true),
                          pixels_program(11, 9),
                          listed_program(11, 9)};
  std::vector<Isa> sets;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) sets.push_back(static_cast<Isa>(i));
  for (const Arrays& base : bases)
    for (Isa isa : sets)
      if (!try_program(base, isa, 2)) return std::printf("the program itself was refused\n"), 1;
  int ran = 0;
  for (int n = 0; n < mutations; ++n) {
    Arrays changed = bases[static_cast<std::size_t>(n) % std::size(bases)];
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) mutate(changed, random);
    ran += try_program(changed, sets[random() % sets.size()], n % 50 == 0 ? 2 : 1);
  }
  std::printf("%d programs changed: %d refused, %d ran within bounds\n", mutations, mutations - ran, ran);
  return 0;
}
