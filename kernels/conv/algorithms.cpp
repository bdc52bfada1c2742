// The list of all algorithms of convolution, and the choice among those that a plan has made ready.
//
// Costs depend on nothing but their arguments and the machine's row, so that a network gives the same results on every run.
#include "conv/plan.h"
#include "int8/conv.h"

namespace penstock {

// A new algorithm is one row here, defined in the file that plans it.
const std::vector<const Algorithm*>& algorithms() {
  static const std::vector<const Algorithm*> list = {&kDirect,        &kPacked,  &kWinograd2,  &kWinograd4,
                                                     &kWinogradRows,  &kOutputs, &kInt8Direct, &kInt8Winograd,
                                                     &kInt8Depthwise, &kLanes,   &kDepthwise};
  return list;
}

int algorithm_number(const Algorithm& algorithm) {
  const std::vector<const Algorithm*>& list = algorithms();
  return static_cast<int>(std::find(list.begin(), list.end(), &algorithm) - list.begin()) + 1;
}

const Algorithm* find_algorithm(const std::string& name) {
  for (const Algorithm* algorithm : algorithms())
    if (name == algorithm->name) return algorithm;
  return nullptr;
}

void decide_conv(const ConvPlan& plan, ConvTask& task) {
  task.algorithm = cheapest(plan.ready, plan, task.in_count, task.out_count);
  if (task.algorithm->complete) task.algorithm->complete(plan, task);
}

}  // namespace penstock
