#include "pack/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "core/error.h"

namespace hexane::pack {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kSmallestHalf = 0x1p-24f;
constexpr float kMostSteps = 127.0f;
constexpr float kRoundsToInteger = 12582912.0f;  // 1.5 * 2^23: added to a small number, the low bits are its integer

// Magnitudes compare as their bits do, and what is not finite is the largest.
int32_t magnitude(float value) { return std::bit_cast<int32_t>(value) & 0x7fffffff; }

float scale_of(int32_t largest) {
  if (std::bit_cast<uint32_t>(largest) >= kInfinity) fail("quantise", "weights: got one that is not finite");
  if (largest == 0) return 1.0f;
  const float scale = to_float(to_fp16(std::bit_cast<float>(largest) / kMostSteps));
  if (!std::isfinite(scale))
    fail("quantise", "weights: got ", std::bit_cast<float>(largest), ", need a scale that fp16 holds");
  return std::max(scale, kSmallestHalf);
}

int8_t steps(float weight, float scale) {
  const float held = std::min(std::max(weight / scale, -kMostSteps), kMostSteps);
  return static_cast<int8_t>(std::bit_cast<int32_t>(held + kRoundsToInteger) -
                             std::bit_cast<int32_t>(kRoundsToInteger));
}

constexpr size_t kHalves = 65536;

// The distinct weights in order, how often each occurs, and sums from 0 outwards: sums of small numbers keep their
// digits next to large ones. [i] of a sum is that of the numbers before i, less those below 0.
struct Histogram {
  std::vector<double> values;
  std::vector<double> count, sum, squares;  // one more than values
};

std::vector<uint32_t> counts_of(std::span<const fp16> weights) {
  std::vector<uint32_t> counts(kHalves);
  for (const fp16 weight : weights) ++counts[weight.bits];
  for (size_t bits = 0; bits < kHalves; ++bits)
    if ((bits & 0x7c00u) == 0x7c00u && counts[bits] != 0) fail("quantise", "weights: got one that is not finite");
  counts[0] += counts[0x8000u];
  counts[0x8000u] = 0;
  return counts;
}

Histogram histogram(const std::vector<uint32_t>& counts) {
  Histogram made;
  std::vector<double> occurs;
  const auto take = [&](size_t bits) {
    if (counts[bits] == 0) return;
    made.values.push_back(to_float(fp16{static_cast<uint16_t>(bits)}));
    occurs.push_back(counts[bits]);
  };
  for (size_t bits = kHalves - 1; bits > 0x8000u; --bits) take(bits);
  for (size_t bits = 0; bits < 0x8000u; ++bits) take(bits);

  const size_t n = made.values.size();
  const auto zero = static_cast<size_t>(std::ranges::lower_bound(made.values, 0.0) - made.values.begin());
  for (auto* sums : {&made.count, &made.sum, &made.squares}) sums->resize(n + 1);
  const auto extend = [&](size_t from, size_t to, size_t i, double sign) {
    const double value = made.values[i], times = sign * occurs[i];
    made.count[to] = made.count[from] + times;
    made.sum[to] = made.sum[from] + times * value;
    made.squares[to] = made.squares[from] + times * value * value;
  };
  for (size_t i = zero; i < n; ++i) extend(i, i + 1, i, 1);
  for (size_t i = zero; i > 0; --i) extend(i, i - 1, i - 1, -1);
  return made;
}

// Exact k-means in one dimension. least[j] of m clusters is the least error of the first j values, start[j] where the
// last of the clusters starts. Starts grow with j, and with m, so each is looked for between those that are known.
class Clusters {
 public:
  Clusters(const Histogram& found, size_t most) : h_(found), n_(found.values.size()), most_(most) {
    least_.assign(n_ + 1, 0.0);
    next_.assign(n_ + 1, 0.0);
    starts_.assign(most_ + 1, std::vector<uint16_t>(n_ + 1));
    for (size_t j = 1; j <= n_; ++j) least_[j] = cost(0, j);
    for (size_t m = 2; m <= most_; ++m) {
      const size_t first = m == most_ ? n_ : m;  // nobody asks for fewer values of the last
      fill(m, first, n_, m - 1, n_ - 1);
      least_.swap(next_);
    }
  }

  // Where each cluster starts, and the number of values.
  std::vector<size_t> bounds() const {
    std::vector<size_t> found(most_ + 1);
    found[most_] = n_;
    for (size_t m = most_; m > 1; --m) found[m - 1] = starts_[m][found[m]];
    return found;
  }

 private:
  double cost(size_t i, size_t j) const {
    const double sum = h_.sum[j] - h_.sum[i];
    return h_.squares[j] - h_.squares[i] - sum * sum / (h_.count[j] - h_.count[i]);
  }

