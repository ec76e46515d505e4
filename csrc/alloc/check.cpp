// Checks the rules of single buffers first. Then the check sweeps over time and keeps the live buffers in order of
// offset. While no two live buffers overlap, a new buffer can only overlap its two neighbours.
#include "alloc/check.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/error.h"

namespace hexane::alloc {
namespace {

[[noreturn]] void refuse(size_t id, const char* rule, int64_t got, const char* relation, int64_t need) {
  fail("alloc_check", "buffer ", id, " ", rule, ": got ", got, ", need ", relation, " ", need);
}

void check_one(size_t id, const Buffer& buffer, int64_t offset, int64_t alignment, int64_t height) {
  if (buffer.lower < 0) refuse(id, "lower", buffer.lower, ">=", 0);
  if (buffer.upper <= buffer.lower) refuse(id, "upper", buffer.upper, ">", buffer.lower);
  if (buffer.size < 0) refuse(id, "size", buffer.size, ">=", 0);
  if (offset < 0) refuse(id, "offset", offset, ">=", 0);
  for (const int64_t step : {alignment, buffer.alignment})
    if (step > 0 && offset % step != 0) refuse(id, "offset", offset, "a multiple of", step);
  if (buffer.at && offset != *buffer.at) refuse(id, "offset", offset, "its place,", *buffer.at);
  int64_t last = buffer.lower;
  for (const Gap& gap : buffer.gaps) {
    if (gap.lower < last) refuse(id, "gap lower", gap.lower, ">=", last);
    if (gap.upper < gap.lower) refuse(id, "gap upper", gap.upper, ">=", gap.lower);
    last = gap.upper;
  }
  if (last > buffer.upper) refuse(id, "gap upper", last, "<=", buffer.upper);
  if (offset > height || buffer.size > height - offset) {
    fail("alloc_check", "buffer ", id, " end: got offset ", offset, " + size ", buffer.size, ", need <= height ",
         height);
  }
}

// Throws if two live buffers overlap. `lower` has the smaller offset.
void check_two(size_t lower, size_t upper, const Problem& problem, const std::vector<int64_t>& offsets) {
  const int64_t end = offsets[lower] + problem.buffers[lower].size;
  if (offsets[upper] >= end) return;
  fail("alloc_check", "buffer ", upper, " offset: got ", offsets[upper], ", need >= ", end, ", the end of buffer ",
       lower, " which lives at the same time");
}

}  // namespace

void check(const Problem& problem, const std::vector<int64_t>& offsets, int64_t height) {
  const auto& buffers = problem.buffers;
  if (problem.alignment < 1) fail("alloc_check", "alignment: got ", problem.alignment, ", need >= 1");
  if (offsets.size() != buffers.size()) {
    fail("alloc_check", "offsets: got ", offsets.size(), ", need one per buffer, ", buffers.size());
  }
  if (problem.capacity && height > *problem.capacity) {
    fail("alloc_check", "height: got ", height, ", need <= capacity ", *problem.capacity);
  }
  for (size_t id = 0; id < buffers.size(); id++) check_one(id, buffers[id], offsets[id], problem.alignment, height);

  std::vector<std::tuple<int64_t, bool, size_t>> events;  // (step, true for a birth, buffer): deaths sort before births
  for (size_t id = 0; id < buffers.size(); id++) {
    if (buffers[id].size == 0) continue;
    int64_t from = buffers[id].lower;
    const auto live_until = [&](int64_t step) {
      if (step == from) return;
      events.emplace_back(from, true, id);
      events.emplace_back(step, false, id);
    };
    for (const Gap& gap : buffers[id].gaps) {
      live_until(gap.lower);
      from = gap.upper;
    }
    live_until(buffers[id].upper);
  }
  std::sort(events.begin(), events.end());

  std::map<int64_t, size_t> live;  // offset -> id
  for (const auto& [step, born, id] : events) {
    if (!born) {
      live.erase(offsets[id]);
      continue;
    }
    const auto above = live.lower_bound(offsets[id]);
    if (above != live.end()) check_two(id, above->second, problem, offsets);
    if (above != live.begin()) check_two(std::prev(above)->second, id, problem, offsets);
    live.emplace(offsets[id], id);
  }
}

}  // namespace hexane::alloc
