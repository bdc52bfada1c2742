// The team of threads: every part of every piece of work is done exactly once, on a member of its own.
//
//     team_test [pieces] [seed]
//
// Also worth a run under ThreadSanitizer:
//     g++ -std=c++17 -O1 -g -fsanitize=thread kernels/tests/team_test.cpp kernels/team.cpp -pthread -o team_test
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "run/team.h"

namespace {

using namespace penstock;

// Pieces of random size one after the other, with pauses in which workers fall asleep. Returns the number of faults.
int check(int threads, int pieces, std::mt19937& random) {
  Team team(threads);
  int faults = team.threads() != threads;
  std::vector<std::atomic<int>> busy(static_cast<std::size_t>(threads));
  for (int piece = 0; piece < pieces; ++piece) {
    const int parts = static_cast<int>(random() % 40);
    std::vector<int> done(static_cast<std::size_t>(parts), 0);  // plain numbers: run() must publish them
    std::atomic<int> shared{0};
    team.run(parts, [&](int part, int member) {
      if (part < 0 || part >= parts || member < 0 || member >= threads) {
        ++shared;
        return;
      }
      std::atomic<int>& mine = busy[static_cast<std::size_t>(member)];
      if (mine.exchange(1) != 0) ++shared;                                 // two parts at a time on one member's scratch
      for (volatile int i = 0; i < (part * 37 + piece) % 300;) i = i + 1;  // uneven, so that members meet
      ++done[static_cast<std::size_t>(part)];
      mine.store(0);
    });
    faults += shared.load();
    for (int count : done) faults += count != 1;
    if (piece % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return faults;
}

}  // namespace

int main(int argc, char** argv) {
  const int pieces = argc > 1 ? std::atoi(argv[1]) : 20000;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
  int faults = 0;
  for (int threads : {1, 2, 3, 5}) faults += check(threads, pieces, random);
  std::printf("%d pieces of work for each of 4 teams, %d faults\n", pieces, faults);
  return faults != 0;
}