  void fill(size_t m, size_t first, size_t last, size_t low, size_t high) {
    if (first > last) return;
    const size_t j = first + (last - first) / 2;
    const size_t found = best(m, j, low, std::min(high, j - 1));
    starts_[m][j] = static_cast<uint16_t>(found);
    if (j > first) fill(m, first, j - 1, low, found);
    fill(m, j + 1, last, found, high);
  }

  size_t best(size_t m, size_t j, size_t low, size_t high) {
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

  const Histogram& h_;
  size_t n_, most_;
  std::vector<double> least_, next_;
  std::vector<std::vector<uint16_t>> starts_;  // fewer than 65536 halves are finite
};

}  // namespace

void quantise_int8(std::span<const float> weights, const Channels& channels, std::span<int8_t> integers,
                   std::span<float> scales) {
  const auto outer = static_cast<size_t>(channels.outer), count = static_cast<size_t>(channels.channels);
  const auto inner = static_cast<size_t>(channels.inner);
  if (outer * count * inner != weights.size() || integers.size() != weights.size() || scales.size() != count)
    fail("quantise", "got ", weights.size(), " weights, need ", outer, " x ", count, " x ", inner);
  std::vector<int32_t> largest(count);
  const bool columns = inner == 1;  // channels follow each other in memory
  for (size_t o = 0; o < outer; ++o) {
    const float* row = weights.data() + o * count * inner;
    for (size_t c = 0; columns && c < count; ++c) largest[c] = std::max(largest[c], magnitude(row[c]));
    for (size_t c = 0; !columns && c < count; ++c) {
      int32_t most = largest[c];
      for (size_t i = 0; i < inner; ++i) most = std::max(most, magnitude(row[c * inner + i]));
      largest[c] = most;
    }
  }
  std::ranges::transform(largest, scales.begin(), scale_of);
  for (size_t o = 0; o < outer; ++o) {
    const float* row = weights.data() + o * count * inner;
    int8_t* to = integers.data() + o * count * inner;
    for (size_t c = 0; columns && c < count; ++c) to[c] = steps(row[c], scales[c]);
    for (size_t c = 0; !columns && c < count; ++c) {
      const float scale = scales[c];
      for (size_t i = 0; i < inner; ++i) to[c * inner + i] = steps(row[c * inner + i], scale);
    }
  }
}

std::vector<fp16> palette_entries(std::span<const fp16> weights, int bits) {
  if (bits < 1 || bits > 8) fail("quantise", "bits: got ", bits, ", need 1 to 8");
  if (weights.empty()) fail("quantise", "weights: got none");
  const Histogram found = histogram(counts_of(weights));
  const size_t n = found.values.size(), most = size_t{1} << bits;
  std::vector<fp16> entries;
  if (n <= most) {
    for (const double value : found.values) entries.push_back(to_fp16(static_cast<float>(value)));
    return entries;
  }
  const std::vector<size_t> bounds = Clusters(found, most).bounds();
  for (size_t m = 0; m < most; ++m) {
    const size_t from = bounds[m], to = bounds[m + 1];
    const double mean = (found.sum[to] - found.sum[from]) / (found.count[to] - found.count[from]);
    entries.push_back(to_fp16(static_cast<float>(mean) + 0.0f));  // -0 becomes 0
  }
  const auto same = std::ranges::unique(entries, {}, &fp16::bits);
  entries.erase(same.begin(), same.end());
  return entries;
}

double palette_indices(std::span<const fp16> weights, std::span<const fp16> entries, std::span<int32_t> indices) {
  if (entries.empty() || entries.size() > 256 || weights.size() != indices.size())
    fail("quantise", "got ", entries.size(), " entries for ", weights.size(), " weights and ", indices.size(),
         " indices, need 1 to 256 and as many indices as weights");
  const std::vector<uint32_t> counts = counts_of(weights);
  std::vector<uint8_t> nearest(kHalves);
  double error = 0;
  for (size_t bits = 0; bits < kHalves; ++bits) {
    if (counts[bits] == 0) continue;
    const float value = to_float(fp16{static_cast<uint16_t>(bits)});
    const auto above = std::ranges::lower_bound(entries, value, {}, [](fp16 entry) { return to_float(entry); });
    auto at = static_cast<size_t>(above - entries.begin());
    const auto distance = [&](size_t i) { return std::abs(double{value} - double{to_float(entries[i])}); };
    if (at == entries.size() || (at > 0 && distance(at - 1) <= distance(at))) --at;
    nearest[bits] = static_cast<uint8_t>(at);
    error += counts[bits] * distance(at) * distance(at);
  }
  nearest[0x8000u] = nearest[0];
  for (size_t i = 0; i < weights.size(); ++i) indices[i] = nearest[weights[i].bits];
  return error;
}

}  // namespace hexane::pack
