// Which tensors' lists make the list of another, as far as they are known when an operation runs.
#pragma once
#include <vector>

#include "run/program.h"

namespace penstock {

class Sources {
 public:
  explicit Sources(const Program& program) : program_(program), maker_(program.tensors.size(), 0) {
    for (std::size_t i = 0; i < program.ops.size(); ++i)
      if (program.ops[i].out >= 0) maker_[static_cast<std::size_t>(program.ops[i].out)] = i;
  }
  // The tensors, there when operation `now` runs, whose channels become those of `t`; none if they are not known by then.
  std::vector<int> known(std::size_t now, int t) const {
    std::vector<int> found, open{t};
    while (!open.empty()) {
      const int from = open.back();
      open.pop_back();
      const std::size_t made = maker_[static_cast<std::size_t>(from)];
      const Op& op = program_.ops[made];
      if (made <= now) {
        found.push_back(from);
        continue;
      }
      const bool passes_on =
          op.kind == OpKind::add || op.kind == OpKind::pool || op.kind == OpKind::adaptive_pool || op.kind == OpKind::pack;
      if (!passes_on) return {};
      open.push_back(op.in);
      if (op.kind == OpKind::add) open.push_back(op.in2);
    }
    return found;
  }

 private:
  const Program& program_;
  std::vector<std::size_t> maker_;
};

}  // namespace penstock
