/* Comparisons of numbers of one dtype, logic ops on bools, select and cast. All of these ops broadcast. A bool is a
 * byte: any byte other than 0 is true, and results are 0 or 1. */
#include "../internal.h"

static int has_numbers(hx_dtype dtype) { return hx_is_whole(dtype) || dtype == HX_FP32; }

/* ---- comparisons ---- */

HX_CHECK_FUNCTION hx_status check_compare(const hx_call* call) {
  hx_view v[3];
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need two inputs");
  if (v[0].dtype != v[1].dtype || v[2].dtype != HX_BOOL)
    return hx_refuse(call, "dtypes: need two operands of one dtype, and a bool output");
  if (!has_numbers(v[0].dtype))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name,
                   "dtype: need fp32 or integers other than uint64");
  return hx_broadcasts(&v[0], &v[2]) && hx_broadcasts(&v[1], &v[2]) ? HX_OK
                                                                    : hx_refuse(call, "shapes do not broadcast");
}

typedef enum relation { EQUAL, LESS, GREATER, UNORDERED } relation;

static relation related(const uint8_t* a, const uint8_t* b, hx_dtype dtype) {
  if (dtype == HX_FP32) {
    const float x = hx_f32(a), y = hx_f32(b);
    return x < y ? LESS : x > y ? GREATER : x == y ? EQUAL : UNORDERED;
  } else {
    const int64_t x = hx_whole(a, dtype), y = hx_whole(b, dtype);
    return x < y ? LESS : x > y ? GREATER : EQUAL;
  }
}

/* accepted: a mask with a bit for each relation (less, equal, ..) whose result is true. */
static void run_compare(const hx_call* call, int axis, hx_range range, unsigned accepted) {
  hx_view v[3];
  hx_walk walk;
  int32_t i;
  hx_operands(call, 2, v);
  if (!hx_walk_begin(&walk, v, 3, axis, range)) return;
  do {
    const uint8_t *a = walk.at[0], *b = walk.at[1];
    uint8_t* to = walk.at[2];
    for (i = 0; i < walk.count; ++i, a += walk.step[0], b += walk.step[1], to += walk.step[2])
      *to = (uint8_t)(accepted >> related(a, b, v[0].dtype) & 1);
  } while (hx_walk_next(&walk));
}

#define COMPARISON(name, accepted)                                                                                    \
  static void run_##name(const hx_call* call, int axis, hx_range range) { run_compare(call, axis, range, accepted); } \
  const hx_kernel hx_kernel_##name = {#name, 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_compare), 0, run_##name};

COMPARISON(equal, 1u << EQUAL)
COMPARISON(not_equal, 1u << LESS | 1u << GREATER | 1u << UNORDERED)
COMPARISON(less, 1u << LESS)
COMPARISON(less_equal, 1u << LESS | 1u << EQUAL)
COMPARISON(greater, 1u << GREATER)
COMPARISON(greater_equal, 1u << GREATER | 1u << EQUAL)

/* ---- truths ---- */

static hx_status check_truths(const hx_call* call, uint32_t num) {
  hx_view v[3];
  uint32_t i;
  if (!hx_operands(call, num, v)) return hx_refuse(call, "inputs: got another number");
  for (i = 0; i < num; ++i) {
    if (v[i].dtype != HX_BOOL || v[num].dtype != HX_BOOL) return hx_refuse(call, "dtypes: need bools");
    if (!hx_broadcasts(&v[i], &v[num])) return hx_refuse(call, "shapes do not broadcast");
  }
  return HX_OK;
}

HX_CHECK_FUNCTION hx_status check_logical(const hx_call* call) { return check_truths(call, 2); }
HX_CHECK_FUNCTION hx_status check_not(const hx_call* call) { return check_truths(call, 1); }

/* table: a bit for each of (false, false), (true, false), (false, true), (true, true). */
static void run_logical(const hx_call* call, int axis, hx_range range, uint32_t num, unsigned table) {
  hx_view v[3];
  hx_walk walk;
  int32_t i;
  hx_operands(call, num, v);
  if (!hx_walk_begin(&walk, v, (int)num + 1, axis, range)) return;
  do {
    const uint8_t *a = walk.at[0], *b = walk.at[num - 1];
    uint8_t* to = walk.at[num];
    for (i = 0; i < walk.count; ++i, a += walk.step[0], b += walk.step[num - 1], to += walk.step[num])
      *to = (uint8_t)(table >> ((*a != 0) + 2 * (*b != 0)) & 1);
  } while (hx_walk_next(&walk));
}

