// Times convolution layers at several densities, with every algorithm.
//
//     cmake -S . -B build/checks -DPENSTOCK_MODULE=OFF -DPENSTOCK_CHECKS=ON && cmake --build build/checks --target conv_bench
//     build/checks/conv_bench [m_cifarnet|vgg16|resnet18|others|all|in,out,size,kernel,stride,pad] [densities, such as 1,0.5]
//                             [algorithms, such as auto,direct; all] [seconds for each network] [threads]
//                             [tuning, such as fresh_share=0.4,0.6,0.8]
//
// The last argument sweeps one number of the machine's row (machine/tuning.def): each value is a column of its own.
// PENSTOCK_ISA=avx2 takes another instruction set than the widest.
//
// A network's layers run one after the other, as in a network, so that each finds its weights where a network
// would find them (which for deep layers is not the cache). Everything that is compared is interleaved, and the
// minimum over the rounds is printed: GFLOPS of the executed work, counted as direct convolution counts it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/networks.h"
#include "conv/conv.h"
#include "machine/peak.h"
#include "run/team.h"

using namespace penstock;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What is compared: an algorithm (null: what suits), and the machine's row with one number changed or none.
struct Contestant {
  std::string name;
  const ConvAlgorithm* algorithm;
  Machine machine;
};

float* aligned_floats(std::size_t count) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, std::max<std::size_t>(count, 16) * sizeof(float)) != 0) std::abort();
  std::memset(p, 0, count * sizeof(float));
  return static_cast<float*>(p);
}

// One occurrence of a layer: own weights, shared input and output memory.
struct Instance {
  std::size_t layer;
  std::vector<float> weights;
  ConvPlanPtr plan;
};

struct Bench {
  const Network& network;
  std::vector<ConvShape> shapes;
  std::vector<Instance> instances;
  float *input = nullptr, *output = nullptr, *shared = nullptr, *thread = nullptr;
  std::size_t thread_floats = 0;

  Bench(const Network& net, const Contestant& with, int threads) : network(net) {
    std::mt19937 random(7);
    std::normal_distribution<float> gauss;
    std::size_t in_floats = 0, out_floats = 0, shared_floats = 0;
    for (std::size_t i = 0; i < net.layers.size(); ++i) {
      const Layer& layer = net.layers[i];
      ConvShape s{sizes_of(layer)};
      s.activation = Activation::relu;
      shapes.push_back(s);
      std::vector<float> weights(static_cast<std::size_t>(layer.out) * (layer.in / layer.groups) * layer.kernel * layer.kernel);
      for (float& w : weights) w = gauss(random);
      for (int r = 0; r < layer.repeat; ++r) {
        std::string error;
        std::vector<float> own = weights;
        ConvPlanPtr plan = plan_conv(s, own.data(), nullptr, with.machine, with.algorithm, error);
        // Where an algorithm does not fit the shape, its column shows the automatic choice.
        if (!plan) plan = plan_conv(s, own.data(), nullptr, with.machine, nullptr, error);
        if (!plan) {
          std::fprintf(stderr, "%s\n", error.c_str());
          std::exit(1);
        }
        const ConvScratchFloats scratch = conv_scratch(*plan, layer.in, layer.out);
        shared_floats = std::max(shared_floats, scratch.shared);
        thread_floats = std::max(thread_floats, scratch.thread);
        instances.push_back({i, std::move(own), std::move(plan)});
      }
      in_floats = std::max(in_floats, static_cast<std::size_t>(layer.in) * s.input.stride());
      out_floats = std::max(out_floats, static_cast<std::size_t>(layer.out) * s.output.stride());
    }
    input = aligned_floats(in_floats);
    output = aligned_floats(out_floats);
    shared = aligned_floats(shared_floats);
    thread_floats = (thread_floats + 15) / 16 * 16;
    thread = aligned_floats(thread_floats * threads);
    for (std::size_t i = 0; i < in_floats; ++i) input[i] = gauss(random);
  }

  // Adds each layer's seconds (mean over its occurrences) to `seconds`, its executed work to `flops`.
  void run(double density, Team& team, std::vector<double>& seconds, std::vector<double>& flops) {
    std::mt19937 random(3);
    seconds.assign(network.layers.size(), 0.0);
    flops.assign(network.layers.size(), 0.0);
    for (const Instance& instance : instances) {
      const Layer& layer = network.layers[instance.layer];
      const std::vector<std::int32_t> in = random_list(layer.in, layer.reads_image() ? 1.0 : density, random);
      const std::vector<std::int32_t> out = layer.groups == layer.in ? in : random_list(layer.out, density, random);
      ConvTask task;
      task.threads = team.threads();
      task.input = input;
      task.in_list = in.data();
      task.in_count = static_cast<int>(in.size());
      task.output = output;
      task.out_list = out.data();
      task.out_count = static_cast<int>(out.size());
      decide_conv(*instance.plan, task);
      const Clock::time_point start = Clock::now();
      for (int stage = 0; stage < conv_stages(*instance.plan, task); ++stage) {
        const int units = conv_units(*instance.plan, task, stage);
        if (team.threads() == 1) {
          run_conv(*instance.plan, task, stage, 0, units, {shared, thread});
          continue;
        }
        team.run(units, [&](int unit, int member) {
          run_conv(*instance.plan, task, stage, unit, unit + 1, {shared, thread + member * thread_floats});
        });
      }
      seconds[instance.layer] += seconds_since(start) / layer.repeat;
      flops[instance.layer] += 2.0 * conv_macs(*instance.plan, task) / layer.repeat;
    }
  }
};

