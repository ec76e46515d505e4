#include "pack/blocks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "core/fp16.h"
#include "core/thread_pool.h"
#include "pack/block_sums.h"

namespace hexane::pack {
namespace {

constexpr size_t kChunk = 4 * kBlocks;  // Blocks that a thread takes at a time.
constexpr float kLargestHalf = 65504.0f, kSmallestHalf = 0x1p-24f;
constexpr std::array kFirst = {1.0f, 0.94f, 0.88f, 0.82f, 0.76f};  // fractions of the largest scale, to try first
constexpr int kSteps = 6;
// Number of scales to try for weights of different importance; each is a fixed fraction of the previous scale. If the
// most important weights are small, the best scale clips larger weights. Least-squares steps follow from the best
// scales.
constexpr int kTried = 48;
constexpr float kTriedRatio = 0.95f;
constexpr int kRefined = 3, kRefinements = 3;
constexpr float kPenalty = 2.0f, kStiffer = 1.2f;  // penalty of the first half-quadratic step, and its growth per step

// The quality of the integers that a scale gives for a block.
struct Fit {
  float scale = 1, error = 0;
  float least_squares = 0;  // The least-squares scale for these integers; 0 if all integers are 0.
  float explained = 0;      // By how much subtracting the scaled integers reduces the weights' sum of squares.
};

using Numbers = std::array<float, kBlocks>;  // a number for each block
using Fits = std::array<Fit, kBlocks>;
using Active = std::array<bool, kBlocks>;

Active all() {
  Active active;
  active.fill(true);
  return active;
}

// Replaces fits by better ones, for the active blocks.
void take(Fits& found, const Fits& fits, const Active& active) {
  for (size_t b = 0; b < kBlocks; ++b)
    if (active[b] && fits[b].error < found[b].error) found[b] = fits[b];
}

Numbers scales(const Fits& fits) {
  Numbers result;
  for (size_t b = 0; b < kBlocks; ++b) result[b] = fits[b].scale;
  return result;
}

// Quantises kBlocks blocks together. All of them go through the same steps; a block that is done ignores the rest.
class Blocks {
 public:
  Blocks(size_t numbers, int bits)
      : size_(numbers),
        padded_((numbers + kPartialSums - 1) / kPartialSums * kPartialSums),
        high_(bits == 4 ? 7.0f : 127.0f),
        low_(bits == 4 ? -8.0f : -127.0f),
        weights_(padded_ * kBlocks),
        importance_(padded_) {}

  // Sets the importance for the next blocks, scaled so that the largest is 1.
  void set_importance(std::span<const double> channels) {
    const double most = *std::ranges::max_element(channels);
    weighted_ = *std::ranges::min_element(channels) != most;
    if (!weighted_) return;
    const size_t taps = size_ / channels.size();
    for (size_t i = 0; i < size_; ++i) importance_[i] = static_cast<float>(channels[i / taps] / most);
  }

  // Quantises scales.size() blocks, at most kBlocks: stores their scales and integers.
  void quantise(std::span<const float> weights, std::span<int8_t> integers, std::span<float> scales) {
    const size_t count = scales.size();
    std::ranges::fill(weights_, 0.0f);
    Numbers largest{};
    for (size_t b = 0; b < count; ++b)
      for (size_t i = 0; i < size_; ++i) {
        const float w = weights[b * size_ + i];
        if (!(std::abs(w) <= kLargestHalf)) fail("quantise", "weights: got ", w, ", need all of them within +-65504");
        largest[b] = std::max(largest[b], std::abs(w));
        weights_[i * kBlocks + b] = w;
      }
    Numbers first;  // the scale that clips no weight
    for (size_t b = 0; b < kBlocks; ++b) first[b] = largest[b] / high_;
    const Fits found = weighted_ ? best_weighted(first) : best(first);
    for (size_t b = 0; b < count; ++b) {
      scales[b] = largest[b] == 0 ? 1.0f : found[b].scale;
      const float low = low_of(scales[b]);
      for (size_t i = b * size_; i < (b + 1) * size_; ++i)
        integers[i] = static_cast<int8_t>(integer(weights[i], scales[b], low));
    }
  }

