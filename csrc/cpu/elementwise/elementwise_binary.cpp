// Arithmetic of two fp32 or fp16 operands, computed in fp32. Fused unary operations follow before the result is rounded
// once. In the engine's arithmetic each operation is rounded.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/elementwise_binary.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/vector-inl.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cpu/elementwise/elementwise.h"
#include "cpu/engine/activation.h"
#include "cpu/loop.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE V if_numbers(V a, V b, V result) {
  return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::Add(a, b), result);
}

// Applies f to each lane as a scalar; for rare cases.
template <class F>
HWY_INLINE V lanewise(V a, V b, F f) {
  alignas(64) float x[kLanes], y[kLanes];
  hn::Store(a, D(), x);
  hn::Store(b, D(), y);
  for (int64_t i = 0; i < kLanes; ++i) x[i] = f(x[i], y[i]);
  return hn::Load(D(), x);
}

// One copy, because a call for each lane is large.
HWY_NOINLINE V lanewise_power(V a, V b) {
  return lanewise(a, b, [](float x, float y) { return y == 2 ? x * x : y == 3 ? x * x * x : std::pow(x, y); });
}

// The exponents 2 and 3, which networks use often, have code of their own.
HWY_INLINE V power(V a, V b) {
  if (hn::AllTrue(D(), hn::Eq(b, set(2.0f)))) return hn::Mul(a, a);
  if (hn::AllTrue(D(), hn::Eq(b, set(3.0f)))) return hn::Mul(hn::Mul(a, a), a);
  return lanewise_power(a, b);
}

#define HEXANE_BINARY_FUNCTOR(op, expression)                    \
  struct op##_op {                                               \
    static constexpr const char* kName = #op;                    \
    static HWY_INLINE V apply(V a, V b) { return (expression); } \
  };
HEXANE_BINARY_FUNCTOR(add, hn::Add(a, b))
HEXANE_BINARY_FUNCTOR(sub, hn::Sub(a, b))
HEXANE_BINARY_FUNCTOR(mul, hn::Mul(a, b))
HEXANE_BINARY_FUNCTOR(real_div, hn::Div(a, b))
HEXANE_BINARY_FUNCTOR(maximum, if_numbers(a, b, hn::IfThenElse(hn::Lt(a, b), b, a)))
HEXANE_BINARY_FUNCTOR(minimum, if_numbers(a, b, hn::IfThenElse(hn::Lt(b, a), b, a)))
HEXANE_BINARY_FUNCTOR(prelu, hn::IfThenElse(hn::Lt(a, hn::Zero(D())), hn::Mul(a, b), a))
HEXANE_BINARY_FUNCTOR(floor_div, lanewise(a, b, floor_divide<float>))
HEXANE_BINARY_FUNCTOR(mod, lanewise(a, b, modulo<float>))
HEXANE_BINARY_FUNCTOR(fmod, lanewise(a, b, [](float x, float y) { return remainder_of(x, y); }))
HEXANE_BINARY_FUNCTOR(pow, power(a, b))
#undef HEXANE_BINARY_FUNCTOR

// True for operations that call a scalar function for each lane. The cost of the scalar calls hides the cost of copying
// rows through chunks.
template <class Op>
constexpr bool kLanewise = false;
template <>
constexpr bool kLanewise<floor_div_op> = true;
template <>
constexpr bool kLanewise<mod_op> = true;
template <>
constexpr bool kLanewise<fmod_op> = true;

// The engine multiplies by the inverse that its table gives.
struct engine_real_div_op : mul_op {
  static constexpr const char* kName = "real_div";
};
// pow of the engine: computed in fp64, then rounded to fp32 and to fp16. The engine's own steps for pow are not known.
struct engine_pow_op {
  static constexpr const char* kName = "pow";
  static HWY_INLINE V apply(V a, V b) {
    return lanewise(a, b, [](float x, float y) { return static_cast<float>(std::pow(static_cast<double>(x), y)); });
  }
};
struct engine_floor_div_op : mul_op {
  static constexpr const char* kName = "floor_div";
};
template <>
constexpr bool kLanewise<engine_pow_op> = true;
template <class Op>
constexpr bool kDivides = std::is_same_v<Op, engine_real_div_op> || std::is_same_v<Op, engine_floor_div_op>;

