// Times int8 convolutions, layer by layer, as planning chooses and with every algorithm of the list that fits.
//
//     cmake -S . -B build/checks -DPENSTOCK_MODULE=OFF -DPENSTOCK_CHECKS=ON && cmake --build build/checks --target int8_bench
//     build/checks/int8_bench [m_cifarnet|resnet18|vgg16|others|all] [seconds for each network]
//                             [tuning, such as int8_direct_bytes=80000,160000]
//
// The last argument sweeps one number of the machine's row (machine/tuning.def) instead of the algorithms: each value is a column of
// its own. PENSTOCK_ISA names an instruction set.
//
// GOPS count the executed work, two operations for each multiply-accumulate; the time includes gathering the weights. Every run has
// new lists of channels.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "bench/networks.h"
#include "int8/kernels.h"
#include "int8/select.h"

using namespace penstock;

namespace {

std::mt19937 g_random(1);

struct Contestant {
  std::string name;
  const Int8Algorithm* algorithm;  // null: as planning chooses
  Tuning tuning;
};

// As planning chooses and with every algorithm; or as planning chooses, with every value of the tuning that is swept.
std::vector<Contestant> contestants(const std::string& sweep, const Tuning& tuning) {
  std::vector<Contestant> all;
  for (const auto& [value, row] : swept(sweep, tuning)) all.push_back({value.empty() ? "as chosen" : value, nullptr, row});
  if (!sweep.empty()) return all;
  for (const Int8Algorithm* algorithm : records<Int8Algorithm>()) all.push_back({algorithm->name, algorithm, tuning});
  return all;
}

Int8PlanPtr make_plan(const Int8Kernels& kernels, const Layer& l, const Contestant& one) {
  const Quantised in{0.02f, l.reads_image() ? 128 : 0}, out{0.03f, 0};
  const Int8Shape s{sizes_of(l), in, out, Function::relu};
  std::vector<std::int8_t> weights(static_cast<std::size_t>(l.out * (l.in / l.groups) * l.kernel * l.kernel));
  std::normal_distribution<float> gauss(0.0f, 35.0f);
  for (std::int8_t& w : weights) w = static_cast<std::int8_t>(std::clamp(gauss(g_random), -127.0f, 127.0f));
  const std::vector<float> scales(static_cast<std::size_t>(l.out), 1e-5f);
  std::string why;
  return plan_int8_with(kernels, one.tuning, s, weights.data(), scales.data(), nullptr, one.algorithm, why);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Measured {
  double seconds = 1e9, gather = 1e9;
  std::int64_t macs = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "all";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 5.0;
  const double densities[] = {1.0, 0.7, 0.5, 0.3};
  const Int8Kernels& kernels = int8_kernels(isa_asked_for());
  std::printf("%s, %s\n", this_core().name, kernels.name);
  const std::vector<Contestant> all = contestants(argc > 3 ? argv[3] : "", this_machine(kernels.isa).tuning);
  for (const Network& network : benchmark_networks()) {
    if (which != "all" && which != network.name) continue;
    const std::size_t n = network.layers.size();
    std::vector<std::vector<Int8PlanPtr>> plans(all.size());
    std::vector<std::size_t> kinds;
    for (std::size_t i = 0; i < n; ++i)
      for (int r = 0; r < network.layers[i].repeat; ++r) {
        kinds.push_back(i);
        for (std::size_t a = 0; a < all.size(); ++a) plans[a].push_back(make_plan(kernels, network.layers[i], all[a]));
      }
    std::vector<std::uint8_t> maps[2];
    for (auto& map : maps) {
      map.resize(16 << 20);
      for (std::size_t i = 0; i < map.size(); ++i) map[i] = static_cast<std::uint8_t>(i * 7919u >> 5);
    }
    ConvBuffer scratch;
    scratch.allocate(16 << 20);
    std::uint8_t* const room = reinterpret_cast<std::uint8_t*>(scratch.data());
    std::vector<std::int32_t> sums(4096);
    std::vector<Measured> best(n * 4 * all.size());
    std::vector<double> passes(4 * all.size(), 1e9);
    const double start = now();
    for (int round = 0; round < 3 || now() - start < seconds; ++round)
      for (int d = 0; d < 4; ++d)
        for (std::size_t a = 0; a < all.size(); ++a) {
          double pass = 0;
          for (std::size_t i = 0; i < plans[a].size(); ++i) {
            const Layer& l = network.layers[kinds[i]];
            if (plans[a][i] == nullptr) continue;
            const std::vector<std::int32_t> in = random_list(l.in, l.reads_image() ? 1.0 : densities[d], g_random);
            const std::vector<std::int32_t> out = l.groups == l.in ? in : random_list(l.out, densities[d], g_random);
            Int8Task task;
            task.input = maps[0].data();
            task.in_list = in.data();
            task.in_count = static_cast<int>(in.size());
            task.output = maps[1].data();
            task.out_list = out.data();
            task.out_count = static_cast<int>(out.size());
            task.sums = sums.data();
            const Int8Plan& plan = *plans[a][i];
            const double t0 = now();
            decide_int8(plan, task);
            begin_int8(plan, task, room);
            run_int8(plan, task, 0, 0, int8_units(plan, task, 0), 0, room);
            const double t1 = now();
            run_int8(plan, task, 1, 0, int8_units(plan, task, 1), 0, room);
            end_int8(plan, task, room);
            const double t2 = now();
            Measured& m = best[(kinds[i] * 4 + static_cast<std::size_t>(d)) * all.size() + a];
            m.seconds = std::min(m.seconds, t2 - t0);
            m.gather = std::min(m.gather, t1 - t0);
            m.macs = int8_macs(plan, task);
            pass += t2 - t0;
            std::swap(maps[0], maps[1]);
          }
          double& least = passes[static_cast<std::size_t>(d) * all.size() + a];
          least = std::min(least, pass);
        }
    std::printf("%s: GOPS", network.name.c_str());
    for (std::size_t a = 0; a < all.size(); ++a) std::printf(a == 0 ? " %s |" : " %s", all[a].name.c_str());
    std::printf(" (share of gathering) at d = 1, 0.7, 0.5, 0.3\n");
    for (std::size_t i = 0; i < n; ++i) {
      const Layer& l = network.layers[i];
      std::printf("%dx%d/%d %4d->%-4d %3dx%-3d", l.kernel, l.kernel, l.stride, l.in, l.out, l.size, l.size);
      for (std::size_t d = 0; d < 4; ++d) {
        const Measured* const m = &best[(i * 4 + d) * all.size()];
        std::printf("  %4.0f |", 2e-9 * static_cast<double>(m[0].macs) / m[0].seconds);
        for (std::size_t a = 1; a < all.size(); ++a)
          if (m[a].macs)
            std::printf(" %4.0f (%2.0f%%)", 2e-9 * static_cast<double>(m[a].macs) / m[a].seconds, 100 * m[a].gather / m[a].seconds);
          else std::printf("    -      ");
      }
      std::printf("\n");
    }
    std::printf("  all convolutions, ms:");
    for (std::size_t a = 0; a < all.size(); ++a) {
      if (all[a].algorithm) continue;  // not every layer has it
      std::printf("  %s", all[a].name.c_str());
      for (std::size_t d = 0; d < 4; ++d) std::printf(" %.3f", passes[d * all.size() + a] * 1e3);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
