// Shared by the files of elementwise kernels, in addition to loop.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>

#include "core/engine_half.h"
#include "cpu/kernel.h"

// Tells the compiler that the iterations of the next loop are independent: a result may lie exactly over its operand,
// but not at an offset. Without this macro the compiler must assume that byte pointers alias, and cannot vectorise.
#ifdef __clang__
#define HEXANE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define HEXANE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace hexane::cpu {

// True if a kernel with elements of this type computes in the engine's arithmetic.
template <class T>
inline constexpr bool kIsEngine = std::is_same_v<T, engine_half>;
template <class T>
inline constexpr const char* kFamily = kIsEngine<T> ? "engine" : "ieee";

struct RowFunctionEntry {
  std::string_view op;
  RowFunction function;
};

inline double remainder_of(double a, double b) { return std::fmod(a, b); }

// The remainder of a / b, exact for quotients below 2^28: fp64 then rounds no quotient up to a whole number.
inline float remainder_of(float a, float b) {
  const double quotient = static_cast<double>(a) / b;
  if (!(std::abs(quotient) < 0x1p28) || std::isinf(b)) return std::fmod(a, b);
  const double rest = a - static_cast<double>(static_cast<int32_t>(quotient)) * b;
  return std::copysign(static_cast<float>(rest), a);
}

// The remainder with the sign of b, as in Python.
template <class T>
T modulo(T a, T b) {
  const T rest = remainder_of(a, b);
  if (rest == 0) return std::copysign(rest, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

template <class T>
T floor_divide(T a, T b) {
  if (b == 0) return a / b;
  const T rest = remainder_of(a, b);
  const T quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? T(1) : T(0));
  const T floored = std::floor(quotient);
  if (quotient == 0) return std::copysign(T(0), a / b);
  return quotient - floored > T(0.5) ? floored + 1 : floored;
}

inline constexpr int64_t kChunk = 512;  // elements converted at once

// Converts n fp16 values to fp32.
template <class Half = fp16>
void widen(const std::byte* from, int64_t stride, float* to, int64_t n) {
  const auto* values = reinterpret_cast<const fp16*>(from);
  if (stride == 0) return void(std::fill_n(to, n, to_float(*reinterpret_cast<const Half*>(from))));
  if (stride == sizeof(fp16)) {
    convert(std::span(values, n), std::span(to, n));
    if (kIsEngine<Half>)
      for (int64_t i = 0; i < n; ++i) to[i] = to[i] != to[i] ? std::numeric_limits<float>::infinity() : to[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(*reinterpret_cast<const Half*>(from + i * stride));
}

// True if the range is the whole extent of the axis.
inline bool covers(const Call& call, int axis, Range range) {
  return axis < 0 || (range.begin == 0 && range.end == call.outputs[0].shape[axis]);
}

// Returns the estimated time in nanoseconds on one core, with the data in its caches. benchmarks/costs.py compares it
// with measured times.
template <int kPicoseconds>  // Picoseconds of one element.
int64_t elementwise_cost(const Call& call) {
  return 20 + call.outputs[0].size() * kPicoseconds / 1000;
}

}  // namespace hexane::cpu