#define LOGICAL(name, num, table, check)                                  \
  static void run_##name(const hx_call* call, int axis, hx_range range) { \
    run_logical(call, axis, range, num, table);                           \
  }                                                                       \
  const hx_kernel hx_kernel_##name = {#name, 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check), 0, run_##name};

LOGICAL(logical_and, 2, 0x8u, check_logical)
LOGICAL(logical_or, 2, 0xeu, check_logical)
LOGICAL(logical_xor, 2, 0x6u, check_logical)
LOGICAL(logical_not, 1, 0x1u, check_not)

/* ---- select ---- */

HX_CHECK_FUNCTION hx_status check_select(const hx_call* call) {
  hx_view v[4];
  int i;
  if (!hx_operands(call, 3, v)) return hx_refuse(call, "need a condition and two inputs");
  if (v[0].dtype != HX_BOOL || v[1].dtype != v[3].dtype || v[2].dtype != v[3].dtype)
    return hx_refuse(call, "dtypes: need a bool condition, and one dtype for both operands and the output");
  for (i = 0; i < 3; ++i)
    if (!hx_broadcasts(&v[i], &v[3])) return hx_refuse(call, "shapes do not broadcast");
  return HX_OK;
}

static void run_select(const hx_call* call, int axis, hx_range range) {
  hx_view v[4];
  hx_walk walk;
  int32_t i;
  hx_operands(call, 3, v);
  if (!hx_walk_begin(&walk, v, 4, axis, range)) return;
  do {
    const uint8_t *where = walk.at[0], *a = walk.at[1], *b = walk.at[2];
    uint8_t* to = walk.at[3];
    for (i = 0; i < walk.count; ++i, where += walk.step[0], a += walk.step[1], b += walk.step[2], to += walk.step[3])
      memmove(to, *where ? a : b, (size_t)v[3].item);
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_select = {"select", 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_select), 0, run_select};

/* ---- cast ---- */

HX_CHECK_FUNCTION hx_status check_cast(const hx_call* call) {
  hx_view v[2];
  if (!hx_operands(call, 1, v)) return hx_refuse(call, "need one input");
  if (!has_numbers(v[0].dtype) || !has_numbers(v[1].dtype))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, "cast",
                   "dtype: need fp32 or integers other than uint64");
  return hx_broadcasts(&v[0], &v[1]) ? HX_OK : hx_refuse(call, "shapes do not broadcast");
}

/* Truncates, saturates to the range, and gives 0 for NaN. */
static int64_t truncated(float x, hx_dtype to) {
  static const struct {
    hx_dtype dtype;
    int64_t low, high;
  } kEnds[] = {{HX_INT8, -128, 127},
               {HX_UINT8, 0, 255},
               {HX_INT16, -32768, 32767},
               {HX_UINT16, 0, 65535},
               {HX_INT32, INT32_MIN, INT32_MAX},
               {HX_UINT32, 0, UINT32_MAX},
               {HX_INT64, INT64_MIN, INT64_MAX}};
  size_t i;
  for (i = 0; i + 1 < sizeof kEnds / sizeof kEnds[0] && kEnds[i].dtype != to; ++i) {
  }
  if (x != x) return 0;
  if (x <= (float)kEnds[i].low) return kEnds[i].low;
  if (x >= (float)kEnds[i].high) return kEnds[i].high;
  return (int64_t)x;
}

static void run_cast(const hx_call* call, int axis, hx_range range) {
  hx_view v[2];
  hx_walk walk;
  int32_t i;
  hx_dtype from, to;
  hx_operands(call, 1, v);
  from = v[0].dtype;
  to = v[1].dtype;
  if (!hx_walk_begin(&walk, v, 2, axis, range)) return;
  do {
    const uint8_t* x = walk.at[0];
    uint8_t* y = walk.at[1];
    for (i = 0; i < walk.count; ++i, x += walk.step[0], y += walk.step[1]) {
      if (from == HX_FP32 && to == HX_FP32)
        hx_put_f32(y, hx_f32(x));
      else if (to == HX_FP32)
        hx_put_f32(y, (float)hx_whole(x, from));
      else if (to == HX_BOOL)
        *y = (uint8_t)(from != HX_FP32 ? hx_whole(x, from) != 0 : hx_f32(x) != 0);
      else
        hx_put_whole(y, v[1].item, from == HX_FP32 ? truncated(hx_f32(x), to) : hx_whole(x, from));
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_cast = {"cast", 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_cast), 0, run_cast};
