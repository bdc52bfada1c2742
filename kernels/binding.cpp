// The only file that knows Python: arrays in, arrays out, the GIL released while a network runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpu.h"
#include "exchange.h"
#include "peak.h"
#include "runtime.h"
#include "team.h"
#include "train_conv.h"
#include "train_norm.h"

namespace nb = nanobind;

namespace penstock {
namespace {

template <typename T, int Rank>
using In = nb::ndarray<const T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;
template <typename T, int Rank>
using Out = nb::ndarray<T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;

Isa isa_from(const std::string& name) {
  Isa isa;
  if (!parse_isa(name.c_str(), isa)) throw nb::value_error(("unknown instruction set " + name).c_str());
  if (!isa_available(isa)) throw nb::value_error(("this machine does not have " + name).c_str());
  return isa;
}

void require(bool good, const char* what) {
  if (!good) throw nb::value_error(what);
}

class Engine {
 public:
  Engine(std::int64_t format, const In<std::int64_t, 2>& tensors, const In<std::int64_t, 2>& ops,
         const In<float, 2>& scalars, const In<std::int64_t, 1>& args, const In<float, 1>& weights,
         std::int64_t layers, std::int64_t knobs, const std::string& isa, int threads) {
    require(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024");
    require(tensors.shape(1) == kTensorFields, "tensors: wrong number of fields");
    require(ops.shape(1) == kOpFields, "ops: wrong number of fields");
    require(scalars.shape(0) == ops.shape(0) && scalars.shape(1) == kOpScalars, "scalars: wrong shape");
    RawProgram raw;
    raw.format = format;
    raw.tensors = tensors.data();
    raw.tensor_count = static_cast<std::int64_t>(tensors.shape(0));
    raw.ops = ops.data();
    raw.op_count = static_cast<std::int64_t>(ops.shape(0));
    raw.scalars = scalars.data();
    raw.args = args.data();
    raw.arg_count = static_cast<std::int64_t>(args.shape(0));
    raw.weights = weights.data();
    raw.weight_count = static_cast<std::int64_t>(weights.shape(0));
    raw.layers = layers;
    raw.knobs = knobs;
    const Isa chosen = isa_from(isa);
    nb::gil_scoped_release release;
    runtime_ = std::make_unique<Runtime>(load_program(raw, chosen), threads);
  }

  // images (n, channels, height, width), results (n, values): the index of a bad image, or -1.
  std::int64_t run(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results) {
    RunRequest request = checked(images, winners, results);
    nb::gil_scoped_release release;
    return runtime_->run(request);
  }

  // The same for a tensor of torch, in place: its results as another one, or None when it needs preparing first, or when an
  // image is bad. `winners` as above; `size` is the results' shape after the batch.
  nb::object run_tensor(nb::handle images, const In<std::int32_t, 1>& winners, const std::vector<std::int64_t>& size) {
    const DlExchange* exchange = exchange_of(images.ptr());
    DlTensor view;
    if (!exchange || !view_floats(*exchange, images.ptr(), view) || view.rank != 4) return nb::none();
    if (!fits_input(view.shape)) return nb::none();
    std::vector<std::int64_t> shape{view.shape[0]};
    std::int64_t values = runtime_->result_floats();
    for (std::int64_t side : size) {
      require(side >= 1 && values % side == 0, "results: wrong shape");
      shape.push_back(side);
      values /= side;
    }
    require(values == 1, "results: wrong shape");
    RunRequest request = with_winners(winners);
    DlOwned results = allocate_floats(*exchange, shape.data(), static_cast<int>(shape.size()));
    if (!results) return nb::none();
    request.images = floats_of(view);
    request.count = view.shape[0];
    request.results = floats_of(results->tensor);
    std::int64_t bad;
    {
      nb::gil_scoped_release release;
      bad = runtime_->run(request);
    }
    if (bad >= 0) return nb::none();
    void* made = nullptr;
    if (exchange->managed_to(results.release(), &made) != 0) nb::raise_python_error();
    return nb::steal(static_cast<PyObject*>(made));
  }

  std::int64_t run_recorded(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results,
                            const Out<std::int64_t, 2>& macs, const Out<std::int32_t, 3>& active,
                            const Out<std::uint8_t, 2>& chosen, const Out<float, 2>& saliencies) {
    RunRequest request = checked(images, winners, results);
    const std::size_t n = images.shape(0), layers = static_cast<std::size_t>(runtime_->program().layers);
    const std::size_t width = static_cast<std::size_t>(runtime_->chosen_width());
    require(macs.shape(0) == n && macs.shape(1) == layers, "macs: wrong shape");
    require(active.shape(0) == n && active.shape(1) == layers && active.shape(2) == 2, "active: wrong shape");
    require(chosen.shape(0) == n && chosen.shape(1) == width, "chosen: wrong shape");
    require(saliencies.shape(0) == n && saliencies.shape(1) == width, "saliencies: wrong shape");
    request.macs = macs.data();
    request.active = active.data();
    request.chosen = chosen.data();
    request.saliencies = saliencies.data();
    nb::gil_scoped_release release;
    return runtime_->run(request);
  }

  // One image, timed operation by operation.
  std::int64_t run_timed(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results,
                         const Out<std::int64_t, 1>& nanoseconds, const Out<std::int32_t, 1>& algorithms) {
    RunRequest request = checked(images, winners, results);
    require(request.count == 1, "one image is timed at a time");
    require(nanoseconds.shape(0) == runtime_->program().ops.size(), "nanoseconds: wrong shape");
    require(algorithms.shape(0) == static_cast<std::size_t>(runtime_->program().layers), "algorithms: wrong shape");
    request.nanoseconds = nanoseconds.data();
    request.algorithms = algorithms.data();
    nb::gil_scoped_release release;
    return runtime_->run(request);
  }

  std::int64_t arena_bytes() const { return runtime_->context_bytes(); }
  std::int64_t tensor_bytes() const { return runtime_->program().arena_floats * 4; }
  // Floats of scratch that each operation needs, for all threads together.
  std::vector<std::int64_t> op_scratch() const {
    std::vector<std::int64_t> floats;
    for (const Op& op : runtime_->program().ops)
      floats.push_back(op.scratch.total(runtime_->threads()));
    return floats;
  }
  std::vector<int> knob_channels() const { return runtime_->program().knob_channels; }

 private:
  bool fits_input(const std::int64_t* shape) const {
    const Program& program = runtime_->program();
    const Tensor& input = program.tensors[static_cast<std::size_t>(program.input)];
    return shape[1] == input.channels && shape[2] == input.shape.height && shape[3] == input.shape.width;
  }

  RunRequest with_winners(const In<std::int32_t, 1>& winners) const {
    const std::vector<int>& channels = runtime_->program().knob_channels;
    require(winners.shape(0) == channels.size(), "winners: one number for each gated layer");
    for (std::size_t i = 0; i < channels.size(); ++i)
      require(winners.data()[i] >= 1 && winners.data()[i] <= channels[i], "winners: out of range");
    RunRequest request;
    request.winners = winners.data();
    return request;
  }

  RunRequest checked(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results) const {
    std::int64_t shape[4];
    for (std::size_t axis = 0; axis < 4; ++axis) shape[axis] = static_cast<std::int64_t>(images.shape(axis));
    require(fits_input(shape), "images: wrong shape");
    require(results.shape(0) == images.shape(0) &&
                results.shape(1) == static_cast<std::size_t>(runtime_->result_floats()),
            "results: wrong shape");
    RunRequest request = with_winners(winners);
    request.images = images.data();
    request.count = shape[0];
    request.results = results.data();
    return request;
  }

  std::unique_ptr<Runtime> runtime_;
};

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
  void backward(const In<float, 4>& x, const In<float, 4>& w, std::int64_t padding, const In<float, 4>& dy,
                const Out<float, 4>& dx, const Out<float, 4>& dw, bool wants_dx) {
    const TrainConvShape shape = checked(x, w, padding);
    require(matches(dy, shape.images, shape.out_height(), shape.out_width(), shape.out), "dy: wrong shape");
    require(!wants_dx || matches(dx, shape.images, shape.height, shape.width, shape.in), "dx: wrong shape");
    require(matches(dw, shape.out, 3, 3, shape.in), "dw: wrong shape");
    float* const to_x = wants_dx ? dx.data() : nullptr;
    alone([&] {
      train_conv_backward(isa_, *team_, scratch_, shape, x.data(), w.data(), dy.data(), to_x, dw.data());
    });
  }

