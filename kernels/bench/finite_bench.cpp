// What the checks for NaN and infinity cost a whole network: the same engine with and without them, taking turns in one process.
//   finite_bench FILE.penstock DENSITY [rounds]
// Build (Linux, GNU ld), with LIBRARY the static library of any CMake build:
//   g++ -O3 -std=c++17 -Ikernels kernels/bench/finite_bench.cpp LIBRARY -pthread -Wl,--wrap=_ZN8penstock10op_kernelsENS_3IsaE
// The linker sends every request for the table of operators through here, so nothing differs but the pointers in it: the code, its
// place and the memory of the engine are the same. Clamps pass NaN on by the order of their
// operands; what max pools take for it is not measured here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "api/penstock.h"
#include "ops/ops.h"

using namespace penstock;

namespace {

OpKernels shown;       // what the engine sees
OpKernels real;        // the instruction set's own
long long checks = 0;  // of one image, and the values they look at
long long checked = 0;

bool unseen(const float*, std::ptrdiff_t) { return true; }

bool counted(const float* values, std::ptrdiff_t n) {
  ++checks;
  checked += n;
  return real.all_finite(values, n);
}

bool twice(const float* values, std::ptrdiff_t n) { return real.all_finite(values, n) && real.all_finite(values, n); }

bool plain_import(const float* image, Planes shape, float* plane) {
  zero_padding(plane, shape);
  for (int y = 0; y < shape.height; ++y)
    std::memcpy(plane + shape.origin() + static_cast<std::ptrdiff_t>(y) * shape.pitch(),
                image + static_cast<std::ptrdiff_t>(y) * shape.width, sizeof(float) * static_cast<std::size_t>(shape.width));
  return true;
}

void fail(const char* why) {
  std::fprintf(stderr, "finite_bench: %s\n", why);
  std::exit(1);
}

}  // namespace

extern "C" const OpKernels& __real__ZN8penstock10op_kernelsENS_3IsaE(Isa isa);
extern "C" const OpKernels& __wrap__ZN8penstock10op_kernelsENS_3IsaE(Isa isa) {
  if (!real.all_finite) shown = real = __real__ZN8penstock10op_kernelsENS_3IsaE(isa);
  return shown;
}

int main(int argc, char** argv) {
  if (argc < 3) fail("expected FILE.penstock DENSITY [rounds]");
  const double density = std::atof(argv[2]);
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3000;
  penstock_engine* engine = nullptr;
  penstock_error error;
  if (penstock_load(argv[1], 1, &engine, &error) != PENSTOCK_OK) fail(error.message);
  std::int64_t shape[4] = {1, 0, 0, 0};
  penstock_input_shape(engine, shape + 1);
  const std::size_t size = static_cast<std::size_t>(penstock_input_size(engine));
  constexpr int kImages = 8;
  std::vector<float> images(kImages * size), results(static_cast<std::size_t>(penstock_output_size(engine)));
  std::mt19937 chance(1);
  std::normal_distribution<float> normal;
  for (float& value : images) value = normal(chance);
  const auto run = [&](int image) {
    const auto begin = std::chrono::steady_clock::now();
    if (penstock_run(engine, images.data() + static_cast<std::size_t>(image) * size, shape, density, results.data(), &error) !=
        PENSTOCK_OK)
      fail(error.message);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  };
  run(0);
  shown.all_finite = counted;
  run(0);
  // Without the checks, with them, with them again as a control, and with each made twice.
  constexpr int kWays = 4;
  const char* const names[kWays] = {"without", "with", "with, again", "each twice"};
  std::vector<double> times[kWays][kImages];
  for (int round = 0; round < rounds; ++round)
    for (int step = 0; step < kWays; ++step) {
      const int way = (step + round) % kWays, image = (round / kWays) % kImages;
      shown.all_finite = way == 0 ? unseen : way == 3 ? twice : real.all_finite;
      shown.import_plane = way == 0 ? plain_import : real.import_plane;
      times[way][image].push_back(run(image));
    }
  std::printf("%s, d = %g: %lld checks of %lld values an image; microseconds, least and lower quartile, mean of %d images\n",
              penstock_instruction_set(engine), density, checks, checked, kImages);
  double base[2] = {0, 0};
  for (int way = 0; way < kWays; ++way) {
    double found[2] = {0, 0};
    for (auto& one : times[way]) {
      std::sort(one.begin(), one.end());
      found[0] += one.front() / kImages;
      found[1] += one[one.size() / 4] / kImages;
    }
    if (way == 0) std::copy(found, found + 2, base);
    std::printf("  %-12s %9.2f (%+.2f%%) %9.2f (%+.2f%%)\n", names[way], found[0], 100 * (found[0] / base[0] - 1), found[1],
                100 * (found[1] / base[1] - 1));
  }
  penstock_free(engine);
}