template <class T>
using Apply = void (*)(const T* a, const T* b, T* y, int64_t n);

template <class Op, class T>
void both(const T* a, const T* b, T* y, int64_t n) {
  map(a, b, y, n, [](V v, V w) HWY_ATTR { return Op::apply(v, w); });
}

template <class Op, class T>
void one_left(const T* a, const T* b, T* y, int64_t n) {
  const V v = set(hn::GetLane(load_part(a, 1)));
  map(b, y, n, [&](V w) HWY_ATTR { return Op::apply(v, w); });
}

template <class Op, class T>
void one_right(const T* a, const T* b, T* y, int64_t n) {
  const V w = set(hn::GetLane(load_part(b, 1)));
  map(a, y, n, [&](V v) HWY_ATTR { return Op::apply(v, w); });
}

struct Slot {
  RowFunction function;
  float alpha;
  float beta;
  std::shared_ptr<const HalfMap> map;  // a map that replaces the function in the engine's arithmetic

  void apply(float* x, int64_t n) const { map ? map_row(*map, x, n) : function(x, n, alpha, beta); }
};

// The row functions of an operation: for two dense operands, for one value on the left or right, and for a chunk. The
// first three functions are nullptr if every row goes through chunks.
template <class T>
struct Rows {
  Apply<T> both, one_left, one_right;
  Apply<float> chunk;
};

// True for operations on halves that are too rare for code of their own.
template <class Op, class T>
constexpr bool kRare = sizeof(T) == 2 && (std::is_same_v<Op, maximum_op> || std::is_same_v<Op, minimum_op> ||
                                          std::is_same_v<Op, prelu_op> || std::is_same_v<Op, pow_op>);

template <class Op, class T>
constexpr Rows<T> rows_of() {
  if constexpr (kLanewise<Op> || kRare<Op, T>) return {nullptr, nullptr, nullptr, both<Op, float>};
  return {both<Op, T>, one_left<Op, T>, one_right<Op, T>, both<Op, float>};
}

template <class T>
struct State {
  Loop whole;
  Rows<T> rows;
  std::shared_ptr<const HalfMap> right;  // a map for the second operand, applied before the operation
  int num_slots;
  Slot slots[5];
};

template <class T>
const float* gathered(const std::byte* from, int64_t stride, float* chunk, int64_t n) {
  if constexpr (sizeof(T) == 4)
    if (stride == sizeof(T)) return reinterpret_cast<const float*>(from);
  gather<T>(from, stride, chunk, n);
  return chunk;
}

// Computes a row with any strides and slots, chunk by chunk.
template <class T>
HWY_NOINLINE void chunks_of_row(const State<T>& state, std::byte* const* pointers, const int64_t* strides, int64_t n) {
  alignas(64) float a[kChunk], b[kChunk], y[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    const float* left = gathered<T>(pointers[0] + i * strides[0], strides[0], a, count);
    const float* right = gathered<T>(pointers[1] + i * strides[1], strides[1], b, count);
    if (state.right) map_row(*state.right, b, count);
    state.rows.chunk(left, right, y, count);
    for (int k = 0; k < state.num_slots; ++k) state.slots[k].apply(y, count);
    scatter<T>(y, pointers[2] + i * strides[2], strides[2], count);
  }
}

template <class T>
void binary_row(std::byte* const* pointers, const int64_t* strides, int64_t n, const void* opaque) {
  const State<T>& state = *static_cast<const State<T>*>(opaque);
  constexpr int64_t kDense = sizeof(T);
  const bool dense_out = strides[2] == kDense;
  if (dense_out && state.num_slots == 0 && !state.right) {
    const Apply<T> direct = strides[0] == kDense && strides[1] == kDense ? state.rows.both
                            : strides[0] == 0 && strides[1] == kDense    ? state.rows.one_left
                            : strides[0] == kDense && strides[1] == 0    ? state.rows.one_right
                                                                         : nullptr;
    if (direct)
      return direct(reinterpret_cast<const T*>(pointers[0]), reinterpret_cast<const T*>(pointers[1]),
                    reinterpret_cast<T*>(pointers[2]), n);
  }
  chunks_of_row(state, pointers, strides, n);
}

