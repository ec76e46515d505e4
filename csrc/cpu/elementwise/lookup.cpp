// lookup: each byte of the input is an index of a table of 256 elements. A table of 256 elements can hold any function
// from one 8-bit grid to another.
#include "cpu/elementwise/elementwise.h"
#include "cpu/loop.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

void lookup_row(std::byte* const* pointers, const int64_t* strides, int64_t n, const void* state) {
  const auto* table = static_cast<const uint8_t*>(state);
  const auto* from = reinterpret_cast<const uint8_t*>(pointers[0]);
  auto* to = reinterpret_cast<uint8_t*>(pointers[1]);
  if (strides[0] == 1 && strides[1] == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * strides[1]] = table[from[i * strides[0]]];
  }
}

Prepared prepare_lookup(const Call& call) {
  check_broadcast("lookup", call, 2, 1);
  const Tensor& table = call.inputs[1];
  check_operand("lookup", "table", table);
  if (table.rank != 1 || table.shape[0] != 256 || table.strides[0] != 1)
    fail("lookup", "table: got ", shape_text(table), ", need (256) without gaps");
  return std::make_shared<Loop>(make_loop(call, 1, -1, {}));
}

Box lookup_needs(const Call& call, int input, const Box& out) {
  return input == 0 ? broadcast_needs(call, input, out) : whole(call.inputs[1]);
}

void run_lookup(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const std::byte* table = call.inputs[1].data;
  if (covers(call, axis, range))
    walk(call.state<Loop>(), call, lookup_row, table);
  else
    walk(make_loop(call, 1, axis, range), call, lookup_row, table);
}

constexpr Kernel lookup(const char* dtypes) {
  return {
      .name = "lookup",
      .dtypes = dtypes,
      .family = "any",
      .accepts = "strided",
      .prepare = prepare_lookup,
      .cuts = cut_every_axis,
      .needs = lookup_needs,
      .cost = elementwise_cost<700>,
      .run = run_lookup,
  };
}

constexpr Kernel kTable[] = {lookup("8b,int8->int8"), lookup("8b,uint8->uint8")};

}  // namespace

std::span<const Kernel> lookup_table() { return kTable; }

}  // namespace hexane::cpu
