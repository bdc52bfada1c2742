#include "api/penstock.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api/model.h"

#ifndef PENSTOCK_VERSION
#error "the build says which version this is"
#endif

struct penstock_engine {
  penstock::Model model;
};

namespace penstock {
namespace {

struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool good, const char* what) {
  if (!good) throw InputError(what);
}

penstock_status fail(penstock_error* error, penstock_status status, const char* message) {
  if (error != nullptr) {
    error->status = status;
    const std::size_t size = std::min(std::strlen(message), sizeof error->message - 1);
    std::memcpy(error->message, message, size);
    error->message[size] = 0;
  }
  return status;
}

// Runs `work`; no exception leaves.
template <typename Work>
penstock_status guarded(penstock_error* error, const Work& work) noexcept {
  try {
    work();
    return fail(error, PENSTOCK_OK, "");
  } catch (const FileError& thrown) {
    return fail(error, PENSTOCK_BAD_FILE, thrown.what());
  } catch (const InputError& thrown) {
    return fail(error, PENSTOCK_BAD_INPUT, thrown.what());
  } catch (const std::bad_alloc&) {
    return fail(error, PENSTOCK_NO_MEMORY, "out of memory");
  } catch (const std::exception& thrown) {
    return fail(error, PENSTOCK_FAILED, thrown.what());
  } catch (...) {
    return fail(error, PENSTOCK_FAILED, "unknown error");
  }
}

// The widest set of this machine, or the one that the environment asks for.
Isa wanted_isa() {
  const char* const name = std::getenv("PENSTOCK_ISA");
  Isa isa = best_isa();
  if (name == nullptr || *name == 0 || (parse_isa(name, isa) && isa_available(isa))) return isa;
  std::string names;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) names += std::string(names.empty() ? "" : ", ") + isa_name(static_cast<Isa>(i));
  throw InputError("PENSTOCK_ISA is " + std::string(name).substr(0, 40) + ", but this machine has " + names);
}

template <typename Open>
penstock_status load(int threads, penstock_engine** engine, penstock_error* error, const Open& open) noexcept {
  if (engine != nullptr) *engine = nullptr;
  return guarded(error, [&] {
    require(engine != nullptr, "engine: expected where to put it, got null");
    require(threads >= 1 && threads <= 1024, "threads: expected 1 to 1024");
    *engine = new penstock_engine{Model(open(), wanted_isa(), threads)};
  });
}

std::vector<std::int32_t> winners(const Model& model, double density) {
  if (density == 0.0) return model.default_winners();
  require(density > 0.0 && density <= 1.0, "density: expected a number in ]0, 1], or 0 for the file's own");
  return model.winners_at(density);
}

void run(const Model& model, const RunRequest& request) {
  const RunFault fault = model.runtime().run(request);
  if (fault.image < 0) return;
  const std::string image = "image " + std::to_string(fault.image) + " of the batch";
  if (fault.op <= 0 && !fault.far) throw InputError(image + " holds NaN or infinity; the network takes finite pixels only");
  const std::string step = fault.op <= 0 ? "" : " of step " + model.operations()[static_cast<std::size_t>(fault.op)];
  if (fault.far)
    throw InputError(image + ": values" + step + " lie more than " + std::to_string(static_cast<int>(kFarTimes)) +
                     " times beyond the range of the calibration, so the image looks unpreprocessed; prepare the images first "
                     "(penstock_prepare)");
  throw InputError(image + ": values" + step +
                   " are NaN or infinity; prepare the images first (penstock_prepare), or check the weights");
}

constexpr std::int64_t kMostImages = std::int64_t{1} << 32;

// How many images there are, once their shape has been found to be (count, sides).
std::int64_t count_of(const std::int64_t* shape, const std::array<std::int64_t, 3>& sides) {
  require(shape != nullptr, "shape: got null");
  const auto text = [](const std::string& first, const std::int64_t* rest) {
    std::string made = "(" + first;
    for (int axis = 0; axis < 3; ++axis) made += ", " + std::to_string(rest[axis]);
    return made + ")";
  };
  if (shape[0] < 0 || shape[0] > kMostImages || !std::equal(sides.begin(), sides.end(), shape + 1))
    throw InputError("shape: expected " + text("count", sides.data()) + ", got " + text(std::to_string(shape[0]), shape + 1));
  return shape[0];
}

std::array<std::int64_t, 3> image_sides(const Model& model) {
  return {model.input().channels, model.input().shape.height, model.input().shape.width};
}

}  // namespace
}  // namespace penstock

using namespace penstock;

const char* penstock_version(void) { return PENSTOCK_VERSION; }

penstock_status penstock_load(const char* path, int threads, penstock_engine** engine, penstock_error* error) {
  return load(threads, engine, error, [&] {
    require(path != nullptr, "path: expected a file's name, got null");
    return File::map(path);
  });
}

