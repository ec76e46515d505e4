// Transposes blocks of weights in registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/transpose.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "cpu/matmul/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Transposes squares with as many rows as a 16-byte vector has items. Interleaving vector i with vector i + half moves
// the highest bit of the row to the lowest bit of the column. After all bits have moved, rows are columns.
template <class T>
void transpose(const std::byte* from, int64_t stride, std::byte* to) {
  const hn::Full128<T> d;
  constexpr int kItems = 16 / sizeof(T);
  for (int column = 0; column < kPanelLanes; column += kItems)
    for (int row = 0; row < kPanelLanes; row += kItems) {
      hn::Vec<decltype(d)> a[kItems], b[kItems];
#pragma GCC unroll 8
      for (int i = 0; i < kItems; ++i)
        a[i] = hn::LoadU(d, reinterpret_cast<const T*>(from + (column + i) * stride) + row);
#pragma GCC unroll 3
      for (int bit = 1; bit < kItems; bit *= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < kItems / 2; ++i) {
          b[2 * i] = hn::InterleaveLower(d, a[i], a[i + kItems / 2]);
          b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + kItems / 2]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kItems; ++i) a[i] = b[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kItems; ++i) hn::StoreU(a[i], d, reinterpret_cast<T*>(to) + (row + i) * kPanelLanes + column);
    }
}

}  // namespace

TransposeFunction transpose16_of_target() { return transpose<uint16_t>; }
TransposeFunction transpose32_of_target() { return transpose<uint32_t>; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(transpose16_of_target);
HWY_EXPORT(transpose32_of_target);

TransposeFunction transpose_block(int64_t item_bytes) {
  static const TransposeFunction halves = HWY_DYNAMIC_DISPATCH(transpose16_of_target)();
  static const TransposeFunction words = HWY_DYNAMIC_DISPATCH(transpose32_of_target)();
  return item_bytes == 2 ? halves : words;
}

}  // namespace hexane::cpu
#endif
