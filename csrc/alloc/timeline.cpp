// One sweep over births and deaths: a section is closed by the first death after a birth.
#include "alloc/timeline.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace hexane::alloc {

Timeline make_timeline(const Problem& problem) {
  Timeline timeline;
  std::vector<std::tuple<int64_t, bool, int32_t>> events;  // (step, birth, item): deaths sort before births
  for (size_t id = 0; id < problem.buffers.size(); id++) {
    const Buffer& buffer = problem.buffers[id];
    if (buffer.size == 0) continue;
    const int32_t item = timeline.num_items();
    timeline.items.push_back({0, 0, round_up(buffer.size, problem.alignment)});
    timeline.buffer.push_back(id);
    events.emplace_back(buffer.lower, true, item);
    events.emplace_back(buffer.upper, false, item);
  }
  std::sort(events.begin(), events.end());

  int64_t live = 0;
  int64_t unit = 0;
  bool grown = false;
  for (const auto& [step, birth, index] : events) {
    Item& item = timeline.items[index];
    if (birth) {
      item.first = timeline.num_sections();
      live += item.size;
      unit = std::gcd(unit, item.size);
    } else {
      if (grown) timeline.load.push_back(live);
      item.last = timeline.num_sections() - 1;
      live -= item.size;
    }
    grown = birth;
  }
  timeline.unit = std::max<int64_t>(unit, 1);
  return timeline;
}

}  // namespace hexane::alloc