template <class T>
std::shared_ptr<State<T>> prepare_rows(const Call& call, const char* name, const Rows<T>& rows) {
  check_broadcast(name, call, 2, 2);
  auto state = std::make_shared<State<T>>();
  state->whole = make_loop(call, 2, -1, {});
  state->rows = rows;
  return state;
}

template <class T>
void prepare_epilogue(const Call& call, const char* name, State<T>& state) {
  const Epilogue& epilogue = call.attributes<Epilogue>();
  if (epilogue.count < 0 || epilogue.count > 4) fail(name, "epilogue: got ", epilogue.count, " slots, need 0 to 4");
  for (const EpilogueSlot& slot : std::span(epilogue.slots).first(epilogue.count)) {
    if (slot.operand != -1) fail(name, "epilogue: got a slot with operand ", slot.operand, ", need unary slots");
    const std::string_view kind = call.string(slot.kind);
    Slot& resolved = state.slots[state.num_slots++];
    resolved = {find_row_function(kind), static_cast<float>(slot.alpha), static_cast<float>(slot.beta), nullptr};
    if constexpr (kIsEngine<T>) resolved.map = half_map(kind, slot.alpha, slot.beta, call.numerics);
  }
}

template <class Op, class T, bool kEpilogue>
Prepared prepare_binary(const Call& call) {
  auto state = prepare_rows<T>(call, Op::kName, rows_of<Op, T>());
  if constexpr (kDivides<Op>) state->right = half_map("inverse", 0, 0, call.numerics);
  if constexpr (std::is_same_v<Op, engine_floor_div_op>)
    state->slots[state->num_slots++].map = half_map("floor", 0, 0, call.numerics);
  if constexpr (kEpilogue) prepare_epilogue(call, Op::kName, *state);
  return state;
}

template <class T>
void run_binary(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const State<T>& state = call.state<State<T>>();
  if (covers(call, axis, range))
    walk(state.whole, call, binary_row<T>, &state);
  else
    walk(make_loop(call, 2, axis, range), call, binary_row<T>, &state);
}

template <class Op, class T, int kPicoseconds, bool kEpilogue>
constexpr Kernel binary_kernel() {
  return {
      .name = Op::kName,
      .dtypes = sizeof(T) == 4 ? "fp32,fp32->fp32" : "fp16,fp16->fp16",
      .family = kFamily<T>,
      .attrs = kEpilogue ? "epilogue:E" : "",
      .attrs_bytes = kEpilogue ? sizeof(Epilogue) : 0,
      .accepts = "strided",
      .prepare = prepare_binary<Op, T, kEpilogue>,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = elementwise_cost<kPicoseconds>,
      .run = run_binary<T>,
  };
}

#define HEXANE_BINARY(op, picoseconds, epilogue) \
  binary_kernel<op##_op, float, picoseconds, epilogue>(), binary_kernel<op##_op, float16_t, picoseconds, epilogue>()
const Kernel kTable[] = {
    HEXANE_BINARY(add, 120, true),
    HEXANE_BINARY(sub, 120, true),
    HEXANE_BINARY(mul, 120, true),
    HEXANE_BINARY(real_div, 130, true),
    HEXANE_BINARY(maximum, 130, false),
    HEXANE_BINARY(minimum, 130, false),
    HEXANE_BINARY(prelu, 100, false),
    HEXANE_BINARY(floor_div, 4000, false),
    HEXANE_BINARY(mod, 4000, false),
    HEXANE_BINARY(fmod, 2500, false),
    HEXANE_BINARY(pow, 4500, false),
    binary_kernel<add_op, engine_half, 300, true>(),
    binary_kernel<sub_op, engine_half, 300, true>(),
    binary_kernel<mul_op, engine_half, 300, true>(),
    binary_kernel<engine_real_div_op, engine_half, 1400, true>(),
    binary_kernel<engine_floor_div_op, engine_half, 2000, false>(),
    binary_kernel<engine_pow_op, engine_half, 4500, false>(),
    binary_kernel<maximum_op, engine_half, 300, false>(),
    binary_kernel<minimum_op, engine_half, 300, false>(),
    binary_kernel<prelu_op, engine_half, 300, false>(),
};
#undef HEXANE_BINARY

std::span<const Kernel> binary_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(binary_kernels);
std::span<const Kernel> binary_table() { return HWY_DYNAMIC_DISPATCH(binary_kernels)(); }
}  // namespace hexane::cpu
#endif
