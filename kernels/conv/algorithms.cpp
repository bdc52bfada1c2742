// The list of all algorithms of convolution, and the choice among those that a plan has made ready.
//
// Costs depend on nothing but their arguments and the machine's row, so that a network gives the same results on every run.
#include "conv/plan.h"

namespace penstock {

// A new algorithm is one row here: a ConvAlgorithm, defined in the file that plans it.
const std::vector<ConvAlgorithm>& conv_algorithms() {
  static const std::vector<ConvAlgorithm> list = {kDirect,       kPacked,  kWinograd2, kWinograd4,
                                                  kWinogradRows, kOutputs, kLanes,     kDepthwise};
  return list;
}

const ConvAlgorithm* find_conv_algorithm(const std::string& name) {
  for (const ConvAlgorithm& algorithm : conv_algorithms())
    if (name == algorithm.name) return &algorithm;
  return nullptr;
}

void decide_conv(const ConvPlan& plan, ConvTask& task) {
  task.algorithm = plan.ready.front();
  if (plan.ready.size() == 1) return;
  double least = kNever;
  for (const ConvAlgorithm* algorithm : plan.ready) {
    const double cost = algorithm->cost(plan, task.in_count, task.out_count);
    if (cost >= least) continue;
    least = cost;
    task.algorithm = algorithm;
  }
}

}  // namespace penstock
