// One image on its way through a program. Private to runtime.cpp, walk*.cpp.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "lanes/lanes.h"
#include "run/placement.h"
#include "run/runtime.h"

namespace penstock {

// A tensor as it is for this image: which channels are stored.
struct Live {
  float* data = nullptr;
  const std::int32_t* list = nullptr;  // channel of each stored plane, strictly increasing
  int count = 0;
  const float* fill = nullptr;  // by channel: what is all over a channel that is not stored; null means zeros
};

// The most convolutions for which a convolution of codes prefetches rows.
constexpr std::size_t kLaterReaders = 2;

struct Runtime::Context {
  // `pieces`: the most pieces of rows that one convolution prefetches for the operations after it.
  Context(const Program& program, std::size_t pieces);
  ConvBuffer arena;
  std::vector<std::int32_t> lists;
  std::vector<Live> live;
  std::vector<float> summaries;   // per tensor, as lists
  std::vector<int> summary_kind;  // per tensor; -1: not known yet
  std::vector<float> saliency, gains;
  std::vector<float> fills;            // per tensor, as lists
  std::vector<float> constants, bias;  // of the operation that runs
  std::vector<std::uint32_t> keys;
  std::vector<std::int32_t> positions, merged, winners;
  std::vector<char> fresh, alone;
  std::vector<const float*> later;
  std::vector<std::int32_t> later_channels;  // of the readers to come
  Int8Fetch later_rows[2 * kLaterReaders];
  std::vector<CodeSums> code_sums;
  std::vector<std::int32_t> pixel_places, pixel_results;  // of the operation that lists pixels
  std::vector<float> pixel_factors;
};

class Runtime::Walk {
 public:
  Walk(const Runtime& runtime, Context& context, const Placement& placement, Team* team, const std::int32_t* winners)
      : runtime_(runtime),
        program_(*runtime.program_),
        kernels_(op_kernels(program_.machine.isa)),
        maps_(map_kernels(program_.machine.isa)),
        lanes_(lanes_kernels(program_.machine.isa)),
        context_(context),
        placement_(placement),
        team_(team),
        winners_(winners) {}

  // Image number `index` of the request; nothing runs yet.
  void start(const RunRequest& request, std::int64_t index);
  // Operations [begin, end), in order. False when the image, a gate's saliencies or the result hold a value that is not finite,
  // or when what shall become codes lies far beyond their range; `fault` then says where, and nothing more may be run.
  bool run(std::size_t begin, std::size_t end);
  const RunFault& fault() const { return fault_; }
  // All operations one by one: where the first value that is not finite appears. For an image that has failed.
  RunFault find_fault();

 private:
  bool import_image(const Op& op, const float* image);
  bool export_result(const Op& op, float* result);
  // The outputs that a convolution computes for this image.
  struct Outputs {
    const std::int32_t* list;
    int count;
    const float *gains, *bias;
  };
  // False: the saliencies are not finite. A gate's winners are written to `winners`.
  bool choose_outputs(const Op& op, std::int32_t* winners, Outputs& outputs);
  void note_conv(const Op& op, std::int64_t macs, int computed);
  bool conv(const Op& op);
  // Channels that are not stored but hold a constant (walk_constants.cpp).
  struct Row {
    const float* x;
    const std::int32_t* list;
    int count;
  };
  Row with_constants(const Live& in, int channels, const float* stored);
  Row with_summaries(const Op& op, const Live& in);
  Row with_code_summaries(const Op& op, const Live& in);
  const float* add_to_bias(const Op& op, const Live& in, const Outputs& outputs);
  void fill_affine(const Op& op);
  void fill_sum(const Op& op);
  void fill_product(const Op& op, const float* by_channel);
  void scale_constants(const Op& op);
  void spread(const Op& op);
  float* own_fill(int t) { return context_.fills.data() + runtime_.list_offsets_[static_cast<std::size_t>(t)]; }
  // Operations that read or write quantised maps (walk_codes.cpp).
  bool takes_codes(const Op& op) const;
  bool run_codes(const Op& op);
  bool import_codes(const Op& op);
  bool export_codes(const Op& op);
  struct Clipping;
  bool may_clip(const Clipping& clipped);
  bool conv_codes(const Op& op);
  void pool_codes(const Op& op);
  void average_codes(const Op& op);
  void add_codes(const Op& op);
  void concat_codes(const Op& op);
  void affine_codes(const Op& op);
  bool scale_codes(const Op& op);
  bool pack_codes(const Op& op);
  // Operations that read or write maps of floats in pixels (walk_pixels.cpp).
  bool takes_pixels(const Op& op) const;
  bool run_pixels(const Op& op);
  void pool_pixels(const Op& op);
  void reduce_pixels(const Op& op);
  void add_pixels(const Op& op);
  void concat_pixels(const Op& op);
  void affine_pixels(const Op& op);
  bool scale_pixels(const Op& op);
  void spread_pixels(const Op& op);
  void add_constants(const Live& of, const Live& result, float* to);
  void exchange_pixels(const Op& op);
  void summarise_pixels(int t, Summary kind, float* summaries);
  PixelTerm term_of(const Op& op, int tensor, const std::int32_t* list, const std::int32_t* wanted, int count, int number);
  void combine_pixels(const Op& op, PixelCombination& what, int first, int channels);
  float* pixel_at(int t, int y, int x) {
    const Planes& shape = tensor(t).shape;
    return live(t).data + (shape.origin() + std::ptrdiff_t{y} * shape.pitch() + x) * pixel_floats(live(t).count);
  }
  std::ptrdiff_t pixel_row(int t) { return std::ptrdiff_t{tensor(t).shape.pitch()} * pixel_floats(live(t).count); }
  // The union of two lists, written to the list of `out`.
  void unite_lists(int a, int b, int out);
  // The list of a concatenation's result, which is returned too: those of its inputs, each shifted by the channels before it.
  const std::int32_t* join_lists(const Op& op);
  struct Term;
  void combine(const Op& op, const Term* terms, int count, const float* shift, int first, int channels);
  std::uint8_t* bytes_of(int t) { return reinterpret_cast<std::uint8_t*>(live(t).data); }
  CodeMap codes_of(int t) { return tensor(t).codes(live(t).data, live(t).count); }
  void start_codes(int t);
  void take_sums(int t);
  void conv_add(const Op& op, const ConvTask& task);
  void conv_add_pixels(const Op& op, ConvTask& task);
  void add_upcoming(const Op& op, ConvTask& task);
  void add_upcoming_codes(const Op& op, Int8Task& task);
  void run_task(const Op& op, const ConvTask& task);
  // Units [begin, end) of a stage.
  void run_stage(const Op& op, const ConvTask& task, int stage, int begin, int end);
  std::size_t number_of(const Op& op) const { return static_cast<std::size_t>(&op - program_.ops.data()); }
  float* scratch(const Op& op) { return context_.arena.data() + placement_.scratch_offsets[number_of(op)]; }
  // -1: the saliencies are not finite.
  int choose_winners(const Op& op, const Live& in, int wanted, std::int64_t level, std::int32_t* list);
  bool is_finite(int tensor);
  const float* summaries(const Op& op, const Live& in);
  // The summary of a plane that has just been made and is still near, if a gate will ask for it; `note_summaries` says that
  // all planes of the tensor have theirs.
  void summarise_plane(int t, int plane);
  void note_summaries(int t);
  float& summary(int t, int plane) {
    return context_.summaries[static_cast<std::size_t>(runtime_.list_offsets_[static_cast<std::size_t>(t)] + plane)];
  }
  void pool(const Op& op);
  void adaptive_pool(const Op& op);
  void add(const Op& op);
  // Copies a plane together with its summary. Both tensors have the same layout and padding.
  void copy_plane(int from, int plane, int to, int to_plane);
  void concat(const Op& op);
  void affine(const Op& op);
  bool take_factors(const Op& op, float* factors);
  bool scale(const Op& op);
  void linear(const Op& op);
  void pack(const Op& op);
  void channel_norm(const Op& op);
  // Convolutions of listed pixels (walk_listed.cpp).
  bool listed(const Op& op);
  int list_pixels(const Op& op);
  void put_nearest(const Op& op, float* sums, float* plane);
  void put_listed(const Op& op, int channel, int count, float* sums, float* plane);

