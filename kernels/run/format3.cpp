#include "run/format3.h"

namespace penstock {

Upgraded::Upgraded(const RawProgram& old) : raw(old) {
  constexpr std::int64_t kPixels = static_cast<std::int64_t>(Layout::pixels);
  for (std::int64_t i = 0; i < old.tensor_count; ++i) {
    const std::int64_t* const row = old.tensors + i * kTensorFields3;  // layout first
    tensors_.push_back(static_cast<std::int64_t>(row[0] == kPixels ? Element::code8 : Element::float32));
    tensors_.insert(tensors_.end(), row, row + kTensorFields3);
  }
  constexpr int kFormatField = kOpFieldCount + static_cast<int>(ConvField::weight_format);
  for (std::int64_t i = 0; i < old.op_count; ++i) {
    const std::int64_t* const row = old.ops + i * kOpFields3;
    const bool conv = row[static_cast<int>(OpField::kind)] == static_cast<std::int64_t>(OpKind::conv);
    const std::int64_t in = row[static_cast<int>(OpField::in)];
    const bool codes = in >= 0 && in < old.tensor_count && old.tensors[in * kTensorFields3] == kPixels;
    const int before = conv ? kFormatField : kOpFields3;
    ops_.insert(ops_.end(), row, row + before);
    ops_.push_back(static_cast<std::int64_t>(conv && codes ? WeightFormat::code_filters : WeightFormat::filters));
    ops_.insert(ops_.end(), row + before, row + kOpFields3);
  }
  raw.format = kFormat;
  raw.tensors = tensors_.data();
  raw.ops = ops_.data();
}

}  // namespace penstock