penstock_status penstock_load_memory(const void* bytes, size_t size, int threads, penstock_engine** engine, penstock_error* error) {
  return load(threads, engine, error, [&] {
    require(bytes != nullptr, "bytes: expected a file's bytes, got null");
    return File::copy(bytes, size);
  });
}

void penstock_free(penstock_engine* engine) { delete engine; }

void penstock_input_shape(const penstock_engine* engine, int64_t shape[3]) {
  const Tensor& input = engine->model.input();
  shape[0] = input.channels;
  shape[1] = input.shape.height;
  shape[2] = input.shape.width;
}

int penstock_output_shape(const penstock_engine* engine, int64_t shape[4]) {
  const std::vector<std::int64_t>& sides = engine->model.result_shape();
  std::copy(sides.begin(), sides.end(), shape);
  return static_cast<int>(sides.size());
}

int64_t penstock_input_size(const penstock_engine* engine) { return engine->model.runtime().image_floats(); }
int64_t penstock_output_size(const penstock_engine* engine) { return engine->model.runtime().result_floats(); }
const char* penstock_instruction_set(const penstock_engine* engine) { return isa_name(engine->model.isa()); }

int64_t penstock_class_count(const penstock_engine* engine) { return static_cast<int64_t>(engine->model.classes().size()); }

const char* penstock_class_name(const penstock_engine* engine, int64_t index) {
  if (index < 0 || index >= penstock_class_count(engine)) return nullptr;
  return engine->model.classes()[static_cast<std::size_t>(index)].c_str();
}

penstock_status penstock_prepare(const penstock_engine* engine, const uint8_t* pixels, const int64_t shape[4], float* images,
                                 penstock_error* error) {
  return guarded(error, [&] {
    const auto [channels, height, width] = image_sides(engine->model);
    const std::int64_t count = count_of(shape, {height, width, channels}), area = height * width;
    require(count == 0 || (pixels != nullptr && images != nullptr), "pixels, images: got null");
    const Normalisation& norm = engine->model.normalisation();
    require(!norm.mean.empty(), "the file does not say how images are prepared");
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t c = 0; c < channels; ++c) {
        // As penstock_runtime.Preprocess computes it, to the last bit.
        const float mean = static_cast<float>(norm.mean[static_cast<std::size_t>(c)]) * 255.0f;
        const float deviation = static_cast<float>(norm.std[static_cast<std::size_t>(c)]) * 255.0f;
        for (std::int64_t p = 0; p < area; ++p)
          images[(i * channels + c) * area + p] = (static_cast<float>(pixels[(i * area + p) * channels + c]) - mean) / deviation;
      }
  });
}

penstock_status penstock_run(const penstock_engine* engine, const float* images, const int64_t shape[4], double density,
                             float* results, penstock_error* error) {
  return guarded(error, [&] {
    const std::int64_t count = count_of(shape, image_sides(engine->model));
    require(count == 0 || (images != nullptr && results != nullptr), "images, results: got null");
    const std::vector<std::int32_t> chosen = winners(engine->model, density);
    RunRequest request;
    request.images = images;
    request.count = count;
    request.winners = chosen.data();
    request.results = results;
    run(engine->model, request);
  });
}

int64_t penstock_step_count(const penstock_engine* engine) { return static_cast<int64_t>(engine->model.operations().size()); }

const char* penstock_step_name(const penstock_engine* engine, int64_t index) {
  if (index < 0 || index >= penstock_step_count(engine)) return nullptr;
  return engine->model.operations()[static_cast<std::size_t>(index)].c_str();
}

penstock_status penstock_profile(const penstock_engine* engine, const float* image, const int64_t shape[4], double density,
                                 int repeats, double* milliseconds, penstock_error* error) {
  return guarded(error, [&] {
    require(count_of(shape, image_sides(engine->model)) == 1, "shape: a profile is of one image");
    require(image != nullptr && milliseconds != nullptr, "image, milliseconds: got null");
    require(repeats >= 1, "repeats: expected 1 or more");
    const Model& model = engine->model;
    const std::vector<std::int32_t> chosen = winners(model, density);
    std::vector<float> results(static_cast<std::size_t>(penstock_output_size(engine)));
    std::vector<std::int64_t> nanoseconds(model.operations().size());
    RunRequest request;
    request.images = image;
    request.count = 1;
    request.winners = chosen.data();
    request.results = results.data();
    request.nanoseconds = nanoseconds.data();
    for (int i = 0; i < repeats; ++i) {
      run(model, request);
      for (std::size_t step = 0; step < nanoseconds.size(); ++step) {
        const double taken = static_cast<double>(nanoseconds[step]) * 1e-6;
        milliseconds[step] = i == 0 ? taken : std::min(milliseconds[step], taken);
      }
    }
  });
}
