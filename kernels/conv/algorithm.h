// The one list of convolution algorithms, whatever they compute on. Programs, profiles, tests and benchmarks take their names from it.
//
// A row is a record: a ConvAlgorithm (float32, conv/conv.h) or an Int8Algorithm (codes, int8/conv.h), told apart by `element`.
#pragma once
#include <string>
#include <vector>

#include "run/schema.h"

namespace penstock {

struct Algorithm {
  const char* name;
  Element element;    // what it computes on
  const char* needs;  // of a shape, in words
};

// All of them. Programs name one by its place in the list, counted from 1; 0 leaves the choice to the planner.
const std::vector<const Algorithm*>& algorithms();
// The place in the list, counted from 1.
int algorithm_number(const Algorithm& algorithm);
// Null when the list has none of that name.
const Algorithm* find_algorithm(const std::string& name);

// The rows for one type of element, as their own kind of record. A record says which that is: Record::kElement.
template <typename Record>
const Record* as_record(const Algorithm* algorithm) {
  return algorithm && algorithm->element == Record::kElement ? static_cast<const Record*>(algorithm) : nullptr;
}
template <typename Record>
std::vector<const Record*> records() {
  std::vector<const Record*> found;
  for (const Algorithm* one : algorithms())
    if (const Record* const record = as_record<Record>(one)) found.push_back(record);
  return found;
}

// A cost that rules an algorithm out. Costs order the algorithms that suit a layer; see the algorithms' own files.
constexpr double kNever = 1e300;

// The cheapest of the ready algorithms for these numbers of active channels.
template <typename Record, typename Plan>
const Record* cheapest(const std::vector<const Record*>& ready, const Plan& plan, int in_count, int out_count) {
  const Record* best = ready.front();
  if (ready.size() == 1) return best;
  double least = kNever;
  for (const Record* one : ready) {
    const double cost = one->cost(plan, in_count, out_count);
    if (cost >= least) continue;
    least = cost;
    best = one;
  }
  return best;
}

}  // namespace penstock
