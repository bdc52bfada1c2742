#include "gate/winners.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace penstock {

int choose_winners(const OpKernels& kernels, float* __restrict g, int channels, int wanted, float above,
                   std::uint32_t* __restrict keys, std::int32_t* list, float* gains) {
  for (int o = 0; o < channels; ++o) g[o] = g[o] > 0.0f ? g[o] : 0.0f;
  std::memcpy(keys, g, sizeof(float) * static_cast<std::size_t>(channels));  // bits of floats >= 0 order as the floats do

  // The least key of those that are taken, and how many of the values equal to it are: all, unless there are too many.
  const auto at_least = [&](std::uint32_t t) { return kernels.count_at_least(keys, channels, t); };
  std::uint32_t threshold;
  std::memcpy(&threshold, &above, sizeof threshold);
  ++threshold;  // of the next larger float
  const int salient = at_least(threshold);
  const int taken = std::min(wanted, salient);
  int ties = channels;
  if (taken < salient) {
    std::int32_t least = std::numeric_limits<std::int32_t>::max(), most = 0;
    for (int o = 0; o < channels; ++o) {
      const std::int32_t key = static_cast<std::int32_t>(keys[o]);
      least = key < least ? key : least;
      most = key > most ? key : most;
    }
    threshold = std::max(threshold, static_cast<std::uint32_t>(least));
    std::uint32_t over = static_cast<std::uint32_t>(most) + 1;
    int reached = salient, reached_over = 0;
    bool exact = false;
    // The next guess: where the threshold would lie if saliencies were spread evenly; every third time the midpoint.
    for (int turn = 1; over - threshold > 1 && !exact; ++turn) {
      std::uint32_t key = threshold + (over - threshold) / 2;
      if (turn % 3 != 0) {
        const float share = (static_cast<float>(reached - taken) + 0.5f) / static_cast<float>(reached - reached_over);
        float low, high;
        std::memcpy(&low, &threshold, sizeof low);
        std::memcpy(&high, &over, sizeof high);
        const float guess = low + (high - low) * share;
        if (guess > low && guess < high) std::memcpy(&key, &guess, sizeof key);
      }
      const int n = at_least(key);
      if (n >= taken) {
        threshold = key;
        reached = n;
      } else {
        over = key;
        reached_over = n;
      }
      exact = n == taken;
    }
    if (!exact) ties = taken - at_least(threshold + 1);
  }
  // Written without branches: the branch predictor could not foresee which channels win.
  int count = 0;
  if (ties == channels) {
    for (int o = 0; o < channels; ++o) {
      list[count] = o;
      gains[count] = g[o];
      count += keys[o] >= threshold;
    }
  } else {
    for (int o = 0; o < channels; ++o) {
      const int equal = keys[o] == threshold;
      list[count] = o;
      gains[count] = g[o];
      count += (keys[o] > threshold) | (equal & (ties > 0));
      ties -= equal;
    }
  }
  return count;
}

}  // namespace penstock
