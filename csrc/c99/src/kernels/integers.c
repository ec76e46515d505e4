/* Arithmetic of integers, as in csrc/cpu/elementwise/elementwise_integer.cpp: results wrap, and a division by zero
 * gives 0. The kernels of elementwise.c call hx_run_integers() for integer operands. The bitwise kernels always call
 * hx_run_integers(). */
#include "../internal.h"

#if !defined(HX_NO_INTEGERS)

static uint64_t negative(int64_t x) { return 0 - (uint64_t)x; }

static int64_t quotient(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? hx_wrapped(negative(a)) : a / b; }

static int64_t rest(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/* True if the exact quotient is less than the truncated one. */
static int rounds_away(int64_t a, int64_t b) { return rest(a, b) != 0 && (a < 0) != (b < 0); }

/* Returns base^exponent. For a negative exponent the fraction is truncated towards zero; 0 to a negative power is 0. */
static int64_t power(int64_t base, int64_t exponent) {
  uint64_t result = 1, factor = (uint64_t)base;
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  for (; exponent; exponent >>= 1, factor *= factor)
    if (exponent & 1) result *= factor;
  return hx_wrapped(result);
}

/* Shifts right, rounding towards minus infinity, also for negative numbers. */
static int64_t halved(int64_t x, int64_t times) { return x < 0 ? ~(~x >> times) : x >> times; }

static int64_t computed(hx_integer_op op, int64_t a, int64_t b, int64_t bits) {
  const uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (op) {
    case HX_ADD:
      return hx_wrapped(x + y);
    case HX_SUB:
      return hx_wrapped(x - y);
    case HX_MUL:
      return hx_wrapped(x * y);
    case HX_REAL_DIV:
      return quotient(a, b);
    case HX_FLOOR_DIV:
      return hx_wrapped((uint64_t)quotient(a, b) - (uint64_t)rounds_away(a, b));
    case HX_MOD:
      return rest(a, b) + (rounds_away(a, b) ? b : 0);
    case HX_FMOD:
      return rest(a, b);
    case HX_MAXIMUM:
      return a < b ? b : a;
    case HX_MINIMUM:
      return b < a ? b : a;
    case HX_POW:
      return power(a, b);
    case HX_PRELU:
      return a < 0 ? hx_wrapped(x * y) : a;
    case HX_BITWISE_AND:
      return hx_wrapped(x & y);
    case HX_BITWISE_OR:
      return hx_wrapped(x | y);
    case HX_BITWISE_XOR:
      return hx_wrapped(x ^ y);
    case HX_SHIFT_LEFT:
      return y < (uint64_t)bits ? hx_wrapped(x << y) : 0;
    case HX_SHIFT_RIGHT:
      return y < (uint64_t)bits ? halved(a, b) : a < 0 ? -1 : 0;
    case HX_ABS:
      return a < 0 ? hx_wrapped(negative(a)) : a;
    case HX_NEG:
      return hx_wrapped(negative(a));
    case HX_SIGN:
      return (a > 0) - (a < 0);
    case HX_RELU:
      return a < 0 ? 0 : a;
    case HX_SQUARE:
      return hx_wrapped(x * x);
    default:
      return a;
  }
}

/* Returns a bound of clip: the attribute rounded into the range, or the end of the dtype's range if the attribute is
 * beyond it. */
static int64_t bound(const hx_call* call, uint32_t word, hx_dtype dtype) {
  const double value = hx_attr_d(call, word);
  const int64_t low = hx_end_of(dtype, 1), high = hx_end_of(dtype, 0);
  int64_t whole;
  if (value != value) return word ? high : low;
  if (value <= (double)low) return low;
  if (value >= (double)high) return high;
  whole = (int64_t)value;
  return word ? whole - ((double)whole > value) : whole + ((double)whole < value);
}

hx_status hx_check_integers(const hx_call* call, uint32_t num) {
  hx_view v[3];
  uint32_t i;
  if (!hx_operands(call, num, v)) return hx_refuse(call, "inputs: got another number, or an absent one");
  for (i = 0; i < num; ++i) {
    if (!hx_is_whole(v[i].dtype) || hx_is(v[i].dtype, HX_BOOL))
      return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name,
                     "dtype: need fp32 or integers other than uint64");
    if (v[i].dtype != v[num].dtype) return hx_refuse(call, "dtypes: need one of all operands");
    if (!hx_broadcasts(&v[i], &v[num])) return hx_refuse(call, "shapes do not broadcast");
  }
  if (call->kernel->attrs_words == HX_EPILOGUE_WORDS && hx_attr_i(call, 0))
    return hx_refuse(call, "epilogue: need none for integers");
  return HX_OK;
}

