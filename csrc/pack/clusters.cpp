#include "pack/clusters.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace hexane::pack {
namespace {

constexpr size_t kExactValues = 1024;  // for more values, the exact search takes too long for thousands of groups
constexpr size_t kLeastRuns = 512, kRunsOfCluster = 32;
constexpr int kMostLloydSteps = 100;

// Divides the sorted values into runs, many to a cluster, and returns the ends of the runs. A run is limited in its
// number of weights and in its range, so that both the middle and the tails have enough runs.
std::vector<size_t> runs_of(const Histogram& h, size_t runs) {
  const size_t n = h.values.size();
  const double weights = h.count[n] - h.count[0], distance = h.values[n - 1] - h.values[0];
  std::vector<size_t> ends;
  double filled = 0;
  for (size_t i = 0; i < n; ++i) {
    const double gap = i + 1 < n ? h.values[i + 1] - h.values[i] : distance;
    filled += ((h.count[i + 1] - h.count[i]) / weights + gap / distance) / 2 * static_cast<double>(runs);
    if (filled < 1 && i + 1 < n) continue;
    ends.push_back(i + 1);
    filled = 0;
  }
  return ends;
}

double mean_of(const Histogram& h, size_t from, size_t to) {
  return (h.sum[to] - h.sum[from]) / (h.count[to] - h.count[from]);
}

// Lloyd's algorithm: assigns each value to the nearest mean until no value moves.
void lloyd(const Histogram& h, std::vector<size_t>& bounds) {
  const size_t most = bounds.size() - 1;
  for (int step = 0; step < kMostLloydSteps; ++step) {
    bool moved = false;
    double mean = mean_of(h, bounds[0], bounds[1]);
    for (size_t m = 1; m < most; ++m) {
      const double next = mean_of(h, bounds[m], bounds[m + 1]);
      const auto found = std::ranges::upper_bound(h.values, (mean + next) / 2) - h.values.begin();
      // The midpoint lies between values of both clusters, so neither becomes empty; the clamp guards against rounding.
      const size_t bound = std::clamp(static_cast<size_t>(found), bounds[m - 1] + 1, bounds[m + 1] - 1);
      moved = moved || bound != bounds[m];
      bounds[m] = bound;
      mean = next;
    }
    if (!moved) return;
  }
}

}  // namespace

Histogram::Histogram(std::span<const uint16_t> ascending, std::span<const uint32_t> counts) {
  const size_t n = ascending.size();
  for (const uint16_t bits : ascending) values.push_back(to_float(fp16{bits}));
  const auto zero = static_cast<size_t>(std::ranges::lower_bound(values, 0.0) - values.begin());
  for (auto* sums : {&count, &sum, &squares}) sums->resize(n + 1);
  const auto extend = [&](size_t from, size_t to, size_t i, double sign) {
    const double value = values[i], times = sign * counts[ascending[i]];
    count[to] = count[from] + times;
    sum[to] = sum[from] + times * value;
    squares[to] = squares[from] + times * value * value;
  };
  for (size_t i = zero; i < n; ++i) extend(i, i + 1, i, 1);
  for (size_t i = zero; i > 0; --i) extend(i, i - 1, i - 1, -1);
}

Clusters::Clusters(const Histogram& found, size_t most) : h_(found), n_(found.values.size()), most_(most) {
  least_.assign(n_ + 1, 0.0);
  next_.assign(n_ + 1, 0.0);
  starts_.assign(most_ + 1, std::vector<uint16_t>(n_ + 1));
  for (size_t j = 1; j <= n_; ++j) least_[j] = cost(0, j);
  for (size_t m = 2; m <= most_; ++m) {
    const size_t first = m == most_ ? n_ : m;  // the last cluster is only needed for all values
    fill(m, first, n_, m - 1, n_ - 1);
    least_.swap(next_);
  }
}

std::vector<size_t> Clusters::bounds() const {
  std::vector<size_t> found(most_ + 1);
  found[most_] = n_;
  for (size_t m = most_; m > 1; --m) found[m - 1] = starts_[m][found[m]];
  return found;
}

double Clusters::cost(size_t i, size_t j) const {
  const double sum = h_.sum[j] - h_.sum[i];
  return h_.squares[j] - h_.squares[i] - sum * sum / (h_.count[j] - h_.count[i]);
}

void Clusters::fill(size_t m, size_t first, size_t last, size_t low, size_t high) {
  if (first > last) return;
  const size_t j = first + (last - first) / 2;
  const size_t found = best(m, j, low, std::min(high, j - 1));
  starts_[m][j] = static_cast<uint16_t>(found);
  if (j > first) fill(m, first, j - 1, low, found);
  fill(m, j + 1, last, found, high);
}

size_t Clusters::best(size_t m, size_t j, size_t low, size_t high) {
  size_t from = std::min(std::max(low, static_cast<size_t>(starts_[m - 1][j])), high);
  size_t found = from;
  double least = least_[from] + cost(from, j);
  std::array<double, 64> errors;
  while (from <= high) {
    const size_t many = std::min(errors.size(), high - from + 1);
    for (size_t i = 0; i < many; ++i) errors[i] = least_[from + i] + cost(from + i, j);
    for (size_t i = 0; i < many; ++i)
      if (errors[i] < least) {
        least = errors[i];
        found = from + i;
      }
    from += many;
  }
  next_[j] = least;
  return found;
}

std::vector<size_t> one_each(size_t n) {
  std::vector<size_t> bounds(n + 1);
  for (size_t i = 0; i <= n; ++i) bounds[i] = i;
  return bounds;
}

std::vector<size_t> near_bounds(const Histogram& found, size_t most) {
  if (found.values.size() <= kExactValues) return Clusters(found, most).bounds();
  const std::vector<size_t> ends = runs_of(found, std::max(kLeastRuns, kRunsOfCluster * most));
  if (ends.size() <= 2 * most) return Clusters(found, most).bounds();
  Histogram runs;
  runs.values.resize(ends.size());
  const auto pick = [&](const std::vector<double>& from, std::vector<double>& to) {
    to.push_back(from[0]);
    for (const size_t end : ends) to.push_back(from[end]);
  };
  pick(found.count, runs.count);
  pick(found.sum, runs.sum);
  pick(found.squares, runs.squares);
  std::vector<size_t> bounds = Clusters(runs, most).bounds();
  for (size_t& bound : bounds) bound = bound == 0 ? 0 : ends[bound - 1];
  lloyd(found, bounds);
  return bounds;
}

std::vector<fp16> entries_of(const Histogram& found, std::span<const size_t> bounds) {
  std::vector<fp16> entries;
  for (size_t m = 0; m + 1 < bounds.size(); ++m)
    entries.push_back(to_fp16(static_cast<float>(mean_of(found, bounds[m], bounds[m + 1])) + 0.0f));  // -0 becomes 0
  const auto same = std::ranges::unique(entries, {}, &fp16::bits);
  entries.erase(same.begin(), same.end());
  return entries;
}

size_t nearest_entry(std::span<const fp16> entries, float value) {
  const auto above = std::ranges::lower_bound(entries, value, {}, [](fp16 entry) { return to_float(entry); });
  const auto at = static_cast<size_t>(above - entries.begin());
  const auto distance = [&](size_t i) { return std::abs(double{value} - double{to_float(entries[i])}); };
  return at == entries.size() || (at > 0 && distance(at - 1) <= distance(at)) ? at - 1 : at;
}

}  // namespace hexane::pack
