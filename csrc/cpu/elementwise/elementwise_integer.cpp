// Kernels that need no vector code of their own: integer arithmetic, comparisons, logic and select. Integers wrap as in
// NumPy, and a division by zero is 0. Every byte of a bool but 0 is true.
#include <algorithm>
#include <type_traits>

#include "core/fp16.h"
#include "cpu/elementwise/elementwise_scalar.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

// An unsigned type, wide enough that C++ does not promote intermediate values to a signed type.
template <class T>
using Wrap = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;

template <class T>
constexpr T divide(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return static_cast<T>(0 - static_cast<Wrap<T>>(a));
  return static_cast<T>(a / b);
}

template <class T>
constexpr T remainder(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return 0;
  return static_cast<T>(a % b);
}

template <class T>
constexpr bool rounds_away(T a, T b) {  // true if the exact quotient is less than the truncated one
  return remainder(a, b) != 0 && (a < 0) != (b < 0);
}

// Returns base^exponent. For a negative exponent the fraction is truncated towards zero; 0 to a negative power is 0.
template <class T>
constexpr T power(T base, T exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == T(-1) ? static_cast<T>(exponent % 2 ? -1 : 1) : 0;
  Wrap<T> result = 1, factor = static_cast<Wrap<T>>(base);
  for (; exponent; exponent = static_cast<T>(exponent >> 1), factor *= factor)
    if (exponent & 1) result *= factor;
  return static_cast<T>(result);
}

// True if `by` is a valid shift count. For an invalid count a shift to the right returns copies of the sign bit, and a
// shift to the left returns 0.
template <class T>
constexpr bool shifts(T by) {
  return static_cast<uint64_t>(by) < 8 * sizeof(T);
}

// ---- functors: the name of the kernel and a static apply ----

#define HEXANE_BINARY(op, has_epilogue, picoseconds, expression) \
  struct op##_op {                                               \
    static constexpr const char* kName = #op;                    \
    static constexpr bool kEpilogue = has_epilogue;              \
    static constexpr int kPicoseconds = picoseconds;             \
    template <class T>                                           \
    static T apply(T a, T b) {                                   \
      return static_cast<T>(expression);                         \
    }                                                            \
  };
HEXANE_BINARY(add, true, 0, static_cast<Wrap<T>>(a) + static_cast<Wrap<T>>(b))
HEXANE_BINARY(sub, true, 0, static_cast<Wrap<T>>(a) - static_cast<Wrap<T>>(b))
HEXANE_BINARY(mul, true, 0, static_cast<Wrap<T>>(a) * static_cast<Wrap<T>>(b))
HEXANE_BINARY(real_div, true, 3000, divide(a, b))
HEXANE_BINARY(floor_div, false, 3000, static_cast<Wrap<T>>(divide(a, b)) - rounds_away(a, b))
HEXANE_BINARY(mod, false, 3000, remainder(a, b) + (rounds_away(a, b) ? b : 0))
HEXANE_BINARY(fmod, false, 3000, remainder(a, b))
HEXANE_BINARY(maximum, false, 0, a < b ? b : a)
HEXANE_BINARY(minimum, false, 0, b < a ? b : a)
HEXANE_BINARY(pow, false, 3000, power(a, b))
HEXANE_BINARY(prelu, false, 0, a < 0 ? static_cast<Wrap<T>>(a) * static_cast<Wrap<T>>(b) : static_cast<Wrap<T>>(a))
HEXANE_BINARY(bitwise_and, false, 0, a& b)
HEXANE_BINARY(bitwise_or, false, 0, a | b)
HEXANE_BINARY(bitwise_xor, false, 0, a ^ b)
HEXANE_BINARY(shift_left, false, 0, shifts<T>(b) ? static_cast<Wrap<T>>(a) << b : 0)
HEXANE_BINARY(shift_right, false, 0, shifts<T>(b) ? a >> b : a < 0 ? T(-1) : 0)
#undef HEXANE_BINARY

#define HEXANE_COMPARISON(op, symbol)         \
  struct op##_op {                            \
    static constexpr const char* kName = #op; \
    static constexpr int kPicoseconds = 0;    \
    template <class T>                        \
    static bool apply(T a, T b) {             \
      return a symbol b;                      \
    }                                         \
  };
HEXANE_COMPARISON(equal, ==)
HEXANE_COMPARISON(not_equal, !=)
HEXANE_COMPARISON(greater, >)
HEXANE_COMPARISON(greater_equal, >=)
HEXANE_COMPARISON(less, <)
HEXANE_COMPARISON(less_equal, <=)
#undef HEXANE_COMPARISON

