#include "api/model.h"
#include "run/format3.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <new>

namespace penstock {
namespace {

constexpr std::size_t kAnyCount = static_cast<std::size_t>(-1);

// Memory that this process cannot have is better refused than promised: the machine's, or less where a limit is set.
std::int64_t available_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  std::int64_t bytes = pages > 0 && size > 0 ? static_cast<std::int64_t>(pages) * size : INT64_MAX;
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < static_cast<rlim_t>(INT64_MAX))
    bytes = std::min(bytes, static_cast<std::int64_t>(limit.rlim_cur));
  return bytes;
}

std::string megabytes(std::int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

Model::Model(std::shared_ptr<const File> file, Isa isa, int threads) : file_(std::move(file)) {
  if (threads < 1 || threads > 1024) file_->refuse("threads: expected 1 to 1024, got " + std::to_string(threads));
  RawProgram raw = read_program();
  read_names(raw);
  try {
    runtime_ = std::make_unique<Runtime>(load_program(raw, this_machine(isa)), threads);
    const std::int64_t bytes = runtime_->context_bytes(), available = available_bytes();
    if (bytes > available)
      file_->refuse("one image needs " + megabytes(bytes) + " of memory, and this process may have " + megabytes(available));
    runtime_->reserve();
  } catch (const ProgramError& error) {
    file_->refuse(error.what());
  } catch (const std::bad_alloc&) {
    file_->refuse("the network needs more memory than this machine gives");
  }
  read_gates();
  read_preprocess();
  read_measurements();
  std::int64_t values = 1;
  for (std::int64_t side : result_shape_) {
    if (side < 1 || runtime_->result_floats() % side != 0) file_->refuse("result/shape: is not the program's");
    values *= side;
    if (values > runtime_->result_floats()) file_->refuse("result/shape: is not the program's");
  }
  if (values != runtime_->result_floats()) file_->refuse("result/shape: is not the program's");
  if (!classes_.empty() && static_cast<std::int64_t>(classes_.size()) != values)
    file_->refuse("classes: " + std::to_string(classes_.size()) + " names for " + std::to_string(values) + " results");
}

const Section& Model::need(const char* name, FileElement element, std::size_t rank) const {
  const Section* const section = file_->find(name);
  if (section == nullptr) file_->refuse(std::string("has no section ") + name);
  if (section->element != element || section->shape.size() != rank)
    file_->refuse(std::string("section ") + name + ": another element type or number of axes than a program has");
  return *section;
}

RawProgram Model::read_program() const {
  const auto integers = [](const Section& s) { return reinterpret_cast<const std::int64_t*>(s.data); };
  const auto floats = [](const Section& s) { return reinterpret_cast<const float*>(s.data); };
  const Section& tensors = need("program/tensors", FileElement::i64, 2);
  const Section& ops = need("program/ops", FileElement::i64, 2);
  const Section& scalars = need("program/scalars", FileElement::f32, 2);
  const Section& args = need("program/args", FileElement::i64, 1);
  const Section& weights = need("program/weights", FileElement::f32, 1);
  RawProgram raw;
  raw.format = *integers(need("program/format", FileElement::i64, 0));
  const bool old = raw.format == kFormat3;
  if (raw.format != kFormat && !old)
    file_->refuse("holds a program of format " + std::to_string(raw.format) + ", and this runtime reads " +
                  std::to_string(kFormat) +
                  (raw.format > kFormat ? "; install a newer penstock-runtime" : "; compile the network again"));
  if (tensors.shape[1] != (old ? kTensorFields3 : kTensorFields) || ops.shape[1] != (old ? kOpFields3 : kOpFields) ||
      scalars.shape[1] != kOpScalars || scalars.shape[0] != ops.shape[0])
    file_->refuse("its program has tables of another width");
  raw.tensors = integers(tensors);
  raw.tensor_count = tensors.shape[0];
  raw.ops = integers(ops);
  raw.op_count = ops.shape[0];
  raw.scalars = floats(scalars);
  raw.args = integers(args);
  raw.arg_count = args.shape[0];
  raw.weights = floats(weights);
  raw.weight_count = weights.shape[0];
  raw.weights_owner = file_;
  return raw;
}

void Model::read_names(RawProgram& raw) {
  raw.layers = need("names/layers", FileElement::text, 1).shape[0];
  raw.knobs = need("names/gated", FileElement::text, 1).shape[0];
  gated_ = file_->texts("names/gated");
  operations_ = file_->texts("names/operations");
  classes_ = file_->texts("classes");
  const std::vector<std::string> kinds = file_->texts("names/kinds");
  if (static_cast<std::int64_t>(operations_.size()) != raw.op_count || kinds.size() != operations_.size())
    file_->refuse("names/operations and names/kinds: expected one string for each operation");
  const Section& shape = need("result/shape", FileElement::i64, 1);
  if (shape.shape[0] < 1 || shape.shape[0] > 4) file_->refuse("result/shape: expected 1 to 4 sizes");
  const auto* const sides = reinterpret_cast<const std::int64_t*>(shape.data);
  result_shape_.assign(sides, sides + shape.shape[0]);
}

std::vector<double> Model::numbers(const char* name, std::size_t count) const {
  const Section& section = need(name, FileElement::f64, 1);
  const auto* const from = reinterpret_cast<const double*>(section.data);
  std::vector<double> values(from, from + section.shape[0]);
  if (count != kAnyCount && values.size() != count)
    file_->refuse(std::string(name) + ": expected " + std::to_string(count) + " numbers");
  for (double value : values)
    if (!std::isfinite(value)) file_->refuse(std::string(name) + ": a number is not finite");
  return values;
}

void Model::read_gates() {
  const auto require_densities = [&](const char* name, const std::vector<double>& values) {
    for (double value : values)
      if (!(value > 0.0 && value <= 1.0)) file_->refuse(std::string(name) + ": expected numbers in ]0, 1]");
  };
  const std::vector<double> densities = numbers("gates/densities", gated_.size());
  require_densities("gates/densities", densities);
  const std::vector<int>& channels = runtime_->program().knob_channels;
  for (std::size_t i = 0; i < densities.size(); ++i) default_winners_.push_back(winner_count(densities[i], channels[i]));
  if (file_->find("gates/levels") != nullptr) require_densities("gates/levels", numbers("gates/levels", kAnyCount));
  if (file_->find("measured/densities") != nullptr)
    require_densities("measured/densities", numbers("measured/densities", kAnyCount));
}

void Model::read_preprocess() {
  if (file_->find("preprocess/mean") == nullptr && file_->find("preprocess/std") == nullptr) return;
  const std::size_t channels = static_cast<std::size_t>(input().channels);
  normalisation_ = {numbers("preprocess/mean", channels), numbers("preprocess/std", channels)};
  for (double value : normalisation_.std)
    if (!(value > 0.0)) file_->refuse("preprocess/std: expected numbers above 0");
  if (file_->find("preprocess/resize") == nullptr) return;
  const double side = numbers("preprocess/resize", 1)[0];
  if (side < 1 || side > (1 << 16)) file_->refuse("preprocess/resize: expected 1 to 65536 pixels, got " + std::to_string(side));
}

void Model::read_measurements() const {
  if (file_->find("measured/densities") == nullptr) return;
  const std::size_t count = numbers("measured/densities", kAnyCount).size();
  for (const char* name : {"measured/top1", "measured/milliseconds"}) {
    if (file_->find(name) == nullptr) continue;
    for (double value : numbers(name, count))
      if (value < 0.0) file_->refuse(std::string(name) + ": expected numbers of at least 0");
  }
}

const Tensor& Model::input() const {
  const Program& program = runtime_->program();
  return program.tensors[static_cast<std::size_t>(program.input)];
}

std::vector<std::int32_t> Model::winners_at(double density) const {
  std::vector<std::int32_t> winners;
  for (int channels : runtime_->program().knob_channels) winners.push_back(winner_count(density, channels));
  return winners;
}

}  // namespace penstock