 private:
  Fits best(const Numbers& first) const {
    Fits found = measured<false>(first);
    for (const float part : kFirst) {
      Numbers wanted = first;
      for (float& scale : wanted) scale *= part;
      const Fits fits = measured<false>(wanted);
      take(found, fits, all());
      refine<false>(fits, found, 1);
    }
    Numbers scale = scales(found);
    Active active = all();
    float penalty = kPenalty;
    for (int step = 0; step < kSteps; ++step, penalty *= kStiffer) {
      const Numbers next = half_quadratic(scale, penalty);
      for (size_t b = 0; b < kBlocks; ++b) active[b] = active[b] && found[b].error > 0 && next[b] > 0;
      const Fits fits = measured<false>(where(active, next, scale));
      take(found, fits, active);
      scale = where(active, scales(fits), scale);
    }
    return found;
  }

  // Returns the best scale under the importance. The scale found without importance is also tried, so the result is
  // never worse.
  Fits best_weighted(const Numbers& first) const {
    Fits found = measured<true>(scales(best(first)));
    std::array<Fits, kTried> tried;
    Numbers scale = first;
    for (Fits& fits : tried) {
      take(found, fits = measured<true>(scale), all());
      for (float& one : scale) one *= kTriedRatio;
    }
    std::array<Fits, kRefined> chosen;
    for (size_t b = 0; b < kBlocks; ++b) {
      std::array<Fit, kTried> of_block;
      for (size_t i = 0; i < kTried; ++i) of_block[i] = tried[i][b];
      std::ranges::partial_sort(of_block, of_block.begin() + kRefined, std::ranges::greater{}, &Fit::explained);
      for (size_t i = 0; i < kRefined; ++i) chosen[i][b] = of_block[i];
    }
    for (const Fits& fits : chosen) refine<true>(fits, found, kRefinements);
    refine<true>(Fits(found), found, kRefinements);
    return found;
  }

  // Takes least-squares steps from these fits, while their integers are not all 0.
  template <bool kWeighted>
  void refine(Fits fits, Fits& found, int steps) const {
    Active active = all();
    for (int step = 0; step < steps; ++step) {
      Numbers wanted = scales(fits);
      for (size_t b = 0; b < kBlocks; ++b) {
        active[b] = active[b] && fits[b].least_squares > 0;
        if (active[b]) wanted[b] = fits[b].least_squares;
      }
      fits = measured<kWeighted>(wanted);
      take(found, fits, active);
    }
  }

  static Numbers where(const Active& active, const Numbers& one, const Numbers& other) {
    Numbers result;
    for (size_t b = 0; b < kBlocks; ++b) result[b] = active[b] ? one[b] : other[b];
    return result;
  }

  // Rounds a scale to fp16, and limits it so that the largest integer times the scale is finite in fp16.
  float rounded(float scale) const {
    fp16 half = to_fp16(std::min(scale, kLargestHalf));
    while (to_float(half) * high_ > kLargestHalf) --half.bits;
    return std::max(to_float(half), kSmallestHalf);
  }

  float low_of(float scale) const { return -low_ * scale > kLargestHalf ? -high_ : low_; }

  Steps steps_of(const Numbers& scale) const {
    Steps steps{.scale = {}, .low = {}, .high = high_};
    for (size_t b = 0; b < kBlocks; ++b) {
      steps.scale[b] = scale[b];
      steps.low[b] = low_of(scale[b]);
    }
    return steps;
  }

  float integer(float weight, float scale, float low) const {
    const float held = std::min(std::max(weight / scale, low), high_);
    return held + kRoundsToInteger - kRoundsToInteger;
  }