  const Tensor& tensor(int t) const { return program_.tensors[static_cast<std::size_t>(t)]; }
  Live& live(int t) { return context_.live[static_cast<std::size_t>(t)]; }
  std::int32_t* own_list(int t) { return context_.lists.data() + runtime_.list_offsets_[static_cast<std::size_t>(t)]; }
  void make_dense(int t) {
    live(t).list = runtime_.all_channels_.data();
    live(t).count = tensor(t).channels;
  }
  // The result has the channels of the input, and its constants.
  void keep_list(const Op& op) {
    live(op.out).list = live(op.in).list;
    live(op.out).count = live(op.in).count;
    live(op.out).fill = live(op.in).fill;
  }
  void fill_plane(float* plane, Planes shape, float value);
  void note(const Op& op, std::int64_t macs, int read, int computed);

  // Calls work(p, member) for every p below count; `floats` is the work of all of them together.
  template <typename Work>
  void each(int count, std::int64_t floats, Work&& work) {
    if (team_ == nullptr || floats < program_.machine.tuning.shared_floats || count < 2) {
      for (int p = 0; p < count; ++p) work(p, 0);
      return;
    }
    const int parts = std::min(count, 4 * team_->threads());
    team_->run(parts, [&](int part, int member) {
      const int begin = static_cast<int>(static_cast<std::int64_t>(count) * part / parts);
      const int end = static_cast<int>(static_cast<std::int64_t>(count) * (part + 1) / parts);
      for (int p = begin; p < end; ++p) work(p, member);
    });
  }

  // Calls work(begin, end) for blocks of `outputs`, one a thread: rows of weights are read the faster the longer their pieces.
  template <typename Work>
  void each_block(int outputs, std::int64_t floats, Work&& work) {
    constexpr int kLine = 16;
    const int threads = team_ == nullptr ? 1 : team_->threads();
    const int block = ((outputs + threads - 1) / threads + kLine - 1) / kLine * kLine;
    each((outputs + block - 1) / block, floats, [&](int b, int) { work(b * block, std::min(outputs, (b + 1) * block)); });
  }

  const Runtime& runtime_;
  const Program& program_;
  const OpKernels& kernels_;
  const MapKernels& maps_;
  const LanesKernels& lanes_;
  Context& context_;
  const Placement& placement_;
  Team* team_;
  const std::int32_t* winners_;
  RunFault fault_;
  bool far_ = false;  // of an operation that fails: its values are finite, but far beyond the range of its codes
  std::int64_t image_number_ = 0;
  const float* image_ = nullptr;
  float* result_ = nullptr;
  // Where this image's records go; null when nobody asks.
  std::int64_t* macs_ = nullptr;
  std::int32_t* active_ = nullptr;
  std::uint8_t* chosen_ = nullptr;
  float* saliencies_ = nullptr;
  std::int32_t* algorithms_ = nullptr;
  std::int64_t* nanoseconds_ = nullptr;
};

}  // namespace penstock
