// A compiled network, ready to run: the program of a file and what else the file says, every number checked.
//
// Both borders stand on this class: Python's (run/binding_engine.cpp) and C's (api/penstock.h).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/file.h"
#include "machine/cpu.h"
#include "run/runtime.h"

namespace penstock {

// From 8-bit pixels to the network's input: (value / 255 - mean) / std, channel by channel.
struct Normalisation {
  std::vector<double> mean, std;  // empty when the file does not say
};

class Model {
 public:
  // Throws FileError when the file does not hold a network that this machine can run.
  Model(std::shared_ptr<const File> file, Isa isa, int threads);

  const File& file() const { return *file_; }
  std::shared_ptr<const File> shared_file() const { return file_; }
  Runtime& runtime() const { return *runtime_; }
  Isa isa() const { return runtime_->program().machine.isa; }
  const Tensor& input() const;
  const std::vector<std::int64_t>& result_shape() const { return result_shape_; }
  const std::vector<std::string>& gated() const { return gated_; }
  const std::vector<std::string>& operations() const { return operations_; }
  const std::vector<std::string>& classes() const { return classes_; }
  const Normalisation& normalisation() const { return normalisation_; }
  // How many channels each gated layer computes by default.
  const std::vector<std::int32_t>& default_winners() const { return default_winners_; }
  // The same for one density in ]0, 1] everywhere.
  std::vector<std::int32_t> winners_at(double density) const;

 private:
  RawProgram read_program() const;
  void read_names(RawProgram& raw);  // and how many there are, into the program
  void read_gates();
  void read_preprocess();
  void read_measurements() const;
  const Section& need(const char* name, FileElement element, std::size_t rank) const;
  std::vector<double> numbers(const char* name, std::size_t count) const;

  std::shared_ptr<const File> file_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<std::int64_t> result_shape_;
  std::vector<std::string> gated_, operations_, classes_;
  std::vector<std::int32_t> default_winners_;
  Normalisation normalisation_;
};

}  // namespace penstock
