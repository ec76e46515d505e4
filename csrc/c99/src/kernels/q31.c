/* q31_add, q31_mul: two 8-bit tensors, broadcast; q31_mean: the mean of 8-bit integers over some axes. The integers may
 * come as int32 sums; `count`: the integers of each result. */
#include "q31.h"
#include "reduce.h"

#define SUM_SHIFT 20 /* fraction bits of scaled operands */

typedef struct multiplier {
  int32_t factor, left, right;
} multiplier;

HX_CHECK_FUNCTION hx_status check_multiplier(const hx_call* call, uint32_t word) {
  const int32_t shift = hx_attr_n(call, word + 1);
  if (hx_attr_n(call, word) < 0 || shift < HX_LEAST_SHIFT || shift > HX_MOST_SHIFT)
    return hx_refuse(call, "multiplier or shift: need 0 to 2^31 - 1, and -31 to 30");
  return HX_OK;
}

static multiplier read_multiplier(const hx_call* call, uint32_t word) {
  const int32_t shift = hx_attr_n(call, word + 1);
  multiplier m;
  m.factor = hx_attr_n(call, word);
  m.left = hx_max(shift, 0);
  m.right = hx_max(-shift, 0);
  return m;
}

static int32_t apply(const multiplier* m, int32_t x) { return hx_rescaled(x, m->factor, m->left, m->right); }

hx_status hx_check_clamp(const hx_call* call, uint32_t word) {
  const int64_t low = hx_attr_i(call, word + 1), high = hx_attr_i(call, word + 2);
  hx_view out;
  int64_t least;
  hx_output(call, 0, &out);
  least = hx_is_signed(out.dtype) ? -128 : 0;
  if (!hx_holds(out.dtype, hx_attr_n(call, word))) return hx_refuse(call, hx_bad_zero);
  if ((low > least ? low : least) > (high < least + 255 ? high : least + 255))
    return hx_refuse(call, "low, high: need a range of the output");
  return HX_OK;
}

void hx_read_clamp(const hx_call* call, uint32_t word, hx_dtype dtype, int32_t* zero, int32_t* low, int32_t* high) {
  const int64_t least = hx_is_signed(dtype) ? -128 : 0, from = hx_attr_i(call, word + 1),
                to = hx_attr_i(call, word + 2);
  *zero = (int32_t)hx_attr_i(call, word);
  *low = (int32_t)(from > least ? from : least);
  *high = (int32_t)(to < least + 255 ? to : least + 255);
}

static uint8_t stored(int32_t x, int32_t zero, int32_t low, int32_t high) {
  return (uint8_t)(hx_min(hx_max(x, low - zero), high - zero) + zero);
}

/* ---- add, mul ---- */

enum { ADD_X_ZERO, ADD_X, ADD_Y_ZERO = 3, ADD_Y, ADD_OUTPUT = 6, ADD_CLAMP = 8, ADD_WORDS = 11 };
enum { MUL_X_ZERO, MUL_Y_ZERO, MUL_OUTPUT, MUL_CLAMP = 4, MUL_WORDS = 7 };

HX_CHECK_FUNCTION hx_status check_add(const hx_call* call) {
  hx_status status = hx_check_bytes(call, ADD_X_ZERO, ADD_Y_ZERO, ADD_CLAMP);
  if (status == HX_OK) status = check_multiplier(call, ADD_X);
  if (status == HX_OK) status = check_multiplier(call, ADD_Y);
  if (status == HX_OK) status = check_multiplier(call, ADD_OUTPUT);
  return status == HX_OK ? hx_check_clamp(call, ADD_CLAMP) : status;
}

HX_CHECK_FUNCTION hx_status check_mul(const hx_call* call) {
  hx_status status = hx_check_bytes(call, MUL_X_ZERO, MUL_Y_ZERO, MUL_CLAMP);
  if (status == HX_OK) status = check_multiplier(call, MUL_OUTPUT);
  return status == HX_OK ? hx_check_clamp(call, MUL_CLAMP) : status;
}

static inline void run_two(const hx_call* call, int axis, hx_range range, int adds) {
  const uint32_t clamp_word = adds ? ADD_CLAMP : MUL_CLAMP;
  const multiplier first = read_multiplier(call, ADD_X), second = read_multiplier(call, ADD_Y),
                   output = read_multiplier(call, adds ? ADD_OUTPUT : MUL_OUTPUT);
  const int32_t x_zero = (int32_t)hx_attr_i(call, 0), y_zero = (int32_t)hx_attr_i(call, adds ? ADD_Y_ZERO : MUL_Y_ZERO);
  int32_t zero, low, high, i;
  int x_signed, y_signed;
  hx_view v[3];
  hx_walk walk;
  hx_operands(call, 2, v);
  x_signed = hx_is_signed(v[0].dtype);
  y_signed = hx_is_signed(v[1].dtype);
  hx_read_clamp(call, clamp_word, v[2].dtype, &zero, &low, &high);
  if (!hx_walk_begin(&walk, v, 3, axis, range)) return;
  do {
    const uint8_t *x = walk.at[0], *y = walk.at[1];
    uint8_t* to = walk.at[2];
    for (i = 0; i < walk.count; ++i, x += walk.step[0], y += walk.step[1], to += walk.step[2]) {
      const int32_t a = (x_signed ? hx_i8(x) : *x) - x_zero, b = (y_signed ? hx_i8(y) : *y) - y_zero;
      int32_t total = a * b;
      if (adds) {
        const int64_t sum = (int64_t)apply(&first, a * (1 << SUM_SHIFT)) + apply(&second, b * (1 << SUM_SHIFT));
        total = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : (int32_t)sum;
      }
      *to = stored(apply(&output, total), zero, low, high);
    }
  } while (hx_walk_next(&walk));
}

static void run_add(const hx_call* call, int axis, hx_range range) { run_two(call, axis, range, 1); }
static void run_mul(const hx_call* call, int axis, hx_range range) { run_two(call, axis, range, 0); }

/* ---- mean ---- */

enum { COUNT = HX_REDUCE_WORDS, X_ZERO, OUTPUT, OUTPUT_ZERO = X_ZERO + 3, MEAN_WORDS };

HX_CHECK_FUNCTION hx_status check_mean(const hx_call* call) {
  const hx_status status = hx_check_byte_mean(call, COUNT, X_ZERO, OUTPUT_ZERO);
  return status == HX_OK ? check_multiplier(call, OUTPUT) : status;
}

static uint8_t mean_of(const hx_call* call, int64_t sum, hx_dtype dtype) {
  const multiplier output = read_multiplier(call, OUTPUT);
  const uint32_t zeros = (uint32_t)(hx_attr_i(call, COUNT) * hx_attr_i(call, X_ZERO));
  const int32_t least = hx_is_signed(dtype) ? -128 : 0;
  return stored(apply(&output, hx_signed((uint32_t)sum - zeros)), (int32_t)hx_attr_i(call, OUTPUT_ZERO), least,
                least + 255);
}

static void run_mean(const hx_call* call, int axis, hx_range range) {
  (void)axis;
  (void)range;
  hx_run_byte_mean(call, mean_of);
}

const hx_kernel hx_kernel_q31_add = {"q31_add", ADD_WORDS, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_add), 0, run_add};
const hx_kernel hx_kernel_q31_mul = {"q31_mul", MUL_WORDS, HX_CUT_ALL, HX_NEEDS_SAME, HX_CHECK(check_mul), 0, run_mul};
const hx_kernel hx_kernel_q31_mean = {"q31_mean", MEAN_WORDS, 0, HX_NEEDS_ALL, HX_CHECK(check_mean), 0, run_mean};
