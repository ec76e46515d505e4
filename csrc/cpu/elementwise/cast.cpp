// cast: between any two dtypes of whole bytes. Floats become integers by truncation, saturated to the range; NaN
// becomes 0. Integers keep their low bits. Every value but 0 becomes true. In the engine's arithmetic an fp16 is an
// engine_half.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "core/bf16.h"
#include "core/fp16.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, fp16> || std::is_same_v<T, engine_half>;
template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsHalf<T> || std::is_same_v<T, bf16>;

// Rounds x to float towards zero, and sets the last bit if the result is inexact. Rounding the result again, to at most
// half of float's digits, equals rounding x once.
float sticky_float(double x) {
  const float nearest = static_cast<float>(x);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (nearest == x || std::isnan(x)) return nearest;
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1);
}

float sticky_float(uint64_t x) {
  const int lost = 64 - std::countl_zero(x | 1) - 24;
  if (lost > 0) x = (x >> lost | ((x & ((uint64_t{1} << lost) - 1)) != 0)) << lost;
  return static_cast<float>(x);
}

float sticky_float(float x) { return x; }
float sticky_float(int64_t x) {
  return x < 0 ? -sticky_float(0 - static_cast<uint64_t>(x)) : sticky_float(static_cast<uint64_t>(x));
}

enum class Truth : uint8_t {};  // a bool: every byte but 0 is true

// Converts a value to a type that C++ can compute with: fp32, fp64 or an integer.
template <class T>
auto value(T x) {
  if constexpr (std::is_same_v<T, Truth>)
    return static_cast<uint8_t>(x != Truth{});
  else if constexpr (kIsHalf<T> || std::is_same_v<T, bf16>)
    return to_float(x);
  else
    return x;
}

template <class To, class From>
To truncated(From x) {
  constexpr To kLow = std::numeric_limits<To>::min(), kHigh = std::numeric_limits<To>::max();
  if constexpr (sizeof(To) <= sizeof(int32_t) &&
                !std::is_same_v<To, uint32_t>) {       // The loop vectorises, since it has no branches.
    constexpr From kBound = static_cast<From>(kHigh);  // One more than int32's maximum if From is float.
    const From floored = x > static_cast<From>(kLow) ? x : static_cast<From>(kLow);
    const int32_t inside = static_cast<int32_t>(x < kBound ? floored : From{0});  // false for NaN
    return static_cast<To>(x >= kBound ? static_cast<int32_t>(kHigh) : inside);
  }
  if (x != x) return 0;
  if (x <= static_cast<From>(kLow)) return kLow;
  if (x >= static_cast<From>(kHigh)) return kHigh;
  return static_cast<To>(x);
}

template <class To, class From>
To converted(From from) {
  const auto x = value(from);
  using X = decltype(x + 0);
  if constexpr (std::is_same_v<To, bool>)
    return x != 0;
  else if constexpr (kIsHalf<To> || std::is_same_v<To, bf16>) {
    using Wide = std::conditional_t<kIsFloat<X>, X, std::conditional_t<std::is_signed_v<X>, int64_t, uint64_t>>;
    const float f = sticky_float(static_cast<Wide>(x));
    if constexpr (std::is_same_v<To, fp16>)
      return to_fp16(f);
    else if constexpr (kIsEngine<To>)
      return to_engine_half(f);
    else
      return to_bf16(f);
  } else if constexpr (kIsFloat<X> && !kIsFloat<To>)
    return truncated<To>(x);
  else
    return static_cast<To>(x);
}

template <class From, class To>
void cast_row(std::byte* const* p, const int64_t* strides, int64_t n, const void*) {
  constexpr int64_t kFrom = sizeof(From), kTo = sizeof(To);
  const bool dense = strides[0] == kFrom && strides[1] == kTo;
  if constexpr ((std::is_same_v<From, float> && std::is_same_v<To, fp16>) ||
                (std::is_same_v<From, fp16> && std::is_same_v<To, float>)) {
    if (dense) {
      convert(std::span(reinterpret_cast<const From*>(p[0]), n), std::span(reinterpret_cast<To*>(p[1]), n));
      return;
    }
  }
  if constexpr (kIsEngine<From> ||
                (std::is_same_v<From, fp16> && !std::is_same_v<To, fp16> && !std::is_same_v<To, float>)) {
    float chunk[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t count = std::min(kChunk, n - i);
      widen<From>(p[0] + i * strides[0], strides[0], chunk, count);
      std::byte* const part[] = {reinterpret_cast<std::byte*>(chunk), p[1] + i * strides[1]};
      const int64_t part_strides[] = {sizeof(float), strides[1]};
      cast_row<float, To>(part, part_strides, count, nullptr);
    }
    return;
  }
  const auto loop = [ n, in = p[0], out = p[1] ](int64_t from, int64_t to) __attribute__((always_inline)) {
    HEXANE_INDEPENDENT
    for (int64_t i = 0; i < n; ++i)
      *reinterpret_cast<To*>(out + i * to) = converted<To>(*reinterpret_cast<const From*>(in + i * from));
  };
  if (dense)
    loop(kFrom, kTo);
  else
    loop(strides[0], strides[1]);
}

template <class Half, class F>
Row with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kBool:
      return f(Truth{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUint8:
      return f(uint8_t{});
    case DType::kUint16:
      return f(uint16_t{});
    case DType::kUint32:
      return f(uint32_t{});
    case DType::kUint64:
      return f(uint64_t{});
    case DType::kFp16:
      return f(Half{});
    case DType::kBf16:
      return f(bf16{});
    case DType::kFp32:
      return f(float{});
    case DType::kFp64:
      return f(double{});
    default:
      return nullptr;
  }
}

template <class Half>
Row find_row(DType from, DType to) {
  return with_type<Half>(from, [to](auto source) {
    return with_type<Half>(to, [](auto target) -> Row {
      using From = decltype(source);
      using To = decltype(target);
      return cast_row<From, std::conditional_t<std::is_same_v<To, Truth>, bool, To>>;
    });
  });
}

struct State {
  Loop whole;
  Row row;
};

template <class Half>
Prepared prepare_cast(const Call& call) {
  check_broadcast("cast", call, 1, 1);
  const DType from = call.inputs[0].dtype, to = call.outputs[0].dtype;
  const Row row = find_row<Half>(from, to);
  if (!row)
    fail("cast", "dtypes: got ", info(from).name, " to ", info(to).name, ", need dtypes of whole bytes, fp16 or wider");
  return std::make_shared<State>(State{make_loop(call, 1, -1, {}), row});
}

void run_cast(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const State& state = call.state<State>();
  if (covers(call, axis, range))
    walk(state.whole, call, state.row, nullptr);
  else
    walk(make_loop(call, 1, axis, range), call, state.row, nullptr);
}

template <class Half>
constexpr Kernel cast_kernel() {
  return {
      .name = "cast",
      .dtypes = "*->*",
      .family = kFamily<Half>,
      .accepts = "strided",
      .prepare = prepare_cast<Half>,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = elementwise_cost<150>,
      .run = run_cast,
  };
}

constexpr Kernel kTable[] = {cast_kernel<fp16>(), cast_kernel<engine_half>()};

}  // namespace

std::span<const Kernel> cast_table() { return kTable; }

}  // namespace hexane::cpu
