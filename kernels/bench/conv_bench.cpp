// Times convolution layers at several densities, with every algorithm.
//
//     g++ -std=c++17 -O3 -Ikernels kernels/bench/conv_bench.cpp kernels/machine/*.cpp kernels/conv/*.cpp -pthread -o conv_bench
//     ./conv_bench [m_cifarnet|vgg16|resnet18|all|in,out,size,kernel,stride,pad] [densities, such as 1,0.5]
//                  [algorithms, such as auto,direct] [seconds a network] [threads] [tuning, such as fresh_share=0.4,0.6,0.8]
//
// The last argument sweeps one number of the machine's row (machine/tuning.def): each value is a column of its own.
// PENSTOCK_ISA=avx2 takes another instruction set than the widest.
//
// A network's layers run one after the other, as in a network, so that each finds its weights where a network
// would find them (which for deep layers is not the cache). Everything that is compared is interleaved, and the
// minimum over the rounds is printed: GFLOPS of the executed work, counted as direct convolution counts it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "conv/conv.h"
#include "machine/peak.h"

using namespace penstock;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Layer {
  int in, out, size, kernel, stride, pad;
  bool image;  // the input is the image: always dense
  int repeat;  // times the layer occurs in the network
};

struct Network {
  const char* name;
  std::vector<Layer> layers;
};

const std::vector<Network> kNetworks = {
    {"m_cifarnet",
     {{3, 64, 32, 3, 1, 0, true, 1},
      {64, 64, 30, 3, 1, 1, false, 1},
      {64, 128, 30, 3, 2, 1, false, 1},
      {128, 128, 15, 3, 1, 1, false, 2},
      {128, 192, 15, 3, 2, 1, false, 1},
      {192, 192, 8, 3, 1, 1, false, 2}}},
    {"vgg16",
     {{3, 64, 224, 3, 1, 1, true, 1},
      {64, 64, 224, 3, 1, 1, false, 1},
      {64, 128, 112, 3, 1, 1, false, 1},
      {128, 128, 112, 3, 1, 1, false, 1},
      {128, 256, 56, 3, 1, 1, false, 1},
      {256, 256, 56, 3, 1, 1, false, 2},
      {256, 512, 28, 3, 1, 1, false, 1},
      {512, 512, 28, 3, 1, 1, false, 2},
      {512, 512, 14, 3, 1, 1, false, 3}}},
    {"resnet18",
     {{3, 64, 224, 7, 2, 3, true, 1},
      {64, 64, 56, 3, 1, 1, false, 4},
      {64, 128, 56, 3, 2, 1, false, 1},
      {64, 128, 56, 1, 2, 0, false, 1},
      {128, 128, 28, 3, 1, 1, false, 3},
      {128, 256, 28, 3, 2, 1, false, 1},
      {128, 256, 28, 1, 2, 0, false, 1},
      {256, 256, 14, 3, 1, 1, false, 3},
      {256, 512, 14, 3, 2, 1, false, 1},
      {256, 512, 14, 1, 2, 0, false, 1},
      {512, 512, 7, 3, 1, 1, false, 3}}},
};

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

std::vector<std::int32_t> random_list(int channels, double density, std::mt19937& random) {
  std::vector<std::int32_t> all(channels);
  for (int i = 0; i < channels; ++i) all[i] = i;
  std::shuffle(all.begin(), all.end(), random);
  all.resize(std::max(1, static_cast<int>(std::ceil(density * channels))));
  std::sort(all.begin(), all.end());
  return all;
}

// Threads that spin for work, so that a stage of a few microseconds can be shared.
class Team {
 public:
  explicit Team(int threads) {
    for (int i = 1; i < threads; ++i) {
      members_.emplace_back([this, i] {
        for (int seen = 0; !stop_;) {
          if (round_ == seen) continue;
          ++seen;
          work(i);
          ++done_;
        }
      });
    }
  }
  ~Team() {
    stop_ = true;
    for (std::thread& member : members_) member.join();
  }
  int size() const { return static_cast<int>(members_.size()) + 1; }

  // Calls run(member, unit) for every unit; returns when all are done.
  template <typename Run>
  void share(int units, const Run& run) {
    call_ = [](const void* to, int member, int unit) { (*static_cast<const Run*>(to))(member, unit); };
    run_ = &run;
    units_ = units;
    next_ = 0;
    done_ = 0;
    ++round_;
    work(0);
    while (done_ < static_cast<int>(members_.size())) {
    }
  }

 private:
  void work(int member) {
    for (int unit; (unit = next_++) < units_;) call_(run_, member, unit);
  }
  std::vector<std::thread> members_;
  std::atomic<bool> stop_{false};
  std::atomic<int> round_{0}, next_{0}, done_{0}, units_{0};
  void (*call_)(const void*, int, int) = nullptr;
  const void* run_ = nullptr;
};

