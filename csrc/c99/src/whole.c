/* Reads and writes integers of any dtype except uint64 as int64. */
#include "internal.h"

int hx_is_whole(hx_dtype dtype) {
  return hx_has_dtype(dtype) && dtype != HX_FP16 && dtype != HX_FP32 && dtype != HX_FP64 && dtype != HX_UINT64;
}

int64_t hx_whole(const uint8_t* at, hx_dtype dtype) {
  switch (dtype) {
    case HX_BOOL:
      return *at != 0;
    case HX_INT8:
      return hx_i8(at);
    case HX_UINT8:
      return *at;
    case HX_INT16:
      return (int64_t)(at[0] | at[1] << 8) - (at[1] & 0x80 ? 65536 : 0);
    case HX_UINT16:
      return at[0] | at[1] << 8;
    case HX_INT32:
      return hx_signed(hx_u32(at));
    case HX_UINT32:
      return hx_u32(at);
    default:
      return hx_i64(at);
  }
}

void hx_put_whole(uint8_t* to, int32_t item, int64_t value) {
  const uint64_t bits = (uint64_t)value;
  int32_t i;
  for (i = 0; i < item; ++i) to[i] = (uint8_t)(bits >> 8 * i);
}

int64_t hx_wrapped(uint64_t bits) {
  int64_t value;
  HX_COPY(&value, &bits, 8);
  return value;
}

static const int8_t kBits[HX_DTYPES] = {1, -8, 8, -16, 16, 0, -32, 32, 0, -64, 0, 0}; /* negative: signed */

int64_t hx_end_of(hx_dtype dtype, int is_low) {
  const int bits = kBits[dtype];
  if (bits < 0) {
    const int64_t high = hx_wrapped(((uint64_t)1 << (-bits - 1)) - 1);
    return is_low ? -high - 1 : high;
  }
  return is_low ? 0 : hx_wrapped(((uint64_t)1 << bits) - 1);
}

int hx_attr_element(const hx_call* call, uint32_t i, hx_dtype dtype, uint8_t* to) {
  const double value = hx_attr_d(call, i);
  int64_t low, high;
  if (dtype == HX_FP32) {
    hx_put_f32(to, hx_attr_f(call, i));
    return 1;
  }
  if (hx_is(dtype, HX_BOOL)) {
    *to = value != 0;
    return 1;
  }
  low = hx_end_of(dtype, 1);
  high = hx_end_of(dtype, 0);
  if (!(value > (double)low - 1 || value == (double)low))
    return 0; /* for int64, low - 1 rounds to the same double as low */
  if (value >= (double)high + (hx_is(dtype, HX_INT64) ? 0 : 1)) return 0;
  hx_put_whole(to, (kBits[dtype] < 0 ? -kBits[dtype] : kBits[dtype]) / 8, (int64_t)value);
  return 1;
}
