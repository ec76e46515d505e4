// A sweep over the starts and ends of the live ranges, with ends before starts at equal steps.
#include "alloc/bound.h"

#include <algorithm>
#include <utility>

namespace hexane::alloc {

int64_t bound(const Problem& problem) {
  validate(problem);
  std::vector<std::pair<int64_t, int64_t>>
      changes;  // (step, change of the live bytes); deaths are negative, so they sort first
  changes.reserve(2 * problem.buffers.size());
  int64_t most = 0;
  for (const Buffer& buffer : problem.buffers) {
    const int64_t size = round_up(buffer.size, problem.alignment);
    changes.emplace_back(buffer.lower, size);
    changes.emplace_back(buffer.upper, -size);
    for (const Gap& gap : buffer.gaps) {
      changes.emplace_back(gap.lower, -size);
      changes.emplace_back(gap.upper, size);
    }
    if (size && buffer.at) most = std::max(most, *buffer.at + size);
  }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0;
  for (const auto& [step, bytes] : changes) {
    live += bytes;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace hexane::alloc