// One occurrence of a layer: own weights, shared input and output memory.
struct Instance {
  std::size_t layer;
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
      ConvShape s;
      s.in_channels = layer.in;
      s.out_channels = layer.out;
      s.kernel_h = s.kernel_w = layer.kernel;
      s.stride_h = s.stride_w = layer.stride;
      s.pad_h = s.pad_w = layer.pad;
      const int size = conv_output_size(layer.size, layer.kernel, layer.stride, layer.pad, 1);
      s.input = {layer.size, layer.size, layer.kernel == 1 ? 1 : layer.pad};
      s.output = {size, size, 1};
      s.activation = Activation::relu;
      shapes.push_back(s);
      std::vector<float> weights(static_cast<std::size_t>(layer.out) * layer.in * layer.kernel * layer.kernel);
      for (float& w : weights) w = gauss(random);
      for (int r = 0; r < layer.repeat; ++r) {
        std::string error;
        ConvPlanPtr plan = plan_conv(s, weights.data(), nullptr, with.machine, with.algorithm, error);
        // Where an algorithm does not fit the shape, its column shows the automatic choice.
        if (!plan) plan = plan_conv(s, weights.data(), nullptr, with.machine, nullptr, error);
        if (!plan) {
          std::fprintf(stderr, "%s\n", error.c_str());
          std::exit(1);
        }
        const ConvScratchFloats scratch = conv_scratch(*plan, layer.in, layer.out);
        shared_floats = std::max(shared_floats, scratch.shared);
        thread_floats = std::max(thread_floats, scratch.thread);
        instances.push_back({i, std::move(plan)});
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
      const std::vector<std::int32_t> in = random_list(layer.in, layer.image ? 1.0 : density, random);
      const std::vector<std::int32_t> out = random_list(layer.out, density, random);
      ConvTask task;
      task.threads = team.size();
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
        if (team.size() == 1) {
          run_conv(*instance.plan, task, stage, 0, units, {shared, thread});
          continue;
        }
        team.share(units, [&](int member, int unit) {
          run_conv(*instance.plan, task, stage, unit, unit + 1, {shared, thread + member * thread_floats});
        });
      }
      seconds[instance.layer] += seconds_since(start) / layer.repeat;
      flops[instance.layer] += 2.0 * conv_macs(*instance.plan, task) / layer.repeat;
    }
  }
};

std::vector<std::string> split(const char* text) {
  std::vector<std::string> parts(1);
  for (; *text; ++text) {
    if (*text == ',') {
      parts.emplace_back();
    } else {
      parts.back() += *text;
    }
  }
  return parts;
}

// Every algorithm that is asked for, with every value of the tuning that is swept.
std::vector<Contestant> contestants(const std::vector<std::string>& wanted, const std::string& sweep, Isa isa) {
  const std::size_t equals = sweep.find('=');
  const std::vector<std::string> values =
      equals == std::string::npos ? std::vector<std::string>{""} : split(sweep.c_str() + equals + 1);
  std::vector<Contestant> all;
  for (const std::string& name : wanted) {
    const ConvAlgorithm* const algorithm = as_record<ConvAlgorithm>(find_algorithm(name));
    if (!algorithm && name != "auto") {
      std::fprintf(stderr, "no algorithm is named %s\n", name.c_str());
      std::exit(1);
    }
    for (const std::string& value : values) {
      Contestant one{value.empty() ? name : value, algorithm, this_machine(isa)};
      if (!value.empty() && !set_tuning(one.machine.tuning, sweep.substr(0, equals), std::atof(value.c_str()))) {
        std::fprintf(stderr, "machine/tuning.def has no %s\n", sweep.substr(0, equals).c_str());
        std::exit(1);
      }
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
  const std::vector<std::string> wanted = split(argc > 3 ? argv[3] : "auto,direct,packed,winograd2,winograd4");
  const double budget = argc > 4 ? std::atof(argv[4]) : 8.0;
  const int threads = argc > 5 ? std::max(1, std::atoi(argv[5])) : 1;
  const std::string sweep = argc > 6 ? argv[6] : "";
  Isa isa = best_isa();
  if (const char* name = std::getenv("PENSTOCK_ISA"); name && !(parse_isa(name, isa) && isa_available(isa))) {
    std::fprintf(stderr, "PENSTOCK_ISA=%s: this machine has baseline and up to %s\n", name, isa_name(best_isa()));
    return 1;
  }
  std::printf("%s, %s, %d threads, FMA peak %.1f GFLOPS (one thread)\n", this_core().name, isa_name(isa), threads,
              fma_peak_gflops(isa, 0.2));
  Team team(threads);
  std::vector<Network> networks = kNetworks;
  if (const std::vector<std::string> numbers = split(which.c_str()); numbers.size() == 6) {
    int n[6];
    for (int i = 0; i < 6; ++i) n[i] = std::atoi(numbers[i].c_str());
    networks = {{"one layer", {{n[0], n[1], n[2], n[3], n[4], n[5], n[0] <= 4, 1}}}};
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
    std::printf("\n%s%*s", network.name, static_cast<int>(26 - std::strlen(network.name)), "");
    for (const double d : densities) {
      for (const Contestant& one : all) std::printf(" %6.6s@%-3.1f", one.name.c_str(), d);
    }
    std::printf("  (GFLOPS)\n");
    for (std::size_t i = 0; i < layers; ++i) {
      const Layer& l = network.layers[i];
      char name[64];
      std::snprintf(name, sizeof name, "%dx%d/%d %3d->%3d %dx%d x%d", l.kernel, l.kernel, l.stride, l.in, l.out, l.size, l.size,
                    l.repeat);
      std::printf("%-26s", name);
      for (std::size_t d = 0; d < densities.size(); ++d) {
        for (std::size_t b = 0; b < benches.size(); ++b) std::printf(" %10.1f", flops[d][i] / best[d][b][i] * 1e-9);
      }
      std::printf("\n");
    }
    std::printf("%-26s", "total ms");
    for (std::size_t d = 0; d < densities.size(); ++d) {
      for (std::size_t b = 0; b < benches.size(); ++b) std::printf(" %10.3f", total[d][b] * 1e3);
    }
    std::printf("\n");
  }
  return 0;
}
