// One sweep over births and deaths: the first death after a birth closes a section.
#include "alloc/timeline.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace hexane::alloc {

Timeline make_timeline(const Problem& problem) {
  Timeline timeline;
  std::vector<std::tuple<int64_t, bool, int32_t>> events;  // (step, birth, segment): deaths sort before births
  const auto add_segment = [&](int64_t lower, int64_t upper) {
    const auto segment = static_cast<int32_t>(timeline.segments.size());
    timeline.segments.push_back({timeline.num_items(), 0, 0});
    events.emplace_back(lower, true, segment);
    events.emplace_back(upper, false, segment);
  };
  int64_t unit = 0;
  for (size_t id = 0; id < problem.buffers.size(); id++) {
    const Buffer& buffer = problem.buffers[id];
    if (buffer.size == 0) continue;
    int64_t from = buffer.lower;
    for (const Gap& gap : buffer.gaps) {
      add_segment(from, gap.lower);
      from = gap.upper;
    }
    add_segment(from, buffer.upper);
    timeline.items.push_back({-1, 0, round_up(buffer.size, problem.alignment)});
    timeline.buffer.push_back(id);
    unit = std::gcd(std::gcd(unit, timeline.items.back().size), buffer.at.value_or(0));
    if (buffer.alignment > problem.alignment) unit = std::gcd(unit, buffer.alignment);
  }
  std::sort(events.begin(), events.end());

  int64_t live = 0;
  bool grown = false;
  for (const auto& [step, birth, index] : events) {
    Segment& segment = timeline.segments[index];
    Item& item = timeline.items[segment.item];
    if (birth) {
      segment.first = timeline.num_sections();
      if (item.first < 0) item.first = segment.first;
      live += item.size;
    } else {
      if (grown) timeline.load.push_back(live);
      item.last = segment.last = timeline.num_sections() - 1;
      live -= item.size;
    }
    grown = birth;
  }
  std::sort(timeline.segments.begin(), timeline.segments.end(),
            [](const Segment& a, const Segment& b) { return std::tie(a.first, a.item) < std::tie(b.first, b.item); });
  timeline.unit = std::max<int64_t>(unit, 1);
  return timeline;
}

}  // namespace hexane::alloc
