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

namespace hexane::pack {
namespace {

constexpr size_t kLanes = 8;                     // Independent sums, which a compiler may keep in one vector register.
constexpr size_t kChunk = 64;                    // Blocks that a thread takes at a time.
constexpr float kRoundsToInteger = 12582912.0f;  // Equals 1.5 * 2^23: adding it rounds a small number.
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

using Lanes = std::array<float, kLanes>;

float total(const Lanes& lanes) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// The range of integers.
struct Range {
  float low, high;
};

// The quality of the integers that a scale gives for a block.
struct Fit {
  float scale = 1, error = 0;
  float least_squares = 0;  // The least-squares scale for these integers; 0 if all integers are 0.
  float explained = 0;      // By how much subtracting the scaled integers reduces the weights' sum of squares.
};

class Block {
 public:
  Block(size_t numbers, int bits)
      : size_(numbers),
        high_(bits == 4 ? 7.0f : 127.0f),
        low_(bits == 4 ? -8.0f : -127.0f),
        weights_((numbers + kLanes - 1) / kLanes * kLanes),
        importance_(weights_.size()) {}

  // Sets the importance for the next blocks, scaled so that the largest is 1.
  void set_importance(std::span<const double> channels) {
    const double most = *std::ranges::max_element(channels);
    weighted_ = *std::ranges::min_element(channels) != most;
    if (!weighted_) return;
    const size_t taps = size_ / channels.size();
    for (size_t i = 0; i < size_; ++i) importance_[i] = static_cast<float>(channels[i / taps] / most);
  }

  // Quantises a block: returns the scale and stores the integers.
  float quantise(std::span<const float> weights, std::span<int8_t> integers) {
    std::ranges::copy(weights, weights_.begin());
    float largest = 0;
    for (const float w : weights) {
      if (!(std::abs(w) <= kLargestHalf)) fail("quantise", "weights: got ", w, ", need all of them within +-65504");
      largest = std::max(largest, std::abs(w));
    }
    const float scale = largest == 0 ? 1.0f : weighted_ ? best_weighted(largest) : best(largest);
    const Range range = range_of(scale);
    for (size_t i = 0; i < size_; ++i) integers[i] = static_cast<int8_t>(integer(weights_[i], scale, range));
    return scale;
  }

 private:
  float best(float largest) const {
    Fit found = measured<false>(largest / high_);
    const auto take = [&](const Fit& fit) {
      if (fit.error < found.error) found = fit;
    };
    for (const float part : kFirst) {
      const Fit first = measured<false>(largest / high_ * part);
      take(first);
      if (first.least_squares > 0) take(measured<false>(first.least_squares));
    }
    float penalty = kPenalty, scale = found.scale;
    for (int step = 0; step < kSteps && found.error > 0; ++step, penalty *= kStiffer) {
      const float next = half_quadratic(scale, penalty);
      if (!(next > 0)) break;
      const Fit fit = measured<false>(next);
      take(fit);
      scale = fit.scale;
    }
    return found.scale;
  }

  // Returns the best scale under the importance. The scale found without importance is also tried, so the result is
  // never worse.
  float best_weighted(float largest) const {
    Fit found = measured<true>(best(largest));
    const auto take = [&](const Fit& fit) {
      if (fit.error < found.error) found = fit;
    };
    std::array<Fit, kTried> tried;
    float scale = largest / high_;
    for (Fit& fit : tried) {
      take(fit = measured<true>(scale));
      scale *= kTriedRatio;
    }
    std::ranges::partial_sort(tried, tried.begin() + kRefined, std::ranges::greater{}, &Fit::explained);
    const auto refine = [&](Fit fit) {
      for (int step = 0; step < kRefinements && fit.least_squares > 0; ++step)
        take(fit = measured<true>(fit.least_squares));
    };
    for (int i = 0; i < kRefined; ++i) refine(tried[static_cast<size_t>(i)]);
    refine(found);
    return found.scale;
  }

  // Rounds a scale to fp16, and limits it so that the largest integer times the scale is finite in fp16.
  float rounded(float scale) const {
    fp16 half = to_fp16(std::min(scale, kLargestHalf));
    while (to_float(half) * high_ > kLargestHalf) --half.bits;
    return std::max(to_float(half), kSmallestHalf);
  }

  Range range_of(float scale) const { return {-low_ * scale > kLargestHalf ? -high_ : low_, high_}; }

  static float integer(float weight, float scale, Range range) {
    const float held = std::min(std::max(weight / scale, range.low), range.high);
    return held + kRoundsToInteger - kRoundsToInteger;
  }

  template <bool kWeighted>
  Fit measured(float wanted) const {
    const float scale = rounded(wanted);
    const Range range = range_of(scale);
    Lanes error{}, products{}, squares{};
    for (size_t i = 0; i < weights_.size(); i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float w = weights_[i + lane], q = integer(w, scale, range), apart = w - q * scale;
        const float counts = kWeighted ? importance_[i + lane] : 1.0f;
        error[lane] += counts * (apart * apart);
        products[lane] += counts * (w * q);
        squares[lane] += counts * (q * q);
      }
    const float square = total(squares), product = total(products);
    Fit fit{.scale = scale, .error = total(error), .least_squares = square > 0 ? product / square : 0};
    if constexpr (kWeighted) fit.explained = fit.least_squares * product;
    return fit;
  }

  // Returns the least-squares scale for which q * scale fits w - e. Approximately, e minimises penalty * (w - q * scale
  // - e)^2 plus the square root of |e|: of a larger error, e takes a larger part.
  float half_quadratic(float scale, float penalty) const {
    const Range range = range_of(scale);
    Lanes products{}, squares{};
    for (size_t i = 0; i < weights_.size(); i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float w = weights_[i + lane], q = integer(w, scale, range), apart = w - q * scale;
        const float steps = std::abs(apart) / scale + 1e-12f;
        const float kept = std::max(steps - 1 / (penalty * std::sqrt(steps)), 0.0f) * scale;
        products[lane] += (w - std::copysign(kept, apart)) * q;
        squares[lane] += q * q;
      }
    const float square = total(squares);
    return square > 0 ? total(products) / square : 0;
  }

  size_t size_;
  float high_, low_;
  std::vector<float> weights_;     // Weights of a block, padded with zeros, which add no error.
  std::vector<float> importance_;  // Importance of each weight.
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
    Block block(numbers, bits);
    for (size_t chunk = next.fetch_add(kChunk); chunk < scales.size(); chunk = next.fetch_add(kChunk))
      for (size_t b = chunk; b < std::min(chunk + kChunk, scales.size()); ++b) {
        if (weighted && (b == chunk || b % run == 0))
          block.set_importance(importance.channels.subspan(b / run * channels, channels));
        scales[b] = block.quantise(weights.subspan(b * numbers, numbers), integers.subspan(b * numbers, numbers));
      }
  };
  const auto lease = threads > 1 ? ThreadPool::of_process().try_lease(threads) : ThreadPool::Lease();
  if (lease)
    lease.run(body);
  else
    body(0);
}

}  // namespace hexane::pack
