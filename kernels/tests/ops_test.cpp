// The operations of ops.h for every instruction set: against the baseline bit for bit, and inside their planes.
//
//     ops_test [cases] [seed]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "ops/ops.h"

namespace {

using namespace penstock;

std::mt19937 generator;
int pick(int low, int high) { return low + static_cast<int>(generator() % static_cast<unsigned>(high - low + 1)); }
float value() { return std::uniform_real_distribution<float>(-3.0f, 3.0f)(generator); }

// Exactly as long as planes.h says, so that a sanitizer sees every step outside.
std::vector<float> random_plane(Planes shape) {
  std::vector<float> plane(static_cast<std::size_t>(shape.stride()), NAN);
  for (int y = 0; y < shape.height; ++y)
    for (int x = 0; x < shape.width; ++x) plane[static_cast<std::size_t>(shape.origin() + y * shape.pitch() + x)] = value();
  zero_padding(plane.data(), shape);
  return plane;
}

bool padding_is_zero(const std::vector<float>& plane, Planes shape) {
  const std::ptrdiff_t end = static_cast<std::ptrdiff_t>(shape.height + 2 * shape.halo) * shape.pitch();
  for (std::ptrdiff_t i = 0; i < end && shape.halo > 0; ++i) {
    const std::ptrdiff_t at = i - shape.origin();
    const std::ptrdiff_t y = at < 0 ? -1 : at / shape.pitch(), x = at < 0 ? -1 : at % shape.pitch();
    const bool inside = y >= 0 && y < shape.height && x < shape.width;
    if (!inside && plane[static_cast<std::size_t>(i)] != 0.0f) return false;
  }
  return true;
}

// Compares the values only: what the slack after a plane holds does not matter.
std::vector<float> values(const OpKernels& k, const std::vector<float>& plane, Planes shape) {
  std::vector<float> image(static_cast<std::size_t>(shape.height) * static_cast<std::size_t>(shape.width));
  k.export_plane(plane.data(), shape, image.data());
  return image;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Everything one set computes from one case, in one row of numbers.
struct Case {
  Planes in{pick(1, 20), pick(1, 40), pick(0, 3)};
  Planes in2{in.height, in.width, pick(0, 3)};
  Planes out{in.height, in.width, pick(0, 3)};
  std::vector<float> a = random_plane(in), b = random_plane(in2);
  PoolShape window{{pick(1, 4), pick(1, 4), pick(1, 3), pick(1, 3), 0, 0, 1, 1}, 0, pick(0, 1) == 1};
  Pool kind = pick(0, 1) ? Pool::max : Pool::average;
  Function function = static_cast<Function>(pick(0, kFunctionCount - 1));
  int channels = pick(1, 30), outputs = pick(1, 150);
  std::vector<float> x, rows, bias;
  std::vector<std::int32_t> list;
  Case() {
    window.pad_h = pick(0, window.kernel_h / 2);
    window.pad_w = pick(0, window.kernel_w / 2);
    if (pick(0, 2) == 0) {  // the usual windows, which have code of their own
      const int size = pick(2, 3);
      window = {{size, size, 2, 2, size / 3, size / 3, 1, 1}, 0, false};
      kind = Pool::max;
    }
    for (int c = 0; c < channels; ++c)
      if (pick(0, 1)) list.push_back(c);
    for (std::size_t i = 0; i < list.size(); ++i) x.push_back(value());
    for (int i = 0; i < channels * outputs; ++i) rows.push_back(value());
    for (int i = 0; i < outputs; ++i) bias.push_back(value());
  }
};

// Whether `pooled` holds the maxima of the case's windows.
bool are_maxima(const Case& c, const std::vector<float>& pooled, int height, int width) {
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      float most = -INFINITY;
      for (int i = 0; i < c.window.kernel_h * c.window.kernel_w; ++i) {
        const int from_y = y * c.window.stride_h - c.window.pad_h + i / c.window.kernel_w;
        const int from_x = x * c.window.stride_w - c.window.pad_w + i % c.window.kernel_w;
        if (from_y < 0 || from_y >= c.in.height || from_x < 0 || from_x >= c.in.width) continue;
        most = std::max(most, c.a[static_cast<std::size_t>(c.in.origin() + from_y * c.in.pitch() + from_x)]);
      }
      if (pooled[static_cast<std::size_t>(y * width + x)] != most) return false;
    }
  }
  return true;
}

