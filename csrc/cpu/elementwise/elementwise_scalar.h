// Elementwise kernels without vector code of their own: a functor on numbers, and the loops, checks and rows around it.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/operand.h"

namespace hexane::cpu {

template <class T>
T& at(std::byte* from, int64_t stride, int64_t i) {
  return *reinterpret_cast<T*>(from + i * stride);
}

// Computes a row of a binary op. Passing the most frequent strides as constants lets the compiler vectorise.
template <class Op, class T, class R>
void binary_row(std::byte* const* p, const int64_t* strides, int64_t n, const void*) {
  const auto loop =
      [ n, a = p[0], b = p[1], out = p[2] ](int64_t sa, int64_t sb, int64_t so) __attribute__((always_inline)) {
    HEXANE_INDEPENDENT
    for (int64_t i = 0; i < n; ++i)
      at<R>(out, so, i) = static_cast<R>(Op::apply(at<const T>(a, sa, i), at<const T>(b, sb, i)));
  };
  constexpr int64_t kIn = sizeof(T), kOut = sizeof(R);
  const bool dense_left = strides[2] == kOut && strides[0] == kIn;
  if (dense_left && strides[1] == kIn)
    loop(kIn, kIn, kOut);
  else if (dense_left && strides[1] == 0)
    loop(kIn, 0, kOut);
  else
    loop(strides[0], strides[1], strides[2]);
}

template <class T>
struct UnaryState {
  Loop whole;
  T alpha;
  T beta;
};

template <class Op, class T>
void unary_row(std::byte* const* p, const int64_t* strides, int64_t n, const void* opaque) {
  const auto& state = *static_cast<const UnaryState<T>*>(opaque);
  const auto loop = [ n, x = p[0], out = p[1], alpha = state.alpha, beta = state.beta ](int64_t si, int64_t so)
      __attribute__((always_inline)) {
    HEXANE_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) at<T>(out, so, i) = Op::apply(at<const T>(x, si, i), alpha, beta);
  };
  if (strides[0] == sizeof(T) && strides[1] == sizeof(T))
    loop(sizeof(T), sizeof(T));
  else
    loop(strides[0], strides[1]);
}

template <class Op, size_t kNumInputs>
Prepared prepare_loop(const Call& call) {
  check_broadcast(Op::kName, call, kNumInputs, kNumInputs);
  return std::make_shared<Loop>(make_loop(call, kNumInputs, -1, {}));
}

// For kernels whose attributes have an epilogue, but that support no slots: throws Error if there is a slot.
template <class Op>
Prepared prepare_without_epilogue(const Call& call) {
  if (const int64_t count = call.attributes<Epilogue>().count)
    fail(Op::kName, "epilogue: got ", count, " slots, need 0");
  return prepare_loop<Op, 2>(call);
}

template <Row row, size_t kNumInputs>
void run_loop(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  if (covers(call, axis, range))
    walk(call.state<Loop>(), call, row, nullptr);
  else
    walk(make_loop(call, kNumInputs, axis, range), call, row, nullptr);
}

// Converts an attribute to T. For integers the attribute is a bound of a range and is rounded into the range; beyond
// T's range, or for NaN, the result is the end of T's range.
template <class T>
T bound(double value, bool low) {
  if constexpr (std::is_floating_point_v<T>) return value;
  const double rounded = low ? std::ceil(value) : std::floor(value);
  const T smallest = std::numeric_limits<T>::min(), largest = std::numeric_limits<T>::max();
  if (std::isnan(value)) return low ? smallest : largest;
  if (rounded <= static_cast<double>(smallest)) return smallest;
  if (rounded >= static_cast<double>(largest)) return largest;
  return static_cast<T>(rounded);
}

template <class Op, class T>
Prepared prepare_unary(const Call& call) {
  check_broadcast(Op::kName, call, 1, 1);
  auto state = std::make_shared<UnaryState<T>>();
  state->whole = make_loop(call, 1, -1, {});
  const double* attributes = static_cast<const double*>(call.attrs);
  if constexpr (Op::kNumAttributes > 0) state->alpha = bound<T>(attributes[0], true);
  if constexpr (Op::kNumAttributes > 1) state->beta = bound<T>(attributes[1], false);
  return state;
}

template <class Op, class T>
void run_unary(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const auto& state = call.state<UnaryState<T>>();
  if (covers(call, axis, range))
    walk(state.whole, call, unary_row<Op, T>, &state);
  else
    walk(make_loop(call, 1, axis, range), call, unary_row<Op, T>, &state);
}

// Returns the estimated nanoseconds on one core. Op::kPicoseconds is the time of one element. An op with kPicoseconds =
// 0 costs 32 picoseconds per byte of an element.
template <class Op>
int64_t scalar_cost(const Call& call) {
  const int64_t picoseconds = Op::kPicoseconds ? Op::kPicoseconds : 32 * item_bytes(call.inputs.back());
  return 20 + call.outputs[0].size() * picoseconds / 1000;
}

template <class Op, size_t kNumInputs, Row row>
constexpr Kernel loop_kernel(const char* dtypes) {
  return {
      .name = Op::kName,
      .dtypes = dtypes,
      .accepts = "strided",
      .prepare = prepare_loop<Op, kNumInputs>,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = scalar_cost<Op>,
      .run = run_loop<row, kNumInputs>,
  };
}

template <class Op, class T>
constexpr Kernel arithmetic(const char* dtypes) {
  Kernel kernel = loop_kernel<Op, 2, binary_row<Op, T, T>>(dtypes);
  if (Op::kEpilogue) {
    kernel.attrs = "epilogue:E";
    kernel.attrs_bytes = sizeof(Epilogue);
    kernel.prepare = prepare_without_epilogue<Op>;
  }
  return kernel;
}

template <class Op, class T>
constexpr Kernel unary(const char* dtypes) {
  return {
      .name = Op::kName,
      .dtypes = dtypes,
      .attrs = Op::kNumAttributes == 2   ? "alpha:f beta:f"
               : Op::kNumAttributes == 1 ? "alpha:f"
                                         : "",
      .attrs_bytes = 8 * Op::kNumAttributes,
      .accepts = "strided",
      .prepare = prepare_unary<Op, T>,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = scalar_cost<Op>,
      .run = run_unary<Op, T>,
  };
}

}  // namespace hexane::cpu
