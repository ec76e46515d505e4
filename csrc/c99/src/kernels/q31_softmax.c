/* q31_softmax: softmax of bytes along an axis, by a table of e^-d in Q0.31 for each difference d of bytes. */
#include "../internal.h"

#define SUM_BITS 12 /* integer bits in the fixed-point sum of a line */

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view v[3];
  const int32_t axis = hx_attr_n(call, 0);
  if (!hx_operands(call, 2, v)) return hx_refuse(call, "need x and a table");
  if (!hx_is_byte(v[0].dtype) || !hx_is(v[1].dtype, HX_INT32) ||
      (!hx_is_byte(v[2].dtype) && !hx_is(v[2].dtype, HX_INT16)))
    return hx_refuse(call, "dtype: need 8 bits, int32 for the table, and 8 bits or int16 for the output");
  if (v[1].rank != 1 || v[1].shape[0] != 256 || v[1].strides[0] != 4) return hx_refuse(call, "table: need (256,)");
  if (!hx_same_shape(&v[0], &v[2])) return hx_refuse(call, "output: need the input's shape");
  if (v[0].ring || v[1].ring || v[2].ring) return hx_refuse(call, "got a ring, need whole tensors");
  return axis < -v[0].rank || axis >= v[0].rank ? hx_refuse(call, "axis: need one of the input's") : HX_OK;
}

typedef struct line {
  const uint8_t *x, *powers;
  uint8_t* to;
  size_t x_step, to_step;
  int32_t n;
  uint8_t flip; /* XOR with `flip` makes unsigned bytes of the same order */
  hx_dtype dtype;
} line;

static int64_t high_product(int64_t x, int64_t y) {
  const int64_t product = x * y + ((int64_t)1 << 30);
  return product < 0 ? -((-product + INT32_MAX) >> 31) : product >> 31;
}

static int64_t saturated(int64_t x) { return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x; }

/* Returns 2 / (1 + half) - 1 in Q0.31, by three steps of Newton's method. */
static int64_t reciprocal(int64_t half) {
  int64_t y = high_product(half, -1010580540) + 1515870810;
  int i;
  for (i = 0; i < 3; ++i) y += saturated(4 * high_product(y, ((int64_t)1 << 29) - high_product(half, y)));
  return saturated(2 * y);
}

static uint32_t power_of(const line* l, const uint8_t* x, int32_t top) {
  const int32_t power = hx_signed(hx_u32(l->powers + 4 * (size_t)(top - (*x ^ l->flip))));
  return power < 0 ? 0 : (uint32_t)power;
}

static void run_line(const line* l) {
  const int32_t item_bits = hx_is(l->dtype, HX_INT16) ? 16 : 8, steps = 1 << item_bits,
                least = hx_is(l->dtype, HX_UINT8) ? 0 : -(steps / 2);
  const uint8_t* x = l->x;
  uint8_t* to = l->to;
  uint32_t sum = 0;
  int32_t top = 0, bits = 0, shift, i;
  int64_t share;
  for (i = 0; i < l->n; ++i, x += l->x_step) top = hx_max(top, *x ^ l->flip);
  for (i = 0, x = l->x; i < l->n; ++i, x += l->x_step) {
    const uint32_t part = (power_of(l, x, top) + (1u << (SUM_BITS - 1))) >> SUM_BITS;
    sum = part > UINT32_MAX - sum ? UINT32_MAX : sum + part;
  }
  if (sum == 0) sum = 1;
  while (bits < 32 && sum >> bits) ++bits;
  share = reciprocal((int64_t)((uint64_t)sum << (32 - bits) >> 1));
  shift = hx_max(bits - (32 - SUM_BITS) + 31 - item_bits, 0);
  for (i = 0, x = l->x; i < l->n; ++i, x += l->x_step, to += l->to_step) {
    const int64_t product = high_product(power_of(l, x, top), share);
    const int64_t result = (product + ((((int64_t)1 << shift) >> 1))) >> shift;
    const int32_t stored = (int32_t)(result < steps ? result : steps - 1) + least;
    to[0] = (uint8_t)stored;
    if (item_bits == 16) to[1] = (uint8_t)((uint32_t)stored >> 8);
  }
}

static void run(const hx_call* call, int axis, hx_range range) {
  hx_view v[3];
  hx_walk walk;
  line l;
  int along;
  int32_t i;
  (void)axis;
  (void)range;
  hx_operands(call, 2, v);
  along = hx_attr_n(call, 0) < 0 ? hx_attr_n(call, 0) + v[0].rank : hx_attr_n(call, 0);
  l.n = v[0].shape[along];
  if (l.n == 0) return;
  l.powers = v[1].data;
  l.x_step = (size_t)v[0].strides[along];
  l.to_step = (size_t)v[2].strides[along];
  l.flip = hx_is_signed(v[0].dtype) ? 0x80 : 0;
  l.dtype = v[2].dtype;
  v[0].shape[along] = v[2].shape[along] = 1;
  v[1] = v[2];
  if (!hx_walk_begin(&walk, v, 2, -1, range)) return;
  do {
    for (i = 0; i < walk.count; ++i) {
      l.x = walk.at[0] + (size_t)i * (size_t)walk.step[0];
      l.to = walk.at[1] + (size_t)i * (size_t)walk.step[1];
      run_line(&l);
    }
  } while (hx_walk_next(&walk));
}

const hx_kernel hx_kernel_q31_softmax = {"q31_softmax", 1, 0, HX_NEEDS_ALL, HX_CHECK(check), 0, run};
