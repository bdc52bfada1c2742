// What the benchmarks of convolutions time: the layers of some networks, and random lists of active channels.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "conv/conv.h"
#include "machine/machine.h"

namespace penstock {

struct Layer {
  int in, out, size, kernel, stride, pad;
  int repeat = 1;  // times the layer occurs in the network
  int groups = 1;

  bool reads_image() const { return in <= 4; }  // an image has all of its channels at every density
};

struct Network {
  std::string name;
  std::vector<Layer> layers;
};

// Whole networks, and "others": layers of 1x1 kernels, of depthwise and of grouped convolutions.
inline const std::vector<Network>& benchmark_networks() {
  static const std::vector<Network> networks = {
      {"m_cifarnet",
       {{3, 64, 32, 3, 1, 0},
        {64, 64, 30, 3, 1, 1},
        {64, 128, 30, 3, 2, 1},
        {128, 128, 15, 3, 1, 1, 2},
        {128, 192, 15, 3, 2, 1},
        {192, 192, 8, 3, 1, 1, 2}}},
      {"vgg16",
       {{3, 64, 224, 3, 1, 1},
        {64, 64, 224, 3, 1, 1},
        {64, 128, 112, 3, 1, 1},
        {128, 128, 112, 3, 1, 1},
        {128, 256, 56, 3, 1, 1},
        {256, 256, 56, 3, 1, 1, 2},
        {256, 512, 28, 3, 1, 1},
        {512, 512, 28, 3, 1, 1, 2},
        {512, 512, 14, 3, 1, 1, 3}}},
      {"resnet18",
       {{3, 64, 224, 7, 2, 3},
        {64, 64, 56, 3, 1, 1, 4},
        {64, 128, 56, 3, 2, 1},
        {64, 128, 56, 1, 2, 0},
        {128, 128, 28, 3, 1, 1, 3},
        {128, 256, 28, 3, 2, 1},
        {128, 256, 28, 1, 2, 0},
        {256, 256, 14, 3, 1, 1, 3},
        {256, 512, 14, 3, 2, 1},
        {256, 512, 14, 1, 2, 0},
        {512, 512, 7, 3, 1, 1, 3}}},
      {"others",
       {{256, 64, 56, 1, 1, 0},
        {64, 256, 56, 1, 1, 0},
        {512, 128, 28, 1, 1, 0},
        {144, 144, 56, 3, 1, 1, 1, 144},
        {384, 384, 14, 3, 1, 1, 1, 384},
        {128, 128, 56, 3, 1, 1, 1, 32}}},
  };
  return networks;
}

inline ConvSizes sizes_of(const Layer& layer) {
  ConvSizes s;
  s.in_channels = layer.in;
  s.out_channels = layer.out;
  s.kernel_h = s.kernel_w = layer.kernel;
  s.stride_h = s.stride_w = layer.stride;
  s.pad_h = s.pad_w = layer.pad;
  s.groups = layer.groups;
  const int size = conv_output_size(layer.size, layer.kernel, layer.stride, layer.pad, 1);
  s.input = {layer.size, layer.size, std::max(layer.pad, 1)};
  s.output = {size, size, 1};
  return s;
}

// As many channels as a gate of this density lets through, at random, in increasing order.
inline std::vector<std::int32_t> random_list(int channels, double density, std::mt19937& random) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(channels));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<std::size_t>(std::max(1.0, std::ceil(density * channels))));
  std::sort(all.begin(), all.end());
  return all;
}

inline std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') parts.emplace_back();
    else parts.back() += c;
  }
  return parts;
}

// One row of tuning for each value of a sweep, such as "fresh_share=0.4,0.6": the value as text, and the row. Without a sweep, the row
// as it is, with an empty text. Ends the program when the tuning has no such number.
inline std::vector<std::pair<std::string, Tuning>> swept(const std::string& sweep, const Tuning& tuning) {
  if (sweep.empty()) return {{"", tuning}};
  const std::size_t equals = std::min(sweep.find('='), sweep.size() - 1);
  std::vector<std::pair<std::string, Tuning>> rows;
  for (const std::string& value : split(sweep.substr(equals + 1))) {
    rows.emplace_back(value, tuning);
    if (set_tuning(rows.back().second, sweep.substr(0, equals), std::atof(value.c_str()))) continue;
    std::fprintf(stderr, "machine/tuning.def has no %s\n", sweep.substr(0, equals).c_str());
    std::exit(1);
  }
  return rows;
}

// The instruction set that PENSTOCK_ISA names, or the widest. Ends the program when this machine has no such set.
inline Isa isa_asked_for() {
  Isa isa = best_isa();
  if (const char* name = std::getenv("PENSTOCK_ISA"); name && !(parse_isa(name, isa) && isa_available(isa))) {
    std::fprintf(stderr, "PENSTOCK_ISA=%s: this machine has baseline and up to %s\n", name, isa_name(best_isa()));
    std::exit(1);
  }
  return isa;
}

}  // namespace penstock
