// Shared by the reductions without vector code of their own.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/fp16.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/operand.h"
#include "cpu/reduce/reduce.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {

// Columns that are reduced together if the innermost axis is kept and dense.
inline constexpr int64_t kColumns = 256;

// Adds two integers; wraps as in NumPy.
template <class T>
T wrapped_sum(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <class T>
auto number(T x) {
  if constexpr (std::is_same_v<T, fp16> || kIsEngine<T>)
    return to_float(x);
  else
    return x;
}

// Returns a row as numbers to compute with: the row itself, or if it is fp16 a copy in `wide` as floats.
template <class T>
const T* numbers(const T* row, int64_t, T*) {
  return row;
}
inline const float* numbers(const fp16* row, int64_t n, float* wide) {
  convert({row, static_cast<size_t>(n)}, {wide, static_cast<size_t>(n)});
  return wide;
}

}  // namespace hexane::cpu
