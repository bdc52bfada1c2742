#include "train/norm.h"

#include "run/team.h"
#include "train/kernels.h"

namespace penstock {
namespace {

// Calls work(kernel's maps, the image's place among maps, and among its channels) for every image.
template <typename Work>
void each_image(Team& team, const NormShape& s, const NormMaps& maps, const Work& work) {
  team.run(static_cast<int>(s.images), [&](int image, int) {
    const std::ptrdiff_t map = image * s.pixels * s.channels, row = image * s.channels;
    NormMaps own;
    own.z = maps.z + map;
    if (maps.g) own.g = maps.g + map;
    own.scale = maps.scale + row;
    own.shift = maps.shift + row;
    if (maps.extra) own.extra = maps.extra + row;
    work(own, map, row);
  });
}

}  // namespace

void norm_moments(Isa isa, Team& team, const NormShape& s, const float* z, const float* pivot, float* sums, float* squares) {
  const TrainNormKernels& kernel = train_kernels(isa).norm;
  team.run(static_cast<int>(s.images), [&](int image, int) {
    const std::ptrdiff_t row = image * s.channels;
    kernel.moments(s, z + image * s.pixels * s.channels, pivot, sums + row, squares + row);
  });
}

void norm_apply(Isa isa, Team& team, const NormShape& s, const NormMaps& maps, float* out, float* sizes) {
  const TrainNormKernels& kernel = train_kernels(isa).norm;
  each_image(team, s, maps,
             [&](const NormMaps& own, std::ptrdiff_t map, std::ptrdiff_t row) { kernel.apply(s, own, out + map, sizes + row); });
}

void norm_sums(Isa isa, Team& team, const NormShape& s, const NormMaps& maps, float* sums, float* products) {
  const TrainNormKernels& kernel = train_kernels(isa).norm;
  each_image(team, s, maps,
             [&](const NormMaps& own, std::ptrdiff_t, std::ptrdiff_t row) { kernel.sums(s, own, sums + row, products + row); });
}

void norm_gradient(Isa isa, Team& team, const NormShape& s, const NormMaps& maps, const float* k1, const float* k0, float* dz) {
  const TrainNormKernels& kernel = train_kernels(isa).norm;
  each_image(team, s, maps, [&](const NormMaps& own, std::ptrdiff_t map, std::ptrdiff_t row) {
    kernel.gradient(s, own, k1 + row, k0 + row, dz + map);
  });
}

}  // namespace penstock