  // Maps are (n, h, w, c); see train_norm.h.
  void norm_moments(const In<float, 4>& z, const In<float, 1>& pivot, const Out<float, 2>& sums, const Out<float, 2>& squares) {
    const NormShape shape = checked_maps(z, false, {&pivot}, {}, {&sums, &squares});
    alone([&] { penstock::norm_moments(isa_, *team_, shape, z.data(), pivot.data(), sums.data(), squares.data()); });
  }

  void norm_apply(const In<float, 4>& z, const In<float, 2>& scale, const In<float, 2>& shift, bool relu,
                  const Out<float, 4>& out, const Out<float, 2>& sizes) {
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
                     const In<float, 2>& extra, bool relu, const In<float, 1>& k1, const In<float, 1>& k0,
                     const Out<float, 4>& dz) {
    const NormShape shape = checked_maps(z, relu, {&k1, &k0}, {&scale, &shift, &extra}, {});
    require(same(z, g) && same(z, dz), "g, dz: wrong shape");
    const NormMaps maps{z.data(), g.data(), scale.data(), shift.data(), extra.data()};
    alone([&] { penstock::norm_gradient(isa_, *team_, shape, maps, k1.data(), k0.data(), dz.data()); });
  }

 private:
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
  nb::exception<ProgramError>(module, "ProgramError", PyExc_ValueError);
  module.attr("FORMAT") = kFormat;
  module.attr("TENSOR_FIELDS") = kTensorFields;
  module.attr("OP_FIELDS") = kOpFields;
  module.attr("OP_SCALARS") = kOpScalars;
  module.attr("VECTOR_SLACK") = kVectorSlack;
  // In the order of ConvAlgorithm.
  module.attr("ALGORITHMS") = nb::make_tuple("automatic", "direct", "packed", "winograd2", "winograd4", "winograd_rows", "outputs");
  module.def("isa_names", [] {
    std::vector<std::string> names;
    for (int i = 0; i < kIsaCount; ++i)
      if (isa_available(static_cast<Isa>(i))) names.emplace_back(isa_name(static_cast<Isa>(i)));
    return names;
  }, "The instruction sets this machine can run, narrowest first.");
  module.def("fma_peak_gflops", [](const std::string& isa, double seconds) {
    const Isa chosen = isa_from(isa);
    require(seconds > 0 && seconds <= 60, "seconds: expected a number in ]0, 60]");
    nb::gil_scoped_release release;
    return fma_peak_gflops(chosen, seconds);
  }, nb::arg("isa"), nb::arg("seconds") = 0.2, "Multiply-adds that one core does in registers, in GFLOPS.");
  nb::class_<Trainer>(module, "Trainer")
      .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
      .def("forward", &Trainer::forward)
      .def("backward", &Trainer::backward)
      .def("norm_moments", &Trainer::norm_moments)
      .def("norm_apply", &Trainer::norm_apply)
      .def("norm_sums", &Trainer::norm_sums)
      .def("norm_gradient", &Trainer::norm_gradient);
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<std::int64_t, const In<std::int64_t, 2>&, const In<std::int64_t, 2>&, const In<float, 2>&,
                    const In<std::int64_t, 1>&, const In<float, 1>&, std::int64_t, std::int64_t, const std::string&, int>(),
           nb::arg("format"), nb::arg("tensors"), nb::arg("ops"), nb::arg("scalars"), nb::arg("args"), nb::arg("weights"),
           nb::arg("layers"), nb::arg("knobs"), nb::arg("isa"), nb::arg("threads"))
      .def("run", &Engine::run)
      .def("run_tensor", &Engine::run_tensor)
      .def("run_recorded", &Engine::run_recorded)
      .def("run_timed", &Engine::run_timed)
      .def_prop_ro("arena_bytes", &Engine::arena_bytes)
      .def_prop_ro("op_scratch", &Engine::op_scratch)
      .def_prop_ro("tensor_bytes", &Engine::tensor_bytes)
      .def_prop_ro("knob_channels", &Engine::knob_channels);
}
