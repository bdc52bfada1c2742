// Reads a program's numbers into typed records and refuses what makes no sense (private to program.cpp and the files loader_*.cpp).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "run/program.h"

namespace penstock {

constexpr std::int64_t kMaxSide = 1 << 16;
constexpr std::int64_t kMaxHalo = 1 << 10;
constexpr std::int64_t kMaxChannels = 1 << 18;
constexpr std::int64_t kMaxTensorFloats = std::int64_t{1} << 30;
constexpr std::int64_t kMaxArenaFloats = std::int64_t{1} << 32;
constexpr std::int64_t kMaxTensors = 1 << 16;

// A row of numbers, asked by the names of schema.h.
struct Row {
  const std::int64_t* at;
  template <typename Field>
  std::int64_t operator[](Field field) const {
    return at[static_cast<int>(field)];
  }
};

class Loader {
 public:
  Loader(const RawProgram& raw, const Machine& machine) : raw_(raw), program_(new Program) { program_->machine = machine; }
  std::unique_ptr<Program> load();

 private:
  void check(bool good, const std::string& what) const {
    if (!good) throw ProgramError("program refused at " + where_ + ": " + what);
  }

  void take_weights();
  void load_tensors();
  Quantised quantised(std::int64_t zero, std::int64_t bits) const;
  int index(std::int64_t value, const char* what, bool must_be_written) const;
  const float* weights(std::int64_t offset, std::int64_t count, const char* what) const;
  // The same, copied to large pages where the caller's memory has small ones: for rows that every image reads.
  const float* rows(std::int64_t offset, std::int64_t count, const char* what);
  int number(std::int64_t value, std::int64_t low, std::int64_t high, const char* what) const;
  bool same_size(const Tensor& a, const Tensor& b) const;
  void check_apart(int a, int b, bool may_coincide) const;
  const Tensor& at(int tensor) const { return program_->tensors[static_cast<std::size_t>(tensor)]; }
  void load_op(int i);
  void load_kind(Op& op, Row f, Row p);
  void check_codes(Op& op);
  void check_constants(const Op& op);
  void check_pixels(Op& op);
  template <typename Field>
  SlidingWindow read_window(Row p) const {
    SlidingWindow w;
    w.kernel_h = number(p[Field::kernel_h], 1, kMaxSide, "kernel");
    w.kernel_w = number(p[Field::kernel_w], 1, kMaxSide, "kernel");
    w.stride_h = number(p[Field::stride_h], 1, kMaxSide, "stride");
    w.stride_w = number(p[Field::stride_w], 1, kMaxSide, "stride");
    w.pad_h = number(p[Field::pad_h], 0, kMaxSide, "padding");
    w.pad_w = number(p[Field::pad_w], 0, kMaxSide, "padding");
    w.dilation_h = number(p[Field::dilation_h], 1, kMaxSide, "dilation");
    w.dilation_w = number(p[Field::dilation_w], 1, kMaxSide, "dilation");
    return w;
  }
  // The sizes of a convolution from map `in` to map `out`, in one group; `check_sizes` is still to be asked.
  template <typename Field>
  ConvSizes read_sizes(const Tensor& in, const Tensor& out, Row p) const {
    return {read_window<Field>(p), in.channels, out.channels, 1, in.shape, out.shape};
  }
  void check_sizes(const ConvSizes& sizes, bool checks_edges) const {
    const std::string wrong = wrong_size(sizes, checks_edges);
    check(wrong.empty(), wrong);
  }
  void load_conv(Op& op, Row f, Row p);
  void load_listed(Op& op, Row f, Row p);
  void plan_later(std::int64_t size, std::function<std::string(Op&)> plan);
  void plan_convolutions();
  void load_levels(Op& op, std::int64_t first, std::int64_t rho);
  void load_threshold(Op& op, std::int64_t rho);
  void load_pool(Op& op, Row p);
  void load_arguments(Op& op, std::int64_t first, std::int64_t count);
  void find_image_reader();

  const RawProgram& raw_;
  std::unique_ptr<Program> program_;
  // Planning turns weights into the form that kernels read, which takes longer than all checks: it waits until the whole program has been
  // checked, and is then shared among threads. A plan returns what is wrong, or nothing.
  struct LatePlan {
    std::size_t op;
    std::int64_t size;  // number of weights
    std::string where;
    std::function<std::string(Op&)> plan;
  };

  std::vector<LatePlan> plans_;
  std::vector<bool> written_, layer_seen_;
  std::string where_ = "its start";
};

}  // namespace penstock