struct equal_truth_op {
  static constexpr const char* kName = "equal";
  static constexpr int kPicoseconds = 0;
  static bool apply(uint8_t a, uint8_t b) { return (a != 0) == (b != 0); }
};
struct not_equal_truth_op {
  static constexpr const char* kName = "not_equal";
  static constexpr int kPicoseconds = 0;
  static bool apply(uint8_t a, uint8_t b) { return (a != 0) != (b != 0); }
};
struct logical_and_op {
  static constexpr const char* kName = "logical_and";
  static constexpr int kPicoseconds = 0;
  static bool apply(uint8_t a, uint8_t b) { return (a != 0) & (b != 0); }
};
struct logical_or_op {
  static constexpr const char* kName = "logical_or";
  static constexpr int kPicoseconds = 0;
  static bool apply(uint8_t a, uint8_t b) { return (a | b) != 0; }
};
struct logical_xor_op {
  static constexpr const char* kName = "logical_xor";
  static constexpr int kPicoseconds = 0;
  static bool apply(uint8_t a, uint8_t b) { return (a != 0) != (b != 0); }
};

// Ops of one operand; low and high are the bounds of clip.
#define HEXANE_UNARY(op, num_attributes, expression)                       \
  struct op##_op {                                                         \
    static constexpr const char* kName = #op;                              \
    static constexpr int kPicoseconds = 0;                                 \
    static constexpr int kNumAttributes = num_attributes;                  \
    template <class T>                                                     \
    static T apply(T x, [[maybe_unused]] T low, [[maybe_unused]] T high) { \
      return static_cast<T>(expression);                                   \
    }                                                                      \
  };
HEXANE_UNARY(abs, 0, x < 0 ? 0 - static_cast<Wrap<T>>(x) : static_cast<Wrap<T>>(x))
HEXANE_UNARY(neg, 0, 0 - static_cast<Wrap<T>>(x))
HEXANE_UNARY(sign, 0, (x > 0) - (x < 0))
HEXANE_UNARY(relu, 0, x < 0 ? 0 : x)
HEXANE_UNARY(square, 0, static_cast<Wrap<T>>(x) * static_cast<Wrap<T>>(x))
HEXANE_UNARY(clip, 2, x<low ? low : x> high ? high : x)
HEXANE_UNARY(logical_not, 0, x == 0)
#undef HEXANE_UNARY

// ---- rows ----

template <class Op, class Half>
void compare_halves_row(std::byte* const* p, const int64_t* strides, int64_t n, const void* state) {
  float a[kChunk], b[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    widen<Half>(p[0] + i * strides[0], strides[0], a, count);
    widen<Half>(p[1] + i * strides[1], strides[1], b, count);
    std::byte* const chunk[] = {reinterpret_cast<std::byte*>(a), reinterpret_cast<std::byte*>(b),
                                p[2] + i * strides[2]};
    const int64_t chunk_strides[] = {sizeof(float), sizeof(float), strides[2]};
    binary_row<Op, float, uint8_t>(chunk, chunk_strides, count, state);
  }
}

// Selects with bit masks, because every compiler vectorises them.
template <class T, bool kOneRight>
void select_dense(const uint8_t* condition, const T* x, const T* y, T* out, int64_t n) {
  const T right = kOneRight ? *y : T(0);
  HEXANE_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    const T mask = static_cast<T>(-static_cast<T>(condition[i] != 0));
    out[i] = static_cast<T>((x[i] & mask) | ((kOneRight ? right : y[i]) & ~mask));
  }
}

template <class T>
void select_row(std::byte* const* p, const int64_t* strides, int64_t n, const void*) {
  constexpr int64_t k = sizeof(T);
  if (strides[0] == 1 && strides[1] == k && (strides[2] == k || strides[2] == 0) && strides[3] == k && n > 0) {
    const auto* condition = reinterpret_cast<const uint8_t*>(p[0]);
    const auto *x = reinterpret_cast<const T*>(p[1]), *y = reinterpret_cast<const T*>(p[2]);
    (strides[2] ? select_dense<T, false> : select_dense<T, true>)(condition, x, y, reinterpret_cast<T*>(p[3]), n);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const T a = at<const T>(p[1], strides[1], i), b = at<const T>(p[2], strides[2], i);
    at<T>(p[3], strides[3], i) = at<const uint8_t>(p[0], strides[0], i) ? a : b;
  }
}

// ---- kernels ----

struct select_op {
  static constexpr const char* kName = "select";
  static constexpr int kPicoseconds = 0;
};

template <class T>
constexpr Kernel select(const char* dtypes) {
  Kernel kernel = loop_kernel<select_op, 3, select_row<T>>(dtypes);
  kernel.family = "any";
  return kernel;
}

template <class Op, class T>
constexpr Kernel comparison(const char* dtypes) {
  return loop_kernel<Op, 2, binary_row<Op, T, uint8_t>>(dtypes);
}

template <class Op, class Half>
constexpr Kernel half_comparison() {
  Kernel kernel = loop_kernel<Op, 2, compare_halves_row<Op, Half>>("fp16,fp16->bool");
  kernel.family = kFamily<Half>;
  return kernel;
}

constexpr Kernel in_engine(Kernel kernel) {
  kernel.family = "engine";
  return kernel;
}