// Every algorithm that is asked for, with every value of the tuning that is swept.
std::vector<Contestant> contestants(const std::vector<std::string>& wanted, const std::string& sweep, Isa isa) {
  std::vector<Contestant> all;
  for (const std::string& name : wanted) {
    const ConvAlgorithm* const algorithm = as_record<ConvAlgorithm>(find_algorithm(name));
    if (!algorithm && name != "auto") {
      std::fprintf(stderr, "no algorithm is named %s\n", name.c_str());
      std::exit(1);
    }
    for (const auto& [value, tuning] : swept(sweep, this_machine(isa).tuning)) {
      Contestant one{value.empty() ? name : value, algorithm, this_machine(isa)};
      one.machine.tuning = tuning;
      all.push_back(one);
    }
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "all";
  std::vector<double> densities;
  for (const std::string& d : split(argc > 2 ? argv[2] : "1,0.7,0.5,0.3,0.1")) densities.push_back(std::atof(d.c_str()));
  std::vector<std::string> wanted = split(argc > 3 ? argv[3] : "all");
  if (wanted == std::vector<std::string>{"all"}) {
    wanted = {"auto"};
    for (const ConvAlgorithm* algorithm : records<ConvAlgorithm>()) wanted.push_back(algorithm->name);
  }
  const double budget = argc > 4 ? std::atof(argv[4]) : 8.0;
  const int threads = argc > 5 ? std::max(1, std::atoi(argv[5])) : 1;
  const std::string sweep = argc > 6 ? argv[6] : "";
  const Isa isa = isa_asked_for();
  std::printf("%s, %s, %d threads, FMA peak %.1f GFLOPS (one thread)\n", this_core().name, isa_name(isa), threads,
              fma_peak_gflops(isa, 0.2));
  Team team(threads);
  if (!team.try_lead()) return 1;
  std::vector<Network> networks = benchmark_networks();
  if (const std::vector<std::string> numbers = split(which.c_str()); numbers.size() == 6) {
    int n[6];
    for (int i = 0; i < 6; ++i) n[i] = std::atoi(numbers[i].c_str());
    networks = {{"one layer", {{n[0], n[1], n[2], n[3], n[4], n[5]}}}};
  }
  for (const Network& network : networks) {
    if (networks.size() > 1 && which != "all" && which != network.name) continue;
    const std::vector<Contestant> all = contestants(wanted, sweep, isa);
    std::vector<Bench> benches;
    for (const Contestant& one : all) benches.emplace_back(network, one, threads);
    const std::size_t layers = network.layers.size();
    // best[density][algorithm][layer]
    std::vector<std::vector<std::vector<double>>> best(
        densities.size(), std::vector<std::vector<double>>(benches.size(), std::vector<double>(layers, 1e9)));
    std::vector<std::vector<double>> total(densities.size(), std::vector<double>(benches.size(), 1e9));
    std::vector<std::vector<double>> flops(densities.size());
    std::vector<double> seconds;
    const Clock::time_point start = Clock::now();
    for (int round = 0; round < 3 || seconds_since(start) < budget; ++round) {
      for (std::size_t d = 0; d < densities.size(); ++d) {
        for (std::size_t b = 0; b < benches.size(); ++b) {
          benches[b].run(densities[d], team, seconds, flops[d]);
          double sum = 0;
          for (std::size_t i = 0; i < layers; ++i) {
            best[d][b][i] = std::min(best[d][b][i], seconds[i]);
            sum += seconds[i] * network.layers[i].repeat;
          }
          total[d][b] = std::min(total[d][b], sum);
        }
      }
    }
    std::printf("\n%-26s", network.name.c_str());
    for (const double d : densities) {
      for (const Contestant& one : all) std::printf(" %13.13s@%-3.1f", one.name.c_str(), d);
    }
    std::printf("  (GFLOPS)\n");
    for (std::size_t i = 0; i < layers; ++i) {
      const Layer& l = network.layers[i];
      char name[64];
      std::snprintf(name, sizeof name, "%dx%d/%d %3d->%3d %dx%d x%d", l.kernel, l.kernel, l.stride, l.in, l.out, l.size, l.size,
                    l.repeat);
      std::printf("%-26s", name);
      for (std::size_t d = 0; d < densities.size(); ++d) {
        for (std::size_t b = 0; b < benches.size(); ++b) std::printf(" %17.1f", flops[d][i] / best[d][b][i] * 1e-9);
      }
      std::printf("\n");
    }
    std::printf("%-26s", "total ms");
    for (std::size_t d = 0; d < densities.size(); ++d) {
      for (std::size_t b = 0; b < benches.size(); ++b) std::printf(" %17.3f", total[d][b] * 1e3);
    }
    std::printf("\n");
  }
  return 0;
}
