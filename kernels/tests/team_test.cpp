// The team of threads: every part of every piece of work is done exactly once, on a member of its own. Also work shared among
// cores, and what is made at its first use: once, in a forked child too.
//
//     team_test [pieces] [seed]
//
// Also worth a run under ThreadSanitizer:
//     g++ -std=c++17 -O1 -g -fsanitize=thread -Ikernels kernels/tests/team_test.cpp kernels/run/{team,process,cores}.cpp -pthread -o team_test
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "run/cores.h"
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

// Threads that all need it first get it made once.
int check_first_use(int threads) {
  FirstUse use;
  std::atomic<int> made{0}, unmade{0};
  std::vector<std::thread> users;
  for (int i = 0; i < threads; ++i)
    users.emplace_back([&] {
      use.ensure([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++made;
      });
      unmade += made.load() == 0;
    });
  for (std::thread& user : users) user.join();
  return (made.load() != 1) + unmade.load();
}

// A child that was forked while it was being made makes it for itself.
int check_forked_first_use() {
  FirstUse use;
  int status = -1;
  use.ensure([&] {
    const pid_t child = fork();
    if (child == 0) {
      int made = 0;
      for (int i = 0; i < 2; ++i) use.ensure([&] { ++made; });
      _exit(made == 1 ? 0 : 1);
    }
    waitpid(child, &status, 0);
  });
  int again = 0;
  use.ensure([&] { ++again; });
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0) + again;
}

// Everything is called once, and what the least of them throws comes back.
int check_cores() {
  std::vector<int> done(1000, 0);
  std::string thrown;
  try {
    each_on_cores(done.size(), [&](std::size_t i) {
      ++done[i];
      if (i % 300 == 299) throw std::runtime_error(std::to_string(i));
    });
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  int faults = thrown != "299";
  for (int count : done) faults += count != 1;
  return faults;
}

}  // namespace

int main(int argc, char** argv) {
  const int pieces = argc > 1 ? std::atoi(argv[1]) : 20000;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
  int faults = 0;
  for (int threads : {1, 2, 3, 5}) faults += check(threads, pieces, random);
  faults += check_first_use(8) + check_forked_first_use() + check_cores();
  std::printf("%d pieces of work for each of 4 teams, %d faults\n", pieces, faults);
  return faults != 0;
}
