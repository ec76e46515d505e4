// No search trick changes what is possible, and each saves work.
#include <cstdio>
#include <utility>

#include "alloc/check.h"
#include "alloc/search.h"
#include "alloc/solve.h"
#include "check.h"

namespace alloc = hexane::alloc;

namespace {

constexpr std::pair<const char*, bool alloc::Options::*> kTricks[] = {
    {"split", &alloc::Options::split}, {"support", &alloc::Options::support}, {"stack", &alloc::Options::stack},
    {"learn", &alloc::Options::learn}, {"restart", &alloc::Options::restart},
};

// A small linear congruential generator: the same problems everywhere.
struct Random {
  uint64_t state;
  int64_t below(int64_t n) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  }
};

alloc::Problem scattered(uint64_t seed) {
  Random random{seed};
  alloc::Problem problem{{}, 1, {}};
  for (int i = 0; i < 12; i++) {
    const int64_t lower = random.below(8);
    problem.buffers.push_back({lower, lower + 1 + random.below(8), 1 + random.below(4)});
  }
  return problem;
}

// A sheet of kSheet x kSheet cut into rectangles of which some are then dropped: the rest fits back with little to
// spare.
constexpr int64_t kSheet = 1000;

alloc::Problem cut_sheet(uint64_t seed) {
  Random random{seed};
  std::vector<alloc::Buffer> pieces{{0, kSheet, kSheet}};
  while (pieces.size() < 200) {
    alloc::Buffer& piece = pieces[random.below(static_cast<int64_t>(pieces.size()))];
    alloc::Buffer rest = piece;
    if (random.below(2) && piece.upper - piece.lower > 20) {
      rest.lower = piece.upper = piece.lower + 1 + random.below(piece.upper - piece.lower - 1);
    } else if (piece.size > 20) {
      piece.size = 1 + random.below(piece.size - 1);
      rest.size -= piece.size;
    } else {
      continue;
    }
    pieces.push_back(rest);
  }
  std::erase_if(pieces, [&](const alloc::Buffer&) { return random.below(10) == 0; });
  return {pieces, 1, kSheet};
}

void test_tricks_keep_the_optimum() {
  for (uint64_t seed = 0; seed < 200; seed++) {
    const alloc::Problem problem = scattered(seed);
    const alloc::Solution expected = alloc::solve(problem);
    CHECK(expected.height == expected.bound);
    for (const auto& [name, trick] : kTricks) {
      alloc::Options options;
      options.*trick = false;
      const alloc::Solution solution = alloc::solve(problem, options);
      alloc::check(problem, solution.offsets, solution.height);
      if (solution.height == expected.height && solution.bound == expected.bound) continue;
      std::fprintf(stderr, "seed %d without %s: height %d, bound %d, need %d\n", static_cast<int>(seed), name,
                   static_cast<int>(solution.height), static_cast<int>(solution.bound),
                   static_cast<int>(expected.height));
      CHECK(false);
    }
  }
}

// The work to fit the pieces of each sheet again, at most 20 million.
std::vector<int64_t> work_on_sheets(const alloc::Options& options) {
  std::vector<int64_t> work;
  for (uint64_t seed = 0; seed < 40; seed++) {
    int64_t left = 20'000'000;
    std::vector<int64_t> offsets;
    alloc::search(alloc::make_timeline(cut_sheet(seed)), kSheet, options, left, offsets);
    work.push_back(20'000'000 - left);
  }
  return work;
}

// One search may be lucky without a trick, so sheets are counted: those that it makes easier, and those it makes
// harder.
void test_every_trick_saves_work() {
  const std::vector<int64_t> with = work_on_sheets({});
  for (const auto& [name, trick] : kTricks) {
    alloc::Options options;
    options.*trick = false;
    const std::vector<int64_t> without = work_on_sheets(options);
    int easier = 0, harder = 0;
    for (size_t i = 0; i < with.size(); i++) {
      easier += without[i] > with[i] * 5 / 4;
      harder += with[i] > without[i] * 5 / 4;
    }
    std::printf("%s: makes %d sheets easier, %d harder\n", name, easier, harder);
    CHECK(easier > harder);
  }
}

}  // namespace

int main() {
  test_tricks_keep_the_optimum();
  test_every_trick_saves_work();
  return checks_failed();
}
