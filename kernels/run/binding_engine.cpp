// The engine as Python sees it: arrays in, arrays out, the GIL released while a network runs.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api/checksum.h"
#include "api/model.h"
#include "run/binding.h"
#include "run/exchange.h"
#include "run/rooms.h"

namespace penstock {
namespace {

class Engine {
 public:
  Engine(std::shared_ptr<const File> file, const std::string& isa, int threads) {
    const Isa chosen = isa_from(isa);
    nb::gil_scoped_release release;
    model_ = std::make_unique<Model>(std::move(file), chosen, threads);
    runtime_ = &model_->runtime();
  }

  // images (n, channels, height, width), results (n, values): where a value is not finite, or None.
  nb::object run(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results) {
    return carry_out(checked(images, winners, results));
  }

  // The same for a tensor of torch, in place: its results as another one, or None when it needs preparing first, or when an
  // image is bad. `winners` as above; `size` is the results' shape after the batch.
  nb::object run_tensor(nb::handle images, const In<std::int32_t, 1>& winners, const std::vector<std::int64_t>& size) {
    const DLPackExchangeAPI* exchange = exchange_of(images.ptr());
    DLTensor view;
    if (!exchange || !view_floats(*exchange, images.ptr(), view) || view.ndim != 4) return nb::none();
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
    request.results = floats_of(results->dl_tensor);
    if (!carry_out(request).is_none()) return nb::none();
    void* made = nullptr;
    if (exchange->managed_tensor_to_py_object_no_sync(results.release(), &made) != 0) nb::raise_python_error();
    return nb::steal(static_cast<PyObject*>(made));
  }

  nb::object run_recorded(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results,
                          const Out<std::int64_t, 2>& macs, const Out<std::int32_t, 3>& active, const Out<std::uint8_t, 2>& chosen,
                          const Out<float, 2>& saliencies) {
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
    return carry_out(request);
  }

  // One image, timed operation by operation.
  nb::object run_timed(const In<float, 4>& images, const In<std::int32_t, 1>& winners, const Out<float, 2>& results,
                       const Out<std::int64_t, 1>& nanoseconds, const Out<std::int32_t, 1>& algorithms) {
    RunRequest request = checked(images, winners, results);
    require(request.count == 1, "one image is timed at a time");
    require(nanoseconds.shape(0) == runtime_->program().ops.size(), "nanoseconds: wrong shape");
    require(algorithms.shape(0) == static_cast<std::size_t>(runtime_->program().layers), "algorithms: wrong shape");
    request.nanoseconds = nanoseconds.data();
    request.algorithms = algorithms.data();
    return carry_out(request);
  }

  // densities (gated layers), each in ]0, 1] -> counts (gated layers): how many channels each layer computes.
  void count_winners(const In<double, 1>& densities, const Out<std::int32_t, 1>& counts) const {
    const std::vector<int>& channels = runtime_->program().knob_channels;
    require(densities.shape(0) == channels.size() && counts.shape(0) == channels.size(),
            "densities: one number for each gated layer");
    for (std::size_t i = 0; i < channels.size(); ++i) {
      const double density = densities.data()[i];
      require(density > 0.0 && density <= 1.0, "densities: expected numbers in ]0, 1]");
      counts.data()[i] = winner_count(density, channels[i]);
    }
  }

  std::int64_t arena_bytes() const { return runtime_->context_bytes(); }
  std::int64_t tensor_bytes() const { return runtime_->program().arena_floats * 4; }
  // A section's numbers where they lie, read-only; None when the file has no such section.
  nb::object array(const std::string& name) const {
    const Section* const section = model_->file().find(name);
    if (section == nullptr) return nb::none();
    std::vector<std::size_t> shape(section->shape.begin(), section->shape.end());
    switch (section->element) {
      case FileElement::u8: return view<std::uint8_t>(*section, shape);
      case FileElement::i8: return view<std::int8_t>(*section, shape);
      case FileElement::i32: return view<std::int32_t>(*section, shape);
      case FileElement::i64: return view<std::int64_t>(*section, shape);
      case FileElement::f32: return view<float>(*section, shape);
      case FileElement::f64: return view<double>(*section, shape);
      case FileElement::text: break;
    }
    return nb::cast(model_->file().texts(name));
  }
  std::vector<std::string> section_names() const {
    std::vector<std::string> names;
    for (const Section& section : model_->file().sections()) names.push_back(section.name);
    return names;
  }
  nb::bytes image() const { return nb::bytes(model_->file().data(), model_->file().size()); }
  std::vector<std::int64_t> input_shape() const {
    const Tensor& input = model_->input();
    return {input.channels, input.shape.height, input.shape.width};
  }
  std::vector<std::int64_t> output_shape() const { return model_->result_shape(); }

  std::vector<int> knob_channels() const { return runtime_->program().knob_channels; }

