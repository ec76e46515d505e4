// Orders in which the packers prefer items.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/timeline.h"

namespace hexane::alloc {

enum class Order {
  kArea,
  kLength,
  kSize,
  kLoad
};  // kLoad: items that meet the fullest section first, the larger first
inline constexpr Order kOrders[] = {Order::kArea, Order::kLength, Order::kSize, Order::kLoad};

// One rank 0..n-1 per item, 0 the largest. A seed other than 0 scales every key by up to 3 percent, which swaps
// neighbours.
std::vector<int32_t> rank_items(const Timeline& timeline, Order order, uint64_t seed = 0);

}  // namespace hexane::alloc
