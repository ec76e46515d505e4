// Sort keys are doubles. Only multiplications compute them, so every compiler and machine rounds them alike.
#include "alloc/rank.h"

#include <algorithm>
#include <numeric>

namespace hexane::alloc {
namespace {

// splitmix64. The standard library's distributions are not portable.
uint64_t next_random(uint64_t& state) {
  uint64_t x = (state += 0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Returns the largest load among each item's sections. A table holds the largest loads of runs of 2^k sections.
std::vector<int64_t> largest_loads(const Timeline& timeline) {
  std::vector<std::vector<int64_t>> runs{timeline.load};
  for (size_t width = 1; 2 * width <= timeline.load.size(); width *= 2) {
    const auto& narrow = runs.back();
    std::vector<int64_t> wide(timeline.load.size() - 2 * width + 1);
    for (size_t s = 0; s < wide.size(); s++) wide[s] = std::max(narrow[s], narrow[s + width]);
    runs.push_back(std::move(wide));
  }
  std::vector<int64_t> largest;
  largest.reserve(timeline.items.size());
  for (const Item& item : timeline.items) {
    size_t k = 0;
    while ((2 << k) <= item.length()) k++;
    largest.push_back(std::max(runs[k][item.first], runs[k][item.last + 1 - (1 << k)]));
  }
  return largest;
}

}  // namespace

std::vector<int32_t> rank_items(const Timeline& timeline, Order order, uint64_t seed) {
  const auto& items = timeline.items;
  std::vector<double> key(items.size());
  if (order == Order::kLoad) {
    const std::vector<int64_t> loads = largest_loads(timeline);
    std::copy(loads.begin(), loads.end(), key.begin());
  } else {
    for (size_t i = 0; i < items.size(); i++) {
      const double length = order == Order::kSize ? 1 : items[i].length();
      const double size = order == Order::kLength ? 1 : static_cast<double>(items[i].size);
      key[i] = length * size;
    }
  }
  if (seed != 0) {
    for (double& k : key) k *= static_cast<double>(992 + (next_random(seed) >> 58));  // 992..1055
  }

  std::vector<int32_t> sorted(items.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    if (key[a] != key[b]) return key[a] > key[b];
    if (items[a].size != items[b].size) return items[a].size > items[b].size;
    if (items[a].length() != items[b].length()) return items[a].length() > items[b].length();
    return a < b;
  });
  std::vector<int32_t> rank(items.size());
  for (size_t i = 0; i < sorted.size(); i++) rank[sorted[i]] = static_cast<int32_t>(i);
  return rank;
}

}  // namespace hexane::alloc