  template <bool kWeighted>
  Fits measured(Numbers scale) const {
    for (float& one : scale) one = rounded(one);
    BlockSums sums;
    sum_blocks(weights_.data(), kWeighted ? importance_.data() : nullptr, padded_, steps_of(scale), sums);
    Fits fits;
    for (size_t b = 0; b < kBlocks; ++b) {
      const float square = sums.squares[b], product = sums.products[b];
      fits[b] = {.scale = scale[b], .error = sums.error[b], .least_squares = square > 0 ? product / square : 0};
      if constexpr (kWeighted) fits[b].explained = fits[b].least_squares * product;
    }
    return fits;
  }

  // Returns the least-squares scale for which q * scale fits w - e. Approximately, e minimises penalty * (w - q * scale
  // - e)^2 plus the square root of |e|: of a larger error, e takes a larger part.
  Numbers half_quadratic(const Numbers& scale, float penalty) const {
    BlockSums sums;
    sum_without_errors(weights_.data(), padded_, steps_of(scale), penalty, sums);
    Numbers result;
    for (size_t b = 0; b < kBlocks; ++b) result[b] = sums.squares[b] > 0 ? sums.products[b] / sums.squares[b] : 0;
    return result;
  }

  size_t size_, padded_;
  float high_, low_;
  std::vector<float> weights_;     // [padded_][kBlocks]; zeros after the numbers of a block add no error.
  std::vector<float> importance_;  // Importance of each weight of a block.
  bool weighted_ = false;
};

void check(const Importance& importance, size_t blocks, size_t numbers) {
  const size_t found = importance.channels.size(), rows = importance.rows;
  if (rows == 0 || blocks % rows != 0 || found % rows != 0 || numbers % (found / rows) != 0)
    fail("quantise", "importance: got ", found, " channels in ", rows, " rows for ", blocks, " blocks of ", numbers,
         " numbers, need rows that divide the blocks, with channels that divide a block");
  for (size_t i = 0; i < found; ++i)
    if (!(importance.channels[i] >= 0 && std::isfinite(importance.channels[i])))
      fail("quantise", "importance: got ", importance.channels[i], " for channel ", i,
           ", need finite numbers that are not negative");
}

}  // namespace

void quantise_blocks(std::span<const float> weights, const Importance& importance, int bits, int threads,
                     std::span<int8_t> integers, std::span<float> scales) {
  if (bits != 4 && bits != 8) fail("quantise", "bits: got ", bits, ", need 4 or 8");
  if (scales.empty() || weights.empty() || weights.size() % scales.size() != 0 || integers.size() != weights.size())
    fail("quantise", "got ", weights.size(), " weights in ", scales.size(), " blocks, need blocks of one size");
  const size_t numbers = weights.size() / scales.size();
  const bool weighted = !importance.channels.empty();
  if (weighted) check(importance, scales.size(), numbers);
  const size_t run = weighted ? scales.size() / importance.rows : scales.size();
  const size_t channels = weighted ? importance.channels.size() / importance.rows : 0;
  std::atomic<size_t> next{0};
  auto body = [&](int) {
    Blocks blocks(numbers, bits);
    for (size_t chunk = next.fetch_add(kChunk); chunk < scales.size(); chunk = next.fetch_add(kChunk)) {
      const size_t end = std::min(chunk + kChunk, scales.size());
      for (size_t b = chunk, count = 0; b < end; b += count) {
        const size_t end_of_run = (b / run + 1) * run;
        count = std::min({kBlocks, end - b, end_of_run - b});
        if (weighted && (b == chunk || b % run == 0))
          blocks.set_importance(importance.channels.subspan(b / run * channels, channels));
        blocks.quantise(weights.subspan(b * numbers, count * numbers), integers.subspan(b * numbers, count * numbers),
                        scales.subspan(b, count));
      }
    }
  };
  const auto lease = threads > 1 ? ThreadPool::of_process().try_lease(threads) : ThreadPool::Lease();
  if (lease)
    lease.run(body);
  else
    body(0);
}

}  // namespace hexane::pack
