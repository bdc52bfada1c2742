// The Python module: what the machine has, and the kernels of training. binding_engine.cpp has the engine.
#include "run/binding.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine/peak.h"
#include "run/program.h"
#include "run/team.h"
#include "train/conv.h"
#include "train/norm.h"
#include "train/skip.h"

namespace penstock {
namespace {

// Convolutions and norms for training; a Trainer holds the threads and serves one caller at a time.
class Trainer {
 public:
  Trainer(const std::string& isa, int threads) : isa_(isa_from(isa)) {
    require(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024");
    team_ = std::make_unique<Team>(threads);
  }

  // x (n, h, w, in), w (out, 3, 3, in), y (n, h', w', out).
  void forward(const In<float, 4>& x, const In<float, 4>& w, std::int64_t padding, const Out<float, 4>& y) {
    const TrainConvShape shape = checked(x, w, padding);
    require(matches(y, shape.images, shape.out_height(), shape.out_width(), shape.out), "y: wrong shape");
    alone([&] { train_conv_forward(isa_, *team_, scratch_, shape, x.data(), w.data(), y.data()); });
  }

  // dx is written only when `wants_dx`.
  void backward(const In<float, 4>& x, const In<float, 4>& w, std::int64_t padding, const In<float, 4>& dy, const Out<float, 4>& dx,
                const Out<float, 4>& dw, bool wants_dx) {
    const TrainConvShape shape = checked(x, w, padding);
    require(matches(dy, shape.images, shape.out_height(), shape.out_width(), shape.out), "dy: wrong shape");
    require(!wants_dx || matches(dx, shape.images, shape.height, shape.width, shape.in), "dx: wrong shape");
    require(matches(dw, shape.out, 3, 3, shape.in), "dw: wrong shape");
    float* const to_x = wants_dx ? dx.data() : nullptr;
    alone([&] { train_conv_backward(isa_, *team_, scratch_, shape, x.data(), w.data(), dy.data(), to_x, dw.data()); });
  }

  // Maps are (n, h, w, c); see train/norm.h.
  void norm_moments(const In<float, 4>& z, const In<float, 1>& pivot, const Out<float, 2>& sums, const Out<float, 2>& squares) {
    const NormShape shape = checked_maps(z, false, {&pivot}, {}, {&sums, &squares});
    alone([&] { penstock::norm_moments(isa_, *team_, shape, z.data(), pivot.data(), sums.data(), squares.data()); });
  }

  void norm_apply(const In<float, 4>& z, const In<float, 2>& scale, const In<float, 2>& shift, bool relu, const Out<float, 4>& out,
                  const Out<float, 2>& sizes) {
    const NormShape shape = checked_maps(z, relu, {}, {&scale, &shift}, {&sizes});
    require(same(z, out), "out: wrong shape");
    const NormMaps maps{z.data(), nullptr, scale.data(), shift.data(), nullptr};
    alone([&] { penstock::norm_apply(isa_, *team_, shape, maps, out.data(), sizes.data()); });
  }

  void norm_sums(const In<float, 4>& z, const In<float, 4>& g, const In<float, 2>& scale, const In<float, 2>& shift,
                 const In<float, 2>& extra, bool relu, const Out<float, 2>& sums, const Out<float, 2>& products) {
    const NormShape shape = checked_maps(z, relu, {}, {&scale, &shift, &extra}, {&sums, &products});
    require(same(z, g), "g: wrong shape");
    const NormMaps maps{z.data(), g.data(), scale.data(), shift.data(), extra.data()};
    alone([&] { penstock::norm_sums(isa_, *team_, shape, maps, sums.data(), products.data()); });
  }

  void norm_gradient(const In<float, 4>& z, const In<float, 4>& g, const In<float, 2>& scale, const In<float, 2>& shift,
                     const In<float, 2>& extra, bool relu, const In<float, 2>& k1, const In<float, 2>& k0,
                     const Out<float, 4>& dz) {
    const NormShape shape = checked_maps(z, relu, {}, {&scale, &shift, &extra, &k1, &k0}, {});
    require(same(z, g) && same(z, dz), "g, dz: wrong shape");
    const NormMaps maps{z.data(), g.data(), scale.data(), shift.data(), extra.data()};
    alone([&] { penstock::norm_gradient(isa_, *team_, shape, maps, k1.data(), k0.data(), dz.data()); });
  }

  // Training that computes winners only; see skip.h. Packed maps are (n, h, w, capacity), who won is (n, c).
  void skip_forward(const In<float, 4>& x, const In<std::uint8_t, 2>& won_in, const In<float, 4>& w,
                    const In<std::uint8_t, 2>& won_out, std::int64_t stride, std::int64_t padding, const Out<float, 4>& z,
                    const Out<float, 2>& means, const Out<float, 2>& squares) {
    const SkipShape s = checked_skip(x, won_in, w, won_out, stride, padding);
    require(is_packed(z, s.images, s.out_height(), s.out_width(), s.out), "z: wrong shape");
    for (const auto* one : {&means, &squares}) require(has(*one, s.images, s.out), "moments: wrong shape");
    alone([&] {
      penstock::skip_forward(isa_, *team_, scratch_, s, x.data(), won_in.data(), w.data(), won_out.data(), z.data(), means.data(),
                             squares.data());
    });
  }

  void skip_apply(const In<float, 4>& z, const In<std::uint8_t, 2>& won, const In<float, 2>& scale, const In<float, 2>& shift,
                  bool relu, const Out<float, 4>& out, const Out<float, 2>& sizes) {
    const NormShape s = checked_packed(z, won, relu, {&scale, &shift});
    require(same(z, out) && has(sizes, s.images, s.channels), "out, sizes: wrong shape");
    const NormMaps maps{z.data(), nullptr, scale.data(), shift.data(), nullptr};
    alone([&] { penstock::skip_apply(isa_, *team_, s, won.data(), maps, out.data(), sizes.data()); });
  }

  void skip_sums(const In<float, 4>& z, const In<float, 4>& g, const In<std::uint8_t, 2>& won, const In<float, 2>& scale,
                 const In<float, 2>& shift, const In<float, 2>& extra, bool relu, const Out<float, 2>& sums,
                 const Out<float, 2>& products) {
    const NormShape s = checked_packed(z, won, relu, {&scale, &shift, &extra});
    require(same(z, g), "g: wrong shape");
    for (const auto* one : {&sums, &products}) require(has(*one, s.images, s.channels), "sums: wrong shape");
    const NormMaps maps{z.data(), g.data(), scale.data(), shift.data(), extra.data()};
    alone([&] { penstock::skip_sums(isa_, *team_, s, won.data(), maps, sums.data(), products.data()); });
  }

  // dx is written only when `wants_dx`.
  void skip_backward(const In<float, 4>& x, const In<std::uint8_t, 2>& won_in, const In<float, 4>& w,
                     const In<std::uint8_t, 2>& won_out, std::int64_t stride, std::int64_t padding, const In<float, 4>& z,
                     const In<float, 4>& g, const In<float, 2>& scale, const In<float, 2>& shift, const In<float, 2>& extra,
                     bool relu, const In<float, 2>& k1, const In<float, 2>& k0, const Out<float, 4>& dx, const Out<float, 4>& dw,
                     bool wants_dx) {
    const SkipShape s = checked_skip(x, won_in, w, won_out, stride, padding);
    require(is_packed(z, s.images, s.out_height(), s.out_width(), s.out) && same(z, g), "z, g: wrong shape");
    for (const auto* one : {&scale, &shift, &extra, &k1, &k0})
      require(has(*one, s.images, s.out), "numbers of images: wrong shape");
    require(!wants_dx || same(x, dx), "dx: wrong shape");
    require(matches(dw, s.out, 3, 3, s.in), "dw: wrong shape");
    const SkipGradient gradient{{z.data(), g.data(), scale.data(), shift.data(), extra.data()}, k1.data(), k0.data(), relu};
    float* const to_x = wants_dx ? dx.data() : nullptr;
    alone([&] {
      penstock::skip_backward(isa_, *team_, scratch_, s, x.data(), won_in.data(), w.data(), won_out.data(), gradient, to_x,
                              dw.data());
    });
  }

  void skip_pack(const In<float, 4>& whole, const In<std::uint8_t, 2>& won, const Out<float, 4>& packed) {
    const NormShape s = checked_packed(packed, won, false, {});
    require(matches(whole, s.images, size(packed, 1), size(packed, 2), s.channels), "whole: wrong shape");
    alone([&] { penstock::skip_pack(isa_, *team_, s, won.data(), whole.data(), packed.data()); });
  }

  void skip_unpack(const In<float, 4>& packed, const In<std::uint8_t, 2>& won, const Out<float, 4>& whole) {
    const NormShape s = checked_packed(packed, won, false, {});
    require(matches(whole, s.images, size(packed, 1), size(packed, 2), s.channels), "whole: wrong shape");
    alone([&] { penstock::skip_unpack(isa_, *team_, s, won.data(), packed.data(), whole.data()); });
  }

 private:
  template <typename Array>
  static std::int64_t size(const Array& array, std::size_t i) {
    return static_cast<std::int64_t>(array.shape(i));
  }

  template <typename Array>
  static bool has(const Array& array, std::int64_t rows, std::int64_t columns) {
    return size(array, 0) == rows && size(array, 1) == columns;
  }

  template <typename Array>
  static bool is_packed(const Array& map, std::int64_t images, std::int64_t height, std::int64_t width, std::int64_t channels) {
    return matches(map, images, height, width, skip_capacity(channels));
  }

  template <typename Array>
  static NormShape checked_packed(const Array& map, const In<std::uint8_t, 2>& won, bool relu,
                                  std::initializer_list<const In<float, 2>*> rows) {
    const std::int64_t images = size(won, 0), channels = size(won, 1);
    require(images >= 1 && images <= (std::int64_t{1} << 24) && channels >= 1, "won: out of range");
    require(is_packed(map, images, size(map, 1), size(map, 2), channels), "map: wrong shape");
    for (const auto* one : rows) require(has(*one, images, channels), "numbers of images: wrong shape");
    return {images, size(map, 1) * size(map, 2), channels, relu};
  }

  static SkipShape checked_skip(const In<float, 4>& x, const In<std::uint8_t, 2>& won_in, const In<float, 4>& w,
                                const In<std::uint8_t, 2>& won_out, std::int64_t stride, std::int64_t padding) {
    const SkipShape s{size(x, 0), size(w, 3), size(w, 0), size(x, 1), size(x, 2), padding, stride};
    const char* what = nullptr;
    if (!valid(s, &what)) throw nb::value_error((std::string(what) + ": out of range").c_str());
    require(is_packed(x, s.images, s.height, s.width, s.in), "x: wrong shape");
    require(matches(w, s.out, 3, 3, s.in), "w: wrong shape");
    require(has(won_in, s.images, s.in) && has(won_out, s.images, s.out), "who won: wrong shape");
    return s;
  }

  // Runs work without the GIL and without other callers.
  template <typename Work>
  void alone(const Work& work) {
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(mutex_);
    work();
  }

  template <typename Array>
  static bool same(const In<float, 4>& z, const Array& other) {
    const auto side = [&](std::size_t i) { return static_cast<std::int64_t>(z.shape(i)); };
    return matches(other, side(0), side(1), side(2), side(3));
  }

  static NormShape checked_maps(const In<float, 4>& z, bool relu, std::initializer_list<const In<float, 1>*> channels,
                                std::initializer_list<const In<float, 2>*> rows,
                                std::initializer_list<const Out<float, 2>*> results) {
    const std::size_t n = z.shape(0), c = z.shape(3);
    require(n >= 1 && n <= (std::size_t{1} << 30), "images: out of range");
    for (const auto* one : channels) require(one->shape(0) == c, "numbers of channels: wrong shape");
    for (const auto* one : rows) require(one->shape(0) == n && one->shape(1) == c, "numbers of images: wrong shape");
    for (const auto* one : results) require(one->shape(0) == n && one->shape(1) == c, "results: wrong shape");
    return {static_cast<std::int64_t>(n), static_cast<std::int64_t>(z.shape(1) * z.shape(2)), static_cast<std::int64_t>(c), relu};
  }

  template <typename Array>
  static bool matches(const Array& array, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    const std::int64_t wanted[4] = {a, b, c, d};
    for (std::size_t i = 0; i < 4; ++i)
      if (static_cast<std::int64_t>(array.shape(i)) != wanted[i]) return false;
    return true;
  }

  static TrainConvShape checked(const In<float, 4>& x, const In<float, 4>& w, std::int64_t padding) {
    const auto size = [](const In<float, 4>& array, std::size_t i) { return static_cast<std::int64_t>(array.shape(i)); };
    const TrainConvShape shape{size(x, 0), size(x, 3), size(w, 0), size(x, 1), size(x, 2), padding};
    const char* what = nullptr;
    if (!valid(shape, &what)) throw nb::value_error((std::string(what) + ": out of range").c_str());
    require(matches(w, shape.out, 3, 3, shape.in), "w: wrong shape");
    return shape;
  }

  Isa isa_;
  std::mutex mutex_;
  Scratch scratch_;
  std::unique_ptr<Team> team_;
};

}  // namespace
}  // namespace penstock

NB_MODULE(_native, module) {
  using namespace penstock;
  module.doc() = "Penstock's native runtime: programs of plain numbers in, results out.";
  nanobind::set_leak_warnings(false);  // an engine may live until the interpreter ends, in a server's worker for one
  module.attr("FORMAT") = kFormat;
  module.attr("OP_FIELDS") = kOpFields;
  module.attr("VECTOR_SLACK") = kVectorSlack;
  // {list: its names}; a name's place is its number in a program.
  nb::dict numbers;
  int rows = 0;
  for (const SchemaRow* row = schema(rows); rows > 0; ++row, --rows) {
    nb::list names;
    for (int i = 0; i < row->count; ++i) names.append(row->names[i]);
    numbers[row->name] = nb::tuple(names);
  }
  module.attr("SCHEMA") = numbers;
  nb::list algorithm_names;
  algorithm_names.append("automatic");
  for (const Algorithm* algorithm : algorithms()) algorithm_names.append(algorithm->name);
  module.attr("ALGORITHMS") = nb::tuple(algorithm_names);
  module.attr("CORE") = this_core().name;
  module.def(
      "isa_names",
      [] {
        std::vector<std::string> names;
        for (int i = 0; i < kIsaCount; ++i)
          if (isa_available(static_cast<Isa>(i))) names.emplace_back(isa_name(static_cast<Isa>(i)));
        return names;
      },
      "The instruction sets this machine can run, narrowest first.");
  module.def("processor_name", &processor_name, nb::arg("vendor"), nb::arg("family"), nb::arg("model"),
             "What a processor's generation is called, from the vendor, family and model of /proc/cpuinfo; empty if not known.");
  module.def(
      "tuning",
      [](const std::string& isa) {
        const Tuning tuning = this_machine(isa_from(isa)).tuning;
        nb::dict numbers;
#define TUNE(type, name, value) numbers[#name] = static_cast<double>(tuning.name);
#include "machine/tuning.def"
#undef TUNE
        return numbers;
      },
      nb::arg("isa"), "What planning follows on this machine, by name (kernels/machine/tuning.def).");
  module.def(
      "fma_peak_gflops",
      [](const std::string& isa, double seconds) {
        const Isa chosen = isa_from(isa);
        require(seconds > 0 && seconds <= 60, "seconds: expected a number in ]0, 60]");
        nb::gil_scoped_release release;
        return fma_peak_gflops(chosen, seconds);
      },
      nb::arg("isa"), nb::arg("seconds") = 0.2, "Multiply-adds that one core does in registers, in GFLOPS.");
  nb::class_<Trainer>(module, "Trainer")
      .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
      .def("forward", &Trainer::forward)
      .def("backward", &Trainer::backward)
      .def("norm_moments", &Trainer::norm_moments)
      .def("norm_apply", &Trainer::norm_apply)
      .def("norm_sums", &Trainer::norm_sums)
      .def("norm_gradient", &Trainer::norm_gradient)
      .def("skip_forward", &Trainer::skip_forward)
      .def("skip_apply", &Trainer::skip_apply)
      .def("skip_sums", &Trainer::skip_sums)
      .def("skip_backward", &Trainer::skip_backward)
      .def("skip_pack", &Trainer::skip_pack)
      .def("skip_unpack", &Trainer::skip_unpack);
  bind_engine(module);
}
