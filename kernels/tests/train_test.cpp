// The training kernels against naive loops, on random shapes, for every instruction set: train_test [cases].
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "run/team.h"
#include "train/conv.h"
#include "train/norm.h"

namespace {

using penstock::Isa;
using Floats = std::vector<float>;

std::mt19937 chance(1);

std::int64_t draw(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(chance); }

Floats fill(std::int64_t count) {
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(chance);
  return values;
}

// The largest error, relative to the largest size that the sums could have had.
bool close(const char* what, const Floats& found, const Floats& wanted, const Floats& sizes) {
  double scale = 1e-6, error = 0;
  for (float size : sizes) scale = std::fmax(scale, size);
  for (std::size_t i = 0; i < wanted.size(); ++i) error = std::fmax(error, std::fabs(found[i] - wanted[i]));
  if (error <= 1e-4 * scale) return true;
  std::printf("%s: error %g of %g\n", what, error, scale);
  return false;
}

// Calls work(place in x, in w, in y) for every product of the convolution.
template <typename Work>
void each_product(const penstock::TrainConvShape& s, const Work& work) {
  for (std::int64_t n = 0; n < s.images; ++n)
    for (std::int64_t y = 0; y < s.out_height(); ++y)
      for (std::int64_t x = 0; x < s.out_width(); ++x)
        for (std::int64_t ky = 0; ky < 3; ++ky)
          for (std::int64_t kx = 0; kx < 3; ++kx) {
            const std::int64_t iy = y + ky - s.padding, ix = x + kx - s.padding;
            if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
            for (std::int64_t o = 0; o < s.out; ++o)
              for (std::int64_t i = 0; i < s.in; ++i)
                work(static_cast<std::size_t>(((n * s.height + iy) * s.width + ix) * s.in + i),
                     static_cast<std::size_t>(((o * 3 + ky) * 3 + kx) * s.in + i),
                     static_cast<std::size_t>(((n * s.out_height() + y) * s.out_width() + x) * s.out + o));
          }
}

bool check_conv(Isa isa, penstock::Team& team) {
  const penstock::TrainConvShape s{draw(1, 3), draw(1, 37), draw(1, 37), draw(3, 11), draw(3, 11), draw(0, 2)};
  const Floats x = fill(s.images * s.height * s.width * s.in), w = fill(s.out * 9 * s.in);
  const Floats dy = fill(s.images * s.out_height() * s.out_width() * s.out);
  Floats y(dy.size()), dx(x.size()), dw(w.size()), y_size(y.size()), dx_size(x.size()), dw_size(w.size());
  each_product(s, [&](std::size_t a, std::size_t b, std::size_t c) {
    y[c] += x[a] * w[b], y_size[c] += std::fabs(x[a] * w[b]);
    dx[a] += dy[c] * w[b], dx_size[a] += std::fabs(dy[c] * w[b]);
    dw[b] += dy[c] * x[a], dw_size[b] += std::fabs(dy[c] * x[a]);
  });
  penstock::Scratch scratch;
  Floats y2(y.size()), dx2(x.size()), dw2(w.size());
  penstock::train_conv_forward(isa, team, scratch, s, x.data(), w.data(), y2.data());
  penstock::train_conv_backward(isa, team, scratch, s, x.data(), w.data(), dy.data(), dx2.data(), dw2.data());
  return close("y", y2, y, y_size) && close("dx", dx2, dx, dx_size) && close("dw", dw2, dw, dw_size);
}

bool check_norm(Isa isa, penstock::Team& team) {
  const penstock::NormShape s{draw(1, 3), draw(1, 30), draw(1, 70), draw(0, 1) == 1};
  const std::int64_t rows = s.images * s.channels;
  const Floats z = fill(rows * s.pixels), g = fill(rows * s.pixels), a = fill(rows), b = fill(rows), e = fill(rows);
  const Floats k1 = fill(rows), k0 = fill(rows), pivot = fill(s.channels);
  const penstock::NormMaps maps{z.data(), g.data(), a.data(), b.data(), e.data()};
  Floats out(z.size()), dz(z.size()), sizes(a.size()), sums(a.size()), products(a.size()), wide(1, 1e2f * s.pixels);
  for (std::size_t i = 0; i < z.size(); ++i) {
    const std::size_t channel = i % static_cast<std::size_t>(s.channels);
    const std::size_t row = i / static_cast<std::size_t>(s.pixels * s.channels) * static_cast<std::size_t>(s.channels) + channel;
    const float o = std::fma(a[row], z[i], b[row]);
    const float sign = static_cast<float>((o > 0) - (o < 0));
    const float h = s.relu ? (o > 0 ? g[i] + e[row] : 0) : g[i] + e[row] * sign;
    out[i] = s.relu && o < 0 ? 0 : o;
    sizes[row] += std::fabs(out[i]);
    sums[row] += h, products[row] += h * z[i];
    dz[i] = a[row] * h + k1[row] * z[i] + k0[row];
  }
  Floats out2(z.size()), dz2(z.size()), sizes2(a.size()), sums2(a.size()), products2(a.size()), moments(a.size()),
      squares(a.size());
  penstock::norm_apply(isa, team, s, maps, out2.data(), sizes2.data());
  penstock::norm_sums(isa, team, s, maps, sums2.data(), products2.data());
  penstock::norm_gradient(isa, team, s, maps, k1.data(), k0.data(), dz2.data());
  penstock::norm_moments(isa, team, s, z.data(), pivot.data(), moments.data(), squares.data());
  return close("out", out2, out, wide) && close("sizes", sizes2, sizes, wide) && close("sums", sums2, sums, wide) &&
         close("products", products2, products, wide) && close("dz", dz2, dz, wide);
}

}  // namespace

int main(int count, char** words) {
  const int cases = count > 1 ? std::atoi(words[1]) : 60;
  int failed = 0;
  for (int i = 0; i < penstock::kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!penstock::isa_available(isa)) continue;
    penstock::Team team(2);
    for (int one = 0; one < cases; ++one) failed += !check_conv(isa, team) + !check_norm(isa, team);
    std::printf("%s: %d cases of each kind\n", penstock::isa_name(isa), cases);
  }
  return failed > 0;
}