void hx_run_integers(const hx_call* call, int axis, hx_range range, hx_integer_op op) {
  hx_view v[3];
  hx_walk walk;
  hx_dtype dtype;
  int64_t low = 0, high = 0;
  int32_t i, item;
  const int num = (int)call->num_inputs;
  hx_operands(call, call->num_inputs, v);
  dtype = v[num].dtype;
  item = v[num].item;
  if (op == HX_CLIP) {
    low = bound(call, 0, dtype);
    high = bound(call, 1, dtype);
  }
  if (!hx_walk_begin(&walk, v, num + 1, axis, range)) return;
  do {
    const uint8_t *a = walk.at[0], *b = walk.at[num - 1];
    uint8_t* to = walk.at[num];
    for (i = 0; i < walk.count; ++i, a += walk.step[0], b += walk.step[num - 1], to += walk.step[num]) {
      const int64_t x = hx_whole(a, dtype);
      hx_put_whole(to, item,
                   op == HX_CLIP ? (x < low    ? low
                                    : x > high ? high
                                               : x)
                                 : computed(op, x, hx_whole(b, dtype), 8 * (int64_t)item));
    }
  } while (hx_walk_next(&walk));
}

/* ---- bits ---- */

HX_CHECK_FUNCTION hx_status check_bits(const hx_call* call) { return hx_check_integers(call, 2); }

#define OF_BITS(name, op)                                                                                           \
  static void run_##name(const hx_call* call, int axis, hx_range range) { hx_run_integers(call, axis, range, op); } \
  const hx_kernel hx_kernel_##name = {#name, 0, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_bits), 0, run_##name};

OF_BITS(bitwise_and, HX_BITWISE_AND)
OF_BITS(bitwise_or, HX_BITWISE_OR)
OF_BITS(bitwise_xor, HX_BITWISE_XOR)
OF_BITS(shift_left, HX_SHIFT_LEFT)
OF_BITS(shift_right, HX_SHIFT_RIGHT)

/* ---- reductions: sums wrap; a mean is a 64-bit sum, divided and truncated ---- */

hx_status hx_check_integer_reduce(const hx_call* call) {
  hx_view v[2];
  hx_operands(call, 1, v);
  if (v[0].dtype != v[1].dtype) return hx_refuse(call, "output: need the input's dtype");
  if (!hx_is_whole(v[0].dtype) || hx_is(v[0].dtype, HX_BOOL))
    return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, call->kernel->name,
                   "dtype: need fp32 or integers other than uint64");
  return v[0].ring || v[1].ring ? hx_refuse(call, "got a ring, need whole tensors") : HX_OK;
}

static HX_NOINLINE int64_t reduced(const hx_view* view, hx_integer_op op, int64_t first) {
  const hx_range none = {0, 0};
  hx_walk walk;
  int32_t i;
  int64_t total = first;
  if (!hx_walk_begin(&walk, view, 1, -1, none)) return first;
  do {
    const uint8_t* at = walk.at[0];
    for (i = 0; i < walk.count; ++i, at += walk.step[0]) total = computed(op, total, hx_whole(at, view->dtype), 64);
  } while (hx_walk_next(&walk));
  return total;
}

void hx_run_integer_reduce(hx_integer_op op, int is_mean, const hx_view* kept, hx_view* inner) {
  const hx_range none = {0, 0};
  hx_walk outer;
  const hx_dtype dtype = inner->dtype;
  const int32_t item = inner->item, count = hx_size(inner);
  int32_t i;
  int64_t first = op == HX_MUL;
  if (op == HX_MAXIMUM || op == HX_MINIMUM) first = hx_end_of(dtype, op == HX_MAXIMUM);
  if (!hx_walk_begin(&outer, kept, 2, -1, none)) return;
  do {
    for (i = 0; i < outer.count; ++i) {
      int64_t total;
      inner->data = outer.at[0] + (size_t)i * (size_t)outer.step[0];
      total = reduced(inner, op, first);
      if (is_mean) total = count ? total / count : 0;
      hx_put_whole(outer.at[1] + (size_t)i * (size_t)outer.step[1], item, total);
    }
  } while (hx_walk_next(&outer));
}

#endif
