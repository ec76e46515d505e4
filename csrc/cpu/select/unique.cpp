// unique: the distinct slices along an axis, sorted or in order of appearance. Further outputs: the index of each
// distinct slice's first appearance, how often the slice appears, and for each slice of the input the index of the
// equal distinct slice. The outputs have room for all slices; unused entries are zero.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/operand.h"
#include "cpu/select/sort_key.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct Attributes {
  int64_t axis;
  int64_t sorted;
};

// The input as (outer, count, inner): slice i is [:, i, :].
struct Slices {
  int64_t outer, count, inner;
  bool sorted;
};

struct Entry {
  uint64_t key;  // key of the slice's first element
  int64_t index;
};

Prepared prepare(const Call& call) {
  const Tensor &in = call.inputs[0], &values = call.outputs[0], &length = call.outputs[4];
  const auto& a = call.attributes<Attributes>();
  check_dense("unique", "input", in);
  check_dense("unique", "values", values);
  if (values.dtype != in.dtype)
    fail("unique", "values dtype: got ", info(values.dtype).name, ", need ", info(in.dtype).name);
  check_same_shape("unique", values, in);
  const int axis = check_axis("unique", a.axis, in.rank);
  Slices slices{1, in.shape[axis], 1, a.sorted != 0};
  for (int i = 0; i < axis; ++i) slices.outer *= in.shape[i];
  for (int i = axis + 1; i < in.rank; ++i) slices.inner *= in.shape[i];
  for (size_t i = 1; i < 4; ++i) {
    const Tensor& out = call.outputs[i];
    check_dense("unique", "output", out);
    if (out.rank != 1 || out.shape[0] != slices.count)
      fail("unique", "output ", i, ": got the shape ", shape_text(out), ", need (", slices.count, ",)");
  }
  check_dense("unique", "length", length);
  if (length.rank != 0) fail("unique", "length: got the shape ", shape_text(length), ", need a number");
  return std::make_shared<Slices>(slices);
}

// Compares slices a and b by the first elements that differ. Returns -1, 0 or 1.
int compare(const Tensor& in, const Slices& slices, int64_t a, int64_t b) {
  const int64_t item = item_bytes(in);
  for (int64_t outer = 0; outer < slices.outer; ++outer)
    for (int64_t inner = 0; inner < slices.inner; ++inner) {
      const int64_t row = outer * slices.count;
      const uint64_t left = sort_key(in.dtype, in.data + ((row + a) * slices.inner + inner) * item);
      const uint64_t right = sort_key(in.dtype, in.data + ((row + b) * slices.inner + inner) * item);
      if (left != right) return left < right ? -1 : 1;
    }
  return 0;
}

// Sorts the slices; equal slices stay in input order.
void sort_slices(const Tensor& in, const Slices& slices, Entry* entries) {
  const int64_t item = item_bytes(in);
  const bool empty = slices.outer * slices.inner == 0, single = slices.outer * slices.inner == 1;
  for (int64_t i = 0; i < slices.count; ++i)
    entries[i] = {empty ? 0 : sort_key(in.dtype, in.data + i * slices.inner * item), i};
  std::sort(entries, entries + slices.count, [&](const Entry& a, const Entry& b) {
    if (a.key != b.key) return a.key < b.key;
    const int order = empty || single ? 0 : compare(in, slices, a.index, b.index);
    return order ? order < 0 : a.index < b.index;
  });
}

void copy_slices(const Call& call, const Slices& slices, const int64_t* first, int64_t found) {
  const Tensor& in = call.inputs[0];
  const int64_t bytes = slices.inner * item_bytes(in);
  std::byte* to = call.outputs[0].data;
  for (int64_t outer = 0; outer < slices.outer && bytes; ++outer) {
    const std::byte* from = in.data + outer * slices.count * bytes;
    for (int64_t i = 0; i < found; ++i, to += bytes)
      std::memcpy(to, from + first[i] * bytes, static_cast<size_t>(bytes));
    std::memset(to, 0, static_cast<size_t>((slices.count - found) * bytes));
    to += (slices.count - found) * bytes;
  }
}

void run(const Call& call, int, Range, std::byte* scratch, const std::byte*) {
  const Tensor& in = call.inputs[0];
  const auto& slices = call.state<Slices>();
  const int64_t count = slices.count;
  auto* const entries = reinterpret_cast<Entry*>(scratch);
  auto* const starts = reinterpret_cast<int64_t*>(entries + count);  // First entry of each group of equal entries.
  auto* const order = starts + count;                                // The order of the groups.
  sort_slices(in, slices, entries);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool same =
        i && entries[i].key == entries[i - 1].key && compare(in, slices, entries[i].index, entries[i - 1].index) == 0;
    if (!same) starts[found++] = i;
  }
  for (int64_t group = 0; group < found; ++group) order[group] = group;
  if (!slices.sorted)
    std::sort(order, order + found,
              [&](int64_t a, int64_t b) { return entries[starts[a]].index < entries[starts[b]].index; });
  int64_t *first = call.outputs[1].as<int64_t>(), *inverse = call.outputs[2].as<int64_t>(),
          *counts = call.outputs[3].as<int64_t>();
  for (int64_t i = 0; i < found; ++i) {
    const int64_t begin = starts[order[i]], end = order[i] + 1 < found ? starts[order[i] + 1] : count;
    first[i] = entries[begin].index;
    counts[i] = end - begin;
    for (int64_t k = begin; k < end; ++k) inverse[entries[k].index] = i;
  }
  std::fill(first + found, first + count, 0);
  std::fill(counts + found, counts + count, 0);
  copy_slices(call, slices, first, found);
  *call.outputs[4].as<int64_t>() = found;
}

int64_t cost(const Call& call) {
  const auto& slices = call.state<Slices>();
  return 50 + slices.count * (10 + 4 * std::bit_width(static_cast<uint64_t>(slices.count))) + call.inputs[0].size();
}

int64_t scratch(const Call& call) {
  return call.state<Slices>().count * static_cast<int64_t>(sizeof(Entry) + 2 * sizeof(int64_t));
}

constexpr Kernel kTable[] = {{
    .name = "unique",
    .dtypes = "*->*,int64,int64,int64,int64",
    .attrs = "axis:i sorted:i",
    .attrs_bytes = sizeof(Attributes),
    .accepts = "dense",
    .prepare = prepare,
    .cost = cost,
    .scratch = scratch,
    .run = run,
}};

}  // namespace

std::span<const Kernel> unique_table() { return kTable; }

}  // namespace hexane::cpu
