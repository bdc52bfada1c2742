// Lists of winners, and norms on packed maps: each image's numbers are gathered, and norm.h's kernels see a map of winners.
#include <algorithm>
#include <vector>

#include "run/team.h"
#include "train/kernels.h"
#include "train/skip.h"

namespace penstock {
namespace {

using Row = std::vector<float>;

Row gathered(const Winners& winners, std::int64_t image, const float* numbers) {
  Row row(static_cast<std::size_t>(winners.pitch(image)), 0.0f);
  winners.gather(image, numbers + image * winners.channels(), row.data());
  return row;
}

// Calls work(image, its maps, its shape, a row for each of two results) for every image, and scatters the results.
template <typename Work>
void each_packed(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const NormMaps& maps, float* one, float* two,
                 const Work& work) {
  const Winners winners(won, s.images, s.channels, train_kernels(isa).skip.lanes);
  team.run(static_cast<int>(s.images), [&](int image, int) {
    const std::ptrdiff_t map = image * s.pixels * winners.capacity();
    const Row scale = gathered(winners, image, maps.scale), shift = gathered(winners, image, maps.shift);
    const Row extra = maps.extra ? gathered(winners, image, maps.extra) : Row{};
    const NormMaps own{maps.z + map, maps.g ? maps.g + map : nullptr, scale.data(), shift.data(), extra.data()};
    const NormShape shape{1, s.pixels, winners.pitch(image), s.relu};
    Row first(scale.size()), second(scale.size());
    work(shape, own, map, first.data(), second.data());
    if (one) winners.scatter(image, first.data(), one + image * s.channels);
    if (two) winners.scatter(image, second.data(), two + image * s.channels);
  });
}

}  // namespace

Winners::Winners(const std::uint8_t* won, std::int64_t images, std::int64_t channels, int lanes)
    : channels_(channels), lanes_(lanes), lists_(static_cast<std::size_t>(images * channels)) {
  for (std::int64_t image = 0; image < images; ++image) {
    std::int32_t* const list = lists_.data() + image * channels;
    std::int32_t count = 0;
    for (std::int64_t c = 0; c < channels; ++c) {  // no branch: which channel wins cannot be predicted
      list[count] = static_cast<std::int32_t>(c);
      count += won[image * channels + c] != 0;
    }
    counts_.push_back(count);
    widest_ = std::max(widest_, pitch(image));
  }
}

std::int64_t Winners::place(std::int64_t image, std::int64_t channel) const {
  const std::int32_t* const first = list(image);
  return std::lower_bound(first, first + count(image), static_cast<std::int32_t>(channel)) - first;
}

void Winners::gather(std::int64_t image, const float* numbers, float* packed) const {
  const std::int32_t* const own = list(image);
  for (std::int64_t i = 0; i < count(image); ++i) packed[i] = numbers[own[i]];
}

void Winners::scatter(std::int64_t image, const float* packed, float* numbers) const {
  std::fill_n(numbers, channels_, 0.0f);
  const std::int32_t* const own = list(image);
  for (std::int64_t i = 0; i < count(image); ++i) numbers[own[i]] = packed[i];
}

void skip_moments(Isa isa, const Winners& winners, std::int64_t image, std::int64_t pixels, const float* z, float* means,
                  float* squares) {
  const std::int64_t pitch = winners.pitch(image);
  Row sums(static_cast<std::size_t>(pitch)), powers(sums.size());
  // Values are taken relative to their plane's first one, which is near them, so that squares do not cancel.
  if (pitch) train_kernels(isa).norm.moments({1, pixels, pitch, false}, z, z, sums.data(), powers.data());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double total = sums[i], count = static_cast<double>(pixels);
    powers[i] = static_cast<float>(std::max(0.0, powers[i] - total * total / count));
    sums[i] = static_cast<float>(z[i] + total / count);
  }
  winners.scatter(image, sums.data(), means);
  winners.scatter(image, powers.data(), squares);
}

void skip_norm_gradient(Isa isa, const Winners& winners, std::int64_t image, std::int64_t pixels, const SkipGradient& gradient,
                        float* dz) {
  const NormMaps& maps = gradient.maps;
  const std::ptrdiff_t map = image * pixels * winners.capacity();
  const Row scale = gathered(winners, image, maps.scale), shift = gathered(winners, image, maps.shift);
  const Row extra = gathered(winners, image, maps.extra);
  const Row k1 = gathered(winners, image, gradient.k1), k0 = gathered(winners, image, gradient.k0);
  const NormMaps own{maps.z + map, maps.g + map, scale.data(), shift.data(), extra.data()};
  train_kernels(isa).norm.gradient({1, pixels, winners.pitch(image), gradient.relu}, own, k1.data(), k0.data(), dz);
}

void skip_apply(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const NormMaps& maps, float* out, float* sizes) {
  const TrainNormKernels& kernel = train_kernels(isa).norm;
  each_packed(isa, team, s, won, maps, sizes, nullptr,
              [&](const NormShape& shape, const NormMaps& own, std::ptrdiff_t map, float* size, float*) {
                kernel.apply(shape, own, out + map, size);
              });
}

void skip_sums(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const NormMaps& maps, float* sums,
               float* products) {
  const TrainNormKernels& kernel = train_kernels(isa).norm;
  each_packed(isa, team, s, won, maps, sums, products,
              [&](const NormShape& shape, const NormMaps& own, std::ptrdiff_t, float* sum, float* product) {
                kernel.sums(shape, own, sum, product);
              });
}

void skip_pack(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const float* whole, float* packed) {
  const Winners winners(won, s.images, s.channels, train_kernels(isa).skip.lanes);
  team.run(static_cast<int>(s.images), [&](int image, int) {
    const float* from = whole + image * s.pixels * s.channels;
    float* to = packed + image * s.pixels * winners.capacity();
    const std::int64_t count = winners.count(image), pitch = winners.pitch(image);
    for (std::int64_t p = 0; p < s.pixels; ++p, from += s.channels, to += pitch) {
      winners.gather(image, from, to);
      std::fill(to + count, to + pitch, 0.0f);
    }
  });
}

void skip_unpack(Isa isa, Team& team, const NormShape& s, const std::uint8_t* won, const float* packed, float* whole) {
  const Winners winners(won, s.images, s.channels, train_kernels(isa).skip.lanes);
  team.run(static_cast<int>(s.images), [&](int image, int) {
    const float* from = packed + image * s.pixels * winners.capacity();
    float* to = whole + image * s.pixels * s.channels;
    for (std::int64_t p = 0; p < s.pixels; ++p, from += winners.pitch(image), to += s.channels) winners.scatter(image, from, to);
  });
}

}  // namespace penstock