#define HEXANE_ARITHMETIC(op)                                                                                     \
  arithmetic<op##_op, int8_t>("int8,int8->int8"), arithmetic<op##_op, uint8_t>("uint8,uint8->uint8"),             \
      arithmetic<op##_op, int16_t>("int16,int16->int16"), arithmetic<op##_op, uint16_t>("uint16,uint16->uint16"), \
      arithmetic<op##_op, int32_t>("int32,int32->int32"), arithmetic<op##_op, uint32_t>("uint32,uint32->uint32"), \
      arithmetic<op##_op, int64_t>("int64,int64->int64"), arithmetic<op##_op, uint64_t>("uint64,uint64->uint64")
// Ops on bits: signed integers use the code of unsigned ones.
#define HEXANE_OF_BITS(op)                                                                                         \
  arithmetic<op##_op, uint8_t>("int8,int8->int8"), arithmetic<op##_op, uint8_t>("uint8,uint8->uint8"),             \
      arithmetic<op##_op, uint16_t>("int16,int16->int16"), arithmetic<op##_op, uint16_t>("uint16,uint16->uint16"), \
      arithmetic<op##_op, uint32_t>("int32,int32->int32"), arithmetic<op##_op, uint32_t>("uint32,uint32->uint32"), \
      arithmetic<op##_op, uint64_t>("int64,int64->int64"), arithmetic<op##_op, uint64_t>("uint64,uint64->uint64")
#define HEXANE_COMPARISON(op)                                                                                  \
  comparison<op##_op, double>("fp64,fp64->bool"), comparison<op##_op, float>("fp32,fp32->bool"),               \
      half_comparison<op##_op, fp16>(), half_comparison<op##_op, engine_half>(),                               \
      comparison<op##_op, int8_t>("int8,int8->bool"), comparison<op##_op, uint8_t>("uint8,uint8->bool"),       \
      comparison<op##_op, int16_t>("int16,int16->bool"), comparison<op##_op, int32_t>("int32,int32->bool"),    \
      comparison<op##_op, int64_t>("int64,int64->bool"), comparison<op##_op, uint16_t>("uint16,uint16->bool"), \
      comparison<op##_op, uint32_t>("uint32,uint32->bool"), comparison<op##_op, uint64_t>("uint64,uint64->bool")
#define HEXANE_UNARY(op)                                                                \
  unary<op##_op, int8_t>("int8->int8"), unary<op##_op, uint8_t>("uint8->uint8"),        \
      unary<op##_op, int16_t>("int16->int16"), unary<op##_op, int32_t>("int32->int32"), \
      unary<op##_op, int64_t>("int64->int64")

#define HEXANE_TRUTH(...) __VA_ARGS__, in_engine(__VA_ARGS__)

constexpr Kernel kTable[] = {
    HEXANE_OF_BITS(add),
    HEXANE_OF_BITS(sub),
    HEXANE_OF_BITS(mul),
    HEXANE_ARITHMETIC(real_div),
    HEXANE_ARITHMETIC(floor_div),
    HEXANE_ARITHMETIC(mod),
    HEXANE_ARITHMETIC(fmod),
    HEXANE_ARITHMETIC(maximum),
    HEXANE_ARITHMETIC(minimum),
    HEXANE_ARITHMETIC(pow),
    HEXANE_ARITHMETIC(prelu),
    HEXANE_OF_BITS(bitwise_and),
    HEXANE_OF_BITS(bitwise_or),
    HEXANE_OF_BITS(bitwise_xor),
    HEXANE_OF_BITS(shift_left),
    HEXANE_ARITHMETIC(shift_right),
    HEXANE_COMPARISON(equal),
    HEXANE_COMPARISON(not_equal),
    HEXANE_COMPARISON(greater),
    HEXANE_COMPARISON(greater_equal),
    HEXANE_COMPARISON(less),
    HEXANE_COMPARISON(less_equal),
    HEXANE_TRUTH(comparison<equal_truth_op, uint8_t>("bool,bool->bool")),
    HEXANE_TRUTH(comparison<not_equal_truth_op, uint8_t>("bool,bool->bool")),
    HEXANE_TRUTH(comparison<logical_and_op, uint8_t>("bool,bool->bool")),
    HEXANE_TRUTH(comparison<logical_or_op, uint8_t>("bool,bool->bool")),
    HEXANE_TRUTH(comparison<logical_xor_op, uint8_t>("bool,bool->bool")),
    HEXANE_TRUTH(unary<logical_not_op, uint8_t>("bool->bool")),
    HEXANE_UNARY(abs),
    HEXANE_UNARY(neg),
    HEXANE_UNARY(sign),
    HEXANE_UNARY(relu),
    HEXANE_UNARY(square),
    HEXANE_UNARY(clip),
    select<uint8_t>("bool,8b,8b->8b"),
    select<uint16_t>("bool,16b,16b->16b"),
    select<uint32_t>("bool,32b,32b->32b"),
    select<uint64_t>("bool,64b,64b->64b"),
};
#undef HEXANE_ARITHMETIC
#undef HEXANE_OF_BITS
#undef HEXANE_COMPARISON
#undef HEXANE_UNARY
#undef HEXANE_TRUTH

}  // namespace

std::span<const Kernel> integer_table() { return kTable; }

}  // namespace hexane::cpu
