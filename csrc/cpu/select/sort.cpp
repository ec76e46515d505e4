// topk and argsort. Values become unsigned keys, complemented for descending order. One comparison of keys thus serves
// every dtype. Equal values are ordered by index.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/select/sort_key.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct TopkAttributes {
  int64_t axis;
  int64_t largest;
  int64_t sorted;  // ignored: results are always sorted
};

struct ArgsortAttributes {
  int64_t axis;
  int64_t descending;
};

struct SortState {
  int axis;
  bool descending;
};

struct Entry {
  uint64_t key;
  int64_t index;
  bool operator<(const Entry& other) const { return key != other.key ? key < other.key : index < other.index; }
};

// Calls with_value with a value of the C++ type for `dtype`.
template <class F>
void dispatch(DType dtype, const F& with_value) {
  switch (dtype) {
    case DType::kFp64:
      return with_value(double{});
    case DType::kFp32:
      return with_value(float{});
    case DType::kFp16:
      return with_value(fp16{});
    case DType::kInt32:
      return with_value(int32_t{});
    case DType::kUint64:
      return with_value(uint64_t{});
    default:
      return with_value(int64_t{});
  }
}

// If less than 1 / kFewShare of the elements is wanted, keeping the best beats a partition of all.
constexpr int64_t kFewShare = 8;
constexpr int64_t kInserted = 32;  // Up to this many best elements are kept sorted, more in a heap.
constexpr int64_t kBlock = 32;     // Elements compared at once with the worst kept element.

// True if an element of a block may come before `worst`. May also return true for a block with NaNs. The loop
// vectorises.
template <class T>
bool any_before(const T* x, T worst, bool descending) {
  const auto any = [&](auto ordered) __attribute__((always_inline)) {
    int found = 0;
    for (int64_t i = 0; i < kBlock; ++i) found |= !ordered(x[i], worst);
    return found != 0;
  };
  return descending ? any([](T a, T b) { return a <= b; }) : any([](T a, T b) { return a >= b; });
}

bool any_before(const fp16* x, fp16 worst, bool descending) {
  float wide[kBlock];
  convert({x, kBlock}, wide);
  return any_before(wide, to_float(worst), descending);
}

// Selects the best `count` >= 1 elements of a lane, in sorted order. Of equal elements the earlier one is kept.
template <class T, class Load>
void select_few(const std::byte* from, int64_t stride, int64_t extent, bool descending, int64_t count, Entry* entries,
                const Load& entry) {
  const bool inserted = count <= kInserted;
  Entry* const end = entries + count;
  for (int64_t i = 0; i < count; ++i) entries[i] = entry(i);
  inserted ? std::sort(entries, end) : std::make_heap(entries, end);  // the worst element is at the top of the heap
  const Entry& worst = inserted ? end[-1] : *entries;
  const auto consider = [&](int64_t i) {
    const Entry next = entry(i);
    if (next.key >= worst.key) return;
    if (inserted) {
      Entry* slot = end - 1;
      for (; slot > entries && next.key < slot[-1].key; --slot) *slot = slot[-1];
      *slot = next;
    } else {
      std::pop_heap(entries, end);
      end[-1] = next;
      std::push_heap(entries, end);
    }
  };
  int64_t i = count;
  if (stride == sizeof(T)) {
    const T* x = reinterpret_cast<const T*>(from);
    for (; i + kBlock <= extent; i += kBlock)
      if (any_before(x + i, x[worst.index], descending))
        for (int64_t j = i; j < i + kBlock; ++j) consider(j);
  }
  for (; i < extent; ++i) consider(i);
  if (!inserted) std::sort_heap(entries, end);
}

// Stores the first `count` elements of a lane in sorted order in `entries`. `entries` needs room for the whole lane;
// the entries after `count` are undefined.
template <class T>
void select(const std::byte* from, int64_t stride, int64_t extent, bool descending, int64_t count, Entry* entries) {
  const uint64_t flip = descending ? ~uint64_t{0} : 0;
  const auto entry = [&](int64_t i) {
    T value;
    std::memcpy(&value, from + i * stride, sizeof(value));
    return Entry{sort_key(value) ^ flip, i};
  };
  if (count == 0) return;
  if (count < extent / kFewShare) return select_few<T>(from, stride, extent, descending, count, entries, entry);
  for (int64_t i = 0; i < extent; ++i) entries[i] = entry(i);
  if (count < extent) std::nth_element(entries, entries + count, entries + extent);
  std::sort(entries, entries + count);
}

void check_sort(const char* name, const Tensor& in, const Tensor& out, int axis, int64_t extent) {
  if (in.shape[axis] >= int64_t{1} << 31)
    fail(name, "axis ", axis, " of the input: got ", in.shape[axis], " elements, need less than 2^31");
  if (out.rank != in.rank) fail(name, "output rank: got ", out.rank, ", need ", in.rank);
  for (int i = 0; i < in.rank; ++i) {
    const int64_t need = i == axis ? extent : in.shape[i];
    if (out.shape[i] != need) fail(name, "axis ", i, " of the output: got ", out.shape[i], ", need ", need);
  }
}

Prepared prepare_topk(const Call& call) {
  const Tensor &in = call.inputs[0], &values = call.outputs[0], &indices = call.outputs[1];
  const auto& a = call.attributes<TopkAttributes>();
  check_operand("topk", "input", in);
  check_written("topk", "values", values);
  check_written("topk", "indices", indices);
  const int axis = check_axis("topk", a.axis, in.rank);
  if (values.rank != in.rank) fail("topk", "output rank: got ", values.rank, ", need ", in.rank);
  const int64_t count = values.shape[axis];
  if (count > in.shape[axis]) fail("topk", "k: got ", count, ", need at most ", in.shape[axis]);
  check_sort("topk", in, values, axis, count);
  check_sort("topk", in, indices, axis, count);
  return std::make_shared<SortState>(SortState{axis, a.largest != 0});
}