 private:
  // None, or where the first bad value was met: (image, operation, whether in its gate, whether finite but far out of range).
  // Signals are looked at between images.
  nb::object carry_out(RunRequest request) {
    request.stop = [] {
      nb::gil_scoped_acquire acquire;
      return PyErr_CheckSignals() != 0;
    };
    RunFault fault;
    try {
      nb::gil_scoped_release release;
      fault = runtime_->run(request);
    } catch (const Stopped&) {
      nb::raise_python_error();
    }
    if (fault.image < 0) return nb::none();
    return nb::make_tuple(fault.image, fault.op, fault.gate, fault.far);
  }

  // The array keeps the file, not the engine.
  template <typename T>
  nb::object view(const Section& section, const std::vector<std::size_t>& shape) const {
    auto* const keep = new std::shared_ptr<const File>(model_->shared_file());
    const nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<const File>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, const T>(section.data, shape.size(), shape.data(), owner));
  }

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
    require(results.shape(0) == images.shape(0) && results.shape(1) == static_cast<std::size_t>(runtime_->result_floats()),
            "results: wrong shape");
    RunRequest request = with_winners(winners);
    request.images = images.data();
    request.count = shape[0];
    request.results = results.data();
    return request;
  }

  std::unique_ptr<Model> model_;
  Runtime* runtime_ = nullptr;
};

std::shared_ptr<const File> from_array(const In<std::uint8_t, 1>& image) {
  const auto* const data = image.data();
  if (reinterpret_cast<std::uintptr_t>(data) % kFileAlign != 0) return File::copy(data, image.shape(0));
  const std::shared_ptr<In<std::uint8_t, 1>> owner(new In<std::uint8_t, 1>(image), [](In<std::uint8_t, 1>* held) {
    nb::gil_scoped_acquire acquire;
    delete held;
  });
  return File::keep(owner, data, image.shape(0));
}

constexpr std::int64_t kMostSteps = 1 << 16, kMostRoomFloats = std::int64_t{1} << 40;

// rooms (count, 3): the first and the last step that need each, its floats -> offsets (count); returns where the last one ends.
std::int64_t place_rooms(const In<std::int64_t, 2>& rooms, const Out<std::int64_t, 1>& offsets) {
  require(rooms.shape(1) == 3 && offsets.shape(0) == rooms.shape(0), "rooms: expected (count, 3), and as many offsets");
  std::vector<Room> all;
  for (std::size_t i = 0; i < rooms.shape(0); ++i) {
    const std::int64_t *const row = rooms.data() + 3 * i, first = row[0], last = row[1], floats = row[2];
    require(0 <= first && first <= last && last < kMostSteps, "rooms: expected 0 <= first <= last < 65536");
    require(0 <= floats && floats <= kMostRoomFloats, "rooms: expected 0 to 2^40 floats");
    all.push_back({static_cast<int>(first), static_cast<int>(last), floats});
  }
  const PackedRooms packed = pack_tightly(all);
  std::copy(packed.offsets.begin(), packed.offsets.end(), offsets.data());
  return packed.end;
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::exception<FileError>(module, "FileError", PyExc_ValueError);
  module.def(
      "load_path",
      [](const std::string& path, const std::string& isa, int threads) { return new Engine(File::map(path), isa, threads); },
      nb::arg("path"), nb::arg("isa"), nb::arg("threads"), "An engine from a compiled file, whose weights stay mapped.");
  module.def(
      "load_bytes",
      [](const In<std::uint8_t, 1>& image, const std::string& isa, int threads) {
        return new Engine(from_array(image), isa, threads);
      },
      nb::arg("image"), nb::arg("isa"), nb::arg("threads"),
      "An engine from a compiled file's bytes. They are not copied when they begin on a cache line: leave them alone then.");
  module.def(
      "crc32",
      [](const nb::bytes& bytes, std::uint32_t before) {
        return crc32(static_cast<const unsigned char*>(bytes.data()), bytes.size(), before);
      },
      nb::arg("bytes"), nb::arg("before"), "The checksum of compiled files, as zlib.crc32 has it.");
  module.def("place_rooms", &place_rooms, nb::arg("rooms"), nb::arg("offsets"),
             "Places rooms of memory so that those needed at the same time do not overlap; returns their end.");
  nb::class_<Engine>(module, "Engine")
      .def("run", &Engine::run)
      .def("run_tensor", &Engine::run_tensor)
      .def("run_recorded", &Engine::run_recorded)
      .def("run_timed", &Engine::run_timed)
      .def("count_winners", &Engine::count_winners)
      .def("array", &Engine::array)
      .def("image", &Engine::image)
      .def_prop_ro("section_names", &Engine::section_names)
      .def_prop_ro("input_shape", &Engine::input_shape)
      .def_prop_ro("output_shape", &Engine::output_shape)
      .def_prop_ro("arena_bytes", &Engine::arena_bytes)
      .def_prop_ro("tensor_bytes", &Engine::tensor_bytes)
      .def_prop_ro("knob_channels", &Engine::knob_channels);
}

}  // namespace penstock
