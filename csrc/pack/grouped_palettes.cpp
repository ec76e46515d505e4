#include "pack/grouped_palettes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "pack/clusters.h"

namespace hexane::pack {
namespace {

// The memory of a thread, reused for each group. All counts of a worker are 0 between two groups.
class Worker {
 public:
  // Counts the halves of one more part of the group.
  void count(std::span<const fp16> part) {
    for (const fp16 weight : part) {
      const uint16_t bits = weight.bits == 0x8000u ? 0 : weight.bits;
      ++counts_[bits];
      seen_[bits / 64] |= uint64_t{1} << bits % 64;
    }
  }

  // Returns the palette's entries for the counted halves. Afterwards `nearest` has the index of each half's entry.
  std::vector<fp16> entries(size_t most) {
    ascending();
    for (const uint16_t bits : order_)
      if (!is_finite(bits)) fail("quantise", "weights: got one that is not finite");
    const Histogram found(order_, counts_);
    const size_t n = order_.size();
    std::vector<fp16> made = entries_of(found, n <= most ? one_each(n) : near_bounds(found, most));
    for (const uint16_t bits : order_) nearest_[bits] = static_cast<uint8_t>(nearest_entry(made, to_float({bits})));
    nearest_[0x8000u] = nearest_[0];
    for (const uint16_t bits : order_) counts_[bits] = 0;
    seen_.fill(0);
    return made;
  }

  uint8_t nearest(fp16 weight) const { return nearest_[weight.bits]; }

 private:
  // Sorts the distinct halves by value. Bits of negative halves are in reverse order: the smaller the value, the larger
  // the bits.
  void ascending() {
    order_.clear();
    for (size_t word = 0; word < seen_.size(); ++word)
      for (uint64_t left = seen_[word]; left != 0; left &= left - 1)
        order_.push_back(static_cast<uint16_t>(word * 64 + static_cast<size_t>(std::countr_zero(left))));
    const auto below = std::ranges::lower_bound(order_, uint16_t{0x8000u});
    std::reverse(below, order_.end());
    std::rotate(order_.begin(), below, order_.end());
  }

  std::vector<uint32_t> counts_ = std::vector<uint32_t>(kHalves);
  std::vector<uint8_t> nearest_ = std::vector<uint8_t>(kHalves);
  std::array<uint64_t, kHalves / 64> seen_{};
  std::vector<uint16_t> order_;
};

}  // namespace

void palette_groups(std::span<const fp16> weights, const Groups& shape, int bits, int threads, std::span<fp16> entries,
                    std::span<uint8_t> indices) {
  if (bits < 1 || bits > 8) fail("quantise", "bits: got ", bits, ", need 1 to 8");
  const auto outer = static_cast<size_t>(shape.outer), groups = static_cast<size_t>(shape.groups);
  const auto inner = static_cast<size_t>(shape.inner), most = size_t{1} << bits;
  if (weights.empty() || outer * groups * inner != weights.size() || indices.size() != weights.size() ||
      entries.size() != groups * most)
    fail("quantise", "got ", weights.size(), " weights, need ", outer, " x ", groups, " x ", inner, ", and some");
  std::atomic<size_t> next{0};
  auto body = [&](int) {
    Worker worker;
    for (size_t g = next++; g < groups; g = next++) {
      const auto part = [&](size_t o) { return (o * groups + g) * inner; };
      for (size_t o = 0; o < outer; ++o) worker.count(weights.subspan(part(o), inner));
      const std::vector<fp16> made = worker.entries(most);
      const auto table = entries.subspan(g * most, most);
      std::ranges::copy(made, table.begin());
      std::ranges::fill(table.subspan(made.size()), made.back());
      for (size_t o = 0; o < outer; ++o)
        std::ranges::transform(weights.subspan(part(o), inner), indices.subspan(part(o), inner).begin(),
                               [&](fp16 weight) { return worker.nearest(weight); });
    }
  };
  const auto lease = threads > 1 ? ThreadPool::of_process().try_lease(threads) : ThreadPool::Lease();
  if (lease)
    lease.run(body);
  else
    body(0);
}

}  // namespace hexane::pack
