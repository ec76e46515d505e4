#include "pack/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "core/error.h"
#include "pack/clusters.h"

namespace hexane::pack {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kSmallestHalf = 0x1p-24f;
constexpr float kMostSteps = 127.0f;
constexpr float kRoundsToInteger = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer

// Returns the bits of a magnitude. The bits compare like magnitudes; infinity and NaN are the largest.
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

// Counts how often each half occurs; -0 counts as 0.
std::vector<uint32_t> counts_of(std::span<const fp16> weights) {
  std::vector<uint32_t> counts(kHalves);
  for (const fp16 weight : weights) ++counts[weight.bits];
  for (size_t bits = 0; bits < kHalves; ++bits)
    if (!is_finite(bits) && counts[bits] != 0) fail("quantise", "weights: got one that is not finite");
  counts[0] += counts[0x8000u];
  counts[0x8000u] = 0;
  return counts;
}

Histogram histogram_of(const std::vector<uint32_t>& counts) {
  std::vector<uint16_t> order;
  const auto take = [&](size_t bits) {
    if (counts[bits] != 0) order.push_back(static_cast<uint16_t>(bits));
  };
  for (size_t bits = kHalves - 1; bits > 0x8000u; --bits) take(bits);
  for (size_t bits = 0; bits < 0x8000u; ++bits) take(bits);
  return Histogram(order, counts);
}

}  // namespace

void quantise_int8(std::span<const float> weights, const Channels& channels, std::span<int8_t> integers,
                   std::span<float> scales) {
  const auto outer = static_cast<size_t>(channels.outer), count = static_cast<size_t>(channels.channels);
  const auto inner = static_cast<size_t>(channels.inner);
  if (outer * count * inner != weights.size() || integers.size() != weights.size() || scales.size() != count)
    fail("quantise", "got ", weights.size(), " weights, need ", outer, " x ", count, " x ", inner);
  std::vector<int32_t> largest(count);
  const bool columns = inner == 1;  // channels are innermost
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

std::vector<fp16> palette_entries(std::span<const fp16> weights, int bits, int less) {
  if (bits < 1 || bits > 8) fail("quantise", "bits: got ", bits, ", need 1 to 8");
  if (less < 0 || less >= 1 << bits) fail("quantise", "less: got ", less, " of ", 1 << bits, " entries, need fewer");
  if (weights.empty()) fail("quantise", "weights: got none");
  const Histogram found = histogram_of(counts_of(weights));
  const size_t n = found.values.size(), most = (size_t{1} << bits) - static_cast<size_t>(less);
  return entries_of(found, n <= most ? one_each(n) : Clusters(found, most).bounds());
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
    const size_t at = nearest_entry(entries, value);
    const double apart = double{value} - double{to_float(entries[at])};
    nearest[bits] = static_cast<uint8_t>(at);
    error += counts[bits] * apart * apart;
  }
  nearest[0x8000u] = nearest[0];
  for (size_t i = 0; i < weights.size(); ++i) indices[i] = nearest[weights[i].bits];
  return error;
}

}  // namespace hexane::pack