Prepared prepare_argsort(const Call& call) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto& a = call.attributes<ArgsortAttributes>();
  check_operand("argsort", "input", in);
  check_written("argsort", "output", out);
  const int axis = check_axis("argsort", a.axis, in.rank);
  check_sort("argsort", in, out, axis, in.shape[axis]);
  return std::make_shared<SortState>(SortState{axis, a.descending != 0});
}

// Sorts one lane (the elements along the axis at fixed other indices), as far as the outputs need it.
void sort_lane(const Call& call, const SortState& state, int64_t in_offset, const int64_t* out_offsets,
               Entry* entries) {
  const Tensor& in = call.inputs[0];
  const int axis = state.axis;
  const int64_t extent = in.shape[axis], count = call.outputs[0].shape[axis];
  const std::byte* from = in.data + in_offset;
  dispatch(in.dtype, [&](auto value) {
    select<decltype(value)>(from, in.strides[axis], extent, state.descending, count, entries);
  });
  for (size_t o = 0; o < call.outputs.size(); ++o) {
    const Tensor& out = call.outputs[o];
    std::byte* to = out.data + out_offsets[o];
    for (int64_t i = 0; i < count; ++i, to += out.strides[axis]) {
      const int64_t index = entries[i].index;
      const auto narrow = static_cast<int32_t>(index);
      if (call.outputs.size() == 2 && o == 0)
        std::memcpy(to, from + index * in.strides[axis], static_cast<size_t>(item_bytes(in)));
      else if (out.dtype == DType::kInt64)
        std::memcpy(to, &index, sizeof(index));
      else
        std::memcpy(to, &narrow, sizeof(narrow));
    }
  }
}

void run_sort(const Call& call, int cut, Range range, std::byte* scratch, const std::byte*) {
  const auto& state = call.state<SortState>();
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  if (out.size() == 0) return;
  const auto part = [&](int i) { return i == cut ? range : Range{0, i == state.axis ? 1 : out.shape[i]}; };
  int64_t at[8];
  for (int i = 0; i < out.rank; ++i) at[i] = part(i).begin;
  for (;;) {
    int64_t in_offset = 0, out_offsets[2] = {};
    for (int i = 0; i < out.rank; ++i) {
      in_offset += at[i] * in.strides[i];
      for (size_t o = 0; o < call.outputs.size(); ++o) out_offsets[o] += at[i] * call.outputs[o].strides[i];
    }
    sort_lane(call, state, in_offset, out_offsets, reinterpret_cast<Entry*>(scratch));
    int i = out.rank - 1;
    for (; i >= 0 && ++at[i] >= part(i).end; --i) at[i] = part(i).begin;
    if (i < 0) return;
  }
}

void sort_cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int i = 0; i < out.rank; ++i)
    if (i != call.state<SortState>().axis && out.shape[i] > 1) cuts.add(i, out.shape[i]);
}

Box sort_needs(const Call& call, int, const Box& out) {
  return all_along(call.inputs[0], call.state<SortState>().axis, out);
}

int64_t sort_cost(const Call& call) {
  const uint64_t extent = static_cast<uint64_t>(call.inputs[0].shape[call.state<SortState>().axis]);
  return 50 + call.inputs[0].size() * (2 + std::bit_width(extent));
}

int64_t sort_scratch(const Call& call) {
  return call.inputs[0].shape[call.state<SortState>().axis] * static_cast<int64_t>(sizeof(Entry));
}

constexpr Kernel topk(const char* dtypes) {
  return {
      .name = "topk",
      .dtypes = dtypes,
      .attrs = "axis:i largest:i sorted:i",
      .attrs_bytes = sizeof(TopkAttributes),
      .accepts = "strided",
      .prepare = prepare_topk,
      .cuts = sort_cuts,
      .needs = sort_needs,
      .cost = sort_cost,
      .scratch = sort_scratch,
      .run = run_sort,
  };
}
constexpr Kernel argsort(const char* dtypes) {
  return {
      .name = "argsort",
      .dtypes = dtypes,
      .attrs = "axis:i descending:i",
      .attrs_bytes = sizeof(ArgsortAttributes),
      .accepts = "strided",
      .prepare = prepare_argsort,
      .cuts = sort_cuts,
      .needs = sort_needs,
      .cost = sort_cost,
      .scratch = sort_scratch,
      .run = run_sort,
  };
}

constexpr Kernel kTable[] = {
    topk("fp32->fp32,int32"),     topk("fp32->fp32,int64"),     topk("fp16->fp16,int32"),   topk("fp16->fp16,int64"),
    topk("int32->int32,int32"),   topk("int32->int32,int64"),   topk("int64->int64,int32"), topk("int64->int64,int64"),
    topk("fp64->fp64,int32"),     topk("fp64->fp64,int64"),     argsort("fp64->int32"),     argsort("fp64->int64"),
    argsort("fp32->int32"),       argsort("fp32->int64"),       argsort("fp16->int32"),     argsort("fp16->int64"),
    argsort("int32->int32"),      argsort("int32->int64"),      argsort("int64->int32"),    argsort("int64->int64"),
    topk("uint64->uint64,int32"), topk("uint64->uint64,int64"), argsort("uint64->int32"),   argsort("uint64->int64"),
};

}  // namespace

std::span<const Kernel> sort_table() { return kTable; }

}  // namespace hexane::cpu
