// Programs of format 3, which older files hold. The fields that only format 4 has are worked out from the others.
#pragma once
#include <vector>

#include "run/program.h"

namespace penstock {

constexpr std::int64_t kFormat3 = 3;
constexpr int kTensorFields3 = kTensorFields - 1;  // no element: the layout says it
constexpr int kOpFields3 = kOpFields - 1;          // no weight format: the input's layout says it

// The tables of a program in the present format. Nothing is checked here.
struct Upgraded {
  explicit Upgraded(const RawProgram& old);
  RawProgram raw;

 private:
  std::vector<std::int64_t> tensors_, ops_;
};

}  // namespace penstock