bool compute(const Case& c, Isa isa, std::vector<float>& results) {
  const OpKernels& k = op_kernels(isa);
  bool good = true;
  const auto keep = [&](const std::vector<float>& v) { results.insert(results.end(), v.begin(), v.end()); };
  for (int kind = 0; kind < kSummaryCount; ++kind) results.push_back(k.summarise(c.a.data(), c.in, static_cast<Summary>(kind)));
  std::vector<float> out(static_cast<std::size_t>(c.out.stride()), NAN);
  k.affine(c.a.data(), c.in, 0.7f, 0.2f, c.function, 0.1f, out.data(), c.out);
  good = good && padding_is_zero(out, c.out);
  keep(values(k, out, c.out));
  k.add(c.a.data(), c.in, c.b.data(), c.in2, c.function, 0.1f, out.data(), c.out);
  good = good && padding_is_zero(out, c.out);
  keep(values(k, out, c.out));
  const int height = (c.in.height + 2 * c.window.pad_h - c.window.kernel_h) / c.window.stride_h + 1;
  const int width = (c.in.width + 2 * c.window.pad_w - c.window.kernel_w) / c.window.stride_w + 1;
  if (c.in.height + 2 * c.window.pad_h >= c.window.kernel_h && c.in.width + 2 * c.window.pad_w >= c.window.kernel_w) {
    const Planes pooled{height, width, c.out.halo};
    std::vector<float> plane(static_cast<std::size_t>(pooled.stride()), NAN);
    k.pool(c.a.data(), c.in, plane.data(), pooled, c.window, c.kind);
    good = good && padding_is_zero(plane, pooled);
    good = good && (c.kind != Pool::max || are_maxima(c, values(k, plane, pooled), height, width));
    keep(values(k, plane, pooled));
  }
  results.push_back(k.reduce_window(c.a.data(), c.in, 0, c.in.height, 0, c.in.width, c.kind));
  std::vector<float> y(static_cast<std::size_t>(c.outputs));
  const int count = static_cast<int>(c.list.size());
  k.combine_rows(c.x.data(), c.list.data(), count, c.rows.data(), c.bias.data(), 0, c.outputs, c.outputs, y.data());
  keep(y);
  k.dot_blocks(c.x.data(), c.list.data(), count, 1, c.rows.data(), c.bias.data(), 0, c.outputs, c.channels, y.data());
  keep(y);
  k.apply(y.data(), c.outputs, c.function, 0.1f, y.data());
  keep(y);
  std::vector<float> image = values(k, c.a, c.in), imported(static_cast<std::size_t>(c.in.stride()), NAN);
  good = good && k.import_plane(image.data(), c.in, imported.data()) && padding_is_zero(imported, c.in);
  good = good && same(values(k, imported, c.in), image);
  image[static_cast<std::size_t>(pick(0, static_cast<int>(image.size()) - 1))] = pick(0, 1) ? NAN : -INFINITY;
  good = good && !k.import_plane(image.data(), c.in, imported.data());
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 400;
  generator.seed(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
  int failed = 0;
  for (int n = 0; n < cases; ++n) {
    const Case c;
    std::vector<float> expected;
    if (!compute(c, Isa::baseline, expected)) std::printf("case %d: baseline is wrong\n", n), ++failed;
    for (int i = 1; i < kIsaCount; ++i) {
      const Isa isa = static_cast<Isa>(i);
      std::vector<float> found;
      if (!isa_available(isa)) continue;
      if (!compute(c, isa, found) || !same(found, expected)) std::printf("case %d: %s differs\n", n, isa_name(isa)), ++failed;
    }
  }
  std::printf("%d cases, %d failed\n", cases, failed);
  return failed != 0;
}
