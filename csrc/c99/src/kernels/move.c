/* copy (transpose, slice, broadcast, a part of a concatenation) and lookup in a table of 256 bytes. */
#include "../internal.h"

HX_CHECK_FUNCTION hx_status check_copy(const hx_call* call) {
  hx_view v[2];
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  if (!hx_same_shape(&v[0], &v[1]) || v[0].item != v[1].item)
    return hx_refuse(call, "output: need the input's shape and size");
  return HX_OK;
}

static void run_copy(const hx_call* call, int axis, hx_range range) {
  hx_view v[2];
  hx_walk walk;
  int32_t i;
  hx_operands(call, 1, v);
  if (!hx_walk_begin(&walk, v, 2, axis, range)) return;
  do {
    const uint8_t* from = walk.at[0];
    uint8_t* to = walk.at[1];
    if (walk.step[0] == v[0].item && walk.step[1] == v[0].item) {
      memmove(to, from, (size_t)walk.count * (size_t)v[0].item);
      continue;
    }
    for (i = 0; i < walk.count; ++i, from += walk.step[0], to += walk.step[1]) memmove(to, from, (size_t)v[0].item);
  } while (hx_walk_next(&walk));
}

HX_CHECK_FUNCTION hx_status check_lookup(const hx_call* call) {
  hx_view v[3];
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need an input and a table");
  if (v[0].item != 1 || !hx_is_byte(v[2].dtype) || v[1].dtype != v[2].dtype)
    return hx_refuse(call, "dtypes: need bytes, and a table of the output's dtype");
  if (!hx_broadcasts(&v[0], &v[2])) return hx_refuse(call, "shapes do not broadcast");
  if (v[1].rank != 1 || v[1].shape[0] != 256 || v[1].strides[0] != 1)
    return hx_refuse(call, "table: need 256 bytes without gaps");
  return HX_OK;
}

static void run_lookup(const hx_call* call, int axis, hx_range range) {
  hx_view v[2], table;
  hx_walk walk;
  int32_t i;
  hx_input(call, 0, &v[0]);
  hx_input(call, 1, &table);
  hx_output(call, 0, &v[1]);
  if (!hx_walk_begin(&walk, v, 2, axis, range)) return;
  do {
    const uint8_t* from = walk.at[0];
    uint8_t* to = walk.at[1];
    for (i = 0; i < walk.count; ++i, from += walk.step[0], to += walk.step[1]) *to = table.data[*from];
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_copy = {"copy", 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_copy), 0, run_copy};
const hx_kernel hx_kernel_lookup = {"lookup", 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_lookup), 0, run_lookup};
