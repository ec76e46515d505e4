// Orders in which the packers prefer items.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/timeline.h"

namespace hexane::alloc {

enum class Order { kArea, kLength, kSize, kLoad };  // kLoad: items by the largest load of their sections, then by size
inline constexpr Order kOrders[] = {Order::kArea, Order::kLength, Order::kSize, Order::kLoad};

// Returns a rank from 0 to n-1 for each item; 0 has the largest key. A seed other than 0 scales each key by up to 3
// percent, which swaps items with similar keys.
std::vector<int32_t> rank_items(const Timeline& timeline, Order order, uint64_t seed = 0);

}  // namespace hexane::alloc
