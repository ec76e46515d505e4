// Clusters of numbers in one dimension: each is a run of the sorted numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/fp16.h"

namespace hexane::pack {

inline constexpr size_t kHalves = 65536;  // number of different 16-bit halves

constexpr bool is_finite(size_t half) { return (half & 0x7c00u) != 0x7c00u; }

// The distinct weights in ascending order, their counts, and prefix sums that start at the value 0 and go outwards. In
// this order sums of small numbers keep their digits next to large ones. Entry i of a sum is the sum over the values
// before i, minus the sum over all negative values.
struct Histogram {
  Histogram() = default;
  // ascending: the bits of the distinct halves, sorted by value. counts: indexed by the bits of a half.
  Histogram(std::span<const uint16_t> ascending, std::span<const uint32_t> counts);

  std::vector<double> values;
  std::vector<double> count, sum, squares;  // prefix sums: one entry more than `values` has
};

// Exact k-means. For m clusters, least[j] is the least error of the first j values, and start[j] is where their last
// cluster starts. Starts grow with j and with m, so each is searched between two known starts.
class Clusters {
 public:
  Clusters(const Histogram& found, size_t most);

  // Returns the start of each cluster, then the number of values.
  std::vector<size_t> bounds() const;

 private:
  double cost(size_t i, size_t j) const;
  void fill(size_t m, size_t first, size_t last, size_t low, size_t high);
  size_t best(size_t m, size_t j, size_t low, size_t high);

  const Histogram& h_;
  size_t n_, most_;
  std::vector<double> least_, next_;
  std::vector<std::vector<uint16_t>> starts_;  // fewer than 65536 halves are finite
};

// Returns the bounds of n clusters of one value each.
std::vector<size_t> one_each(size_t n);

// Returns nearly optimal bounds: exact k-means on runs of adjacent values (32 runs per cluster, at least 512), then
// Lloyd's steps on the values. The bounds are optimal if there are at most 1024 values. Requires more values than
// clusters.
std::vector<size_t> near_bounds(const Histogram& found, size_t most);

// Returns the distinct means of the clusters, rounded to fp16.
std::vector<fp16> entries_of(const Histogram& found, std::span<const size_t> bounds);

// Returns the index of the entry nearest to a value; of two equally near entries the lower. Entries have to be
// ascending.
size_t nearest_entry(std::span<const fp16> entries, float value);

}  // namespace hexane::pack
