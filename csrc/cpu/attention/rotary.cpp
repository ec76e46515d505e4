// rotary_embedding: rotates pairs of a row's elements by angles, in fp32. A pair is two neighbours, or element i of the
// first half and element i of the second half.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/rotary.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <algorithm>

#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/simd/vector-inl.h"
#include "cpu/tables.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

constexpr const char* kName = "rotary_embedding";

int64_t half_of(const Call& call) { return call.inputs[0].shape[call.inputs[0].rank - 1] / 2; }
int64_t whole_vectors(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

void check_dense_rows(const char* what, const Tensor& t) {
  if (t.rank > 0 && t.size() > 0 && t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != item_bytes(t))
    fail(kName, what, ": got a last stride of ", t.strides[t.rank - 1], " bytes, need ", item_bytes(t));
}

Prepared prepare(const Call& call) {
  if (call.inputs.size() != 3 || call.outputs.size() != 1)
    fail(kName, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 3 and 1");
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  check_operand(kName, "x", x);
  check_written(kName, "output", out);
  check_same_shape(kName, out, x);
  if (x.rank < 1 || x.shape[x.rank - 1] % 2) fail(kName, "x: got ", shape_text(x), ", need an even last axis");
  for (const Tensor* table : {&call.inputs[1], &call.inputs[2]}) {
    check_operand(kName, "table", *table);
    if (table->rank > x.rank) fail(kName, "table rank: got ", table->rank, ", need at most ", x.rank);
    for (int axis = 0; axis < table->rank; ++axis) {
      const int own = x.rank - table->rank + axis;
      const int64_t need = own == x.rank - 1 ? half_of(call) : x.shape[own];
      if (table->shape[axis] != 1 && table->shape[axis] != need)
        fail(kName, "table: got ", table->shape[axis], " in axis ", axis, ", need 1 or ", need);
    }
    check_dense_rows("table", *table);
  }
  check_dense_rows("x", x);
  check_dense_rows("output", out);
  return nullptr;
}

void cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis + 1 < out.rank; ++axis)
    if (out.shape[axis] > 1) cuts.add(axis, out.shape[axis]);
}

Box needs(const Call& call, int input, const Box& out) {
  const Tensor& t = call.inputs[input];
  const Box box = aligned(t, out);
  return t.rank > 0 ? all_along(t, t.rank - 1, box) : box;
}

int64_t cost(const Call& call) { return call.outputs[0].size() / 8 + 50; }

// Scratch of one thread: the pairs of a row as floats | a row of each table.
int64_t scratch(const Call& call) { return 4 * 4 * whole_vectors(half_of(call)); }

struct Pair {
  V first, second;
};

HWY_INLINE Pair turned(V a, V b, V cos, V sin) {
  return {hn::NegMulAdd(b, sin, hn::Mul(a, cos)), hn::MulAdd(b, cos, hn::Mul(a, sin))};
}

template <class T>
void turn_halves(const T* x, const T* cos, const T* sin, T* y, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Pair pair = turned(load(x + i), load(x + half + i), load(cos + i), load(sin + i));
    store(pair.first, y + i);
    store(pair.second, y + half + i);
  }
  if (const int64_t n = half - i; n > 0) {
    const Pair pair =
        turned(load_part(x + i, n), load_part(x + half + i, n), load_part(cos + i, n), load_part(sin + i, n));
    store_part(pair.first, y + i, n);
    store_part(pair.second, y + half + i, n);
  }
}

// Rotates pairs of neighbours. `pairs` has room for whole vectors of pairs.
template <class T>
void turn_neighbours(const T* x, const T* cos, const T* sin, T* y, int64_t half, float* pairs) {
  const D d;
  map(x, pairs, 2 * half, [](V v) HWY_ATTR { return v; });
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = std::min(kLanes, half - i);
    V a, b;
    hn::LoadInterleaved2(d, pairs + 2 * i, a, b);
    const Pair pair = n == kLanes ? turned(a, b, load(cos + i), load(sin + i))
                                  : turned(a, b, load_part(cos + i, n), load_part(sin + i, n));
    hn::StoreInterleaved2(pair.first, pair.second, d, pairs + 2 * i);
  }
  map(pairs, y, 2 * half, [](V v) HWY_ATTR { return v; });
}

template <class T>
void run(const Call& call, int cut, Range range, std::byte* scratch, const std::byte*) {
  const Tensor &x = call.inputs[0], &out = call.outputs[0];
  const int64_t half = half_of(call), room = whole_vectors(half);
  const bool interleaved = *static_cast<const int64_t*>(call.attrs) != 0;
  auto* pairs = reinterpret_cast<float*>(scratch);
  T* rows[] = {reinterpret_cast<T*>(pairs + 2 * room), reinterpret_cast<T*>(pairs + 3 * room)};
  const Tensor* operands[] = {&x, &call.inputs[1], &call.inputs[2], &out};
  int64_t strides[4][8] = {}, extents[8], at[8] = {}, offsets[4] = {}, count = 1;
  const int rank = x.rank - 1;
  for (int axis = 0; axis < rank; ++axis) {
    const Range part = axis == cut ? range : Range{0, x.shape[axis]};
    extents[axis] = part.end - part.begin;
    count *= extents[axis];
    for (int i = 0; i < 4; ++i) {
      const int own = axis - (x.rank - operands[i]->rank);
      if (own < 0 || operands[i]->shape[own] == 1) continue;
      strides[i][axis] = operands[i]->strides[own];
      offsets[i] += part.begin * strides[i][axis];
    }
  }
  for (int64_t row = 0; row < count; ++row) {
    const T* tables[2];
    for (int i = 0; i < 2; ++i) {
      const Tensor& table = *operands[i + 1];
      tables[i] = reinterpret_cast<const T*>(table.data + offsets[i + 1]);
      if (half > 1 && (table.rank == 0 || table.shape[table.rank - 1] == 1)) {
        std::fill_n(rows[i], half, *tables[i]);
        tables[i] = rows[i];
      }
    }
    const T* from = reinterpret_cast<const T*>(x.data + offsets[0]);
    T* to = reinterpret_cast<T*>(out.data + offsets[3]);
    if (interleaved)
      turn_neighbours(from, tables[0], tables[1], to, half, pairs);
    else
      turn_halves(from, tables[0], tables[1], to, half);
    for (int axis = rank - 1; axis >= 0; --axis) {
      const bool wraps = ++at[axis] == extents[axis];
      for (int i = 0; i < 4; ++i) offsets[i] += strides[i][axis] * (wraps ? 1 - extents[axis] : 1);
      if (!wraps) break;
      at[axis] = 0;
    }
  }
}

template <class T>
constexpr Kernel rotary(const char* dtypes) {
  return {
      .name = kName,
      .dtypes = dtypes,
      .attrs = "interleaved:i",
      .attrs_bytes = 8,
      .accepts = "rows",
      .prepare = prepare,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .scratch = scratch,
      .run = run<T>,
  };
}

const Kernel kTable[] = {rotary<float>("fp32,fp32,fp32->fp32"), rotary<float16_t>("fp16,fp16,fp16->fp16")};

std::span<const Kernel> rotary_kernels() { return kTable; }

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(rotary_kernels);
std::span<const Kernel> rotary_table() { return HWY_DYNAMIC_DISPATCH(rotary_kernels)(); }
}  // namespace hexane::cpu
#endif
