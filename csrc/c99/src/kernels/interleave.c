/* interleave: [N, H, W, G * R * S * C] -> [N, OH, OW, G * C]. The channels of an input pixel are R x S output pixels,
 * group by group. */
#include "../internal.h"

enum { BLOCK = 0, BEGIN = 2, GROUPS = 4, WORDS };

HX_CHECK_FUNCTION hx_status check(const hx_call* call) {
  hx_view in, out;
  int64_t size = 1, groups = hx_attr_i(call, GROUPS);
  uint32_t i;
  if (call->num_inputs != 1 || !hx_input(call, 0, &in)) return hx_refuse(call, "need one input");
  hx_output(call, 0, &out);
  if (in.rank != 4 || out.rank != 4 || in.item != out.item || in.shape[0] != out.shape[0])
    return hx_refuse(call, "shapes: need images of one batch and size of elements");
  if (!hx_is_dense_inside(&in) || !hx_is_dense_inside(&out)) return hx_refuse(call, "channels: need them dense");
  if (groups < 1 || groups > 1 << 20 || out.shape[3] % groups)
    return hx_refuse(call, "groups: need a divisor of the channels");
  for (i = 0; i < 2; ++i) {
    const int64_t block = hx_attr_i(call, BLOCK + i), begin = hx_attr_i(call, BEGIN + i);
    if (block < 1 || block > 1 << 16 || begin < 0 || begin >= block)
      return hx_refuse(call, "block: need begin inside of it");
    size *= block;
    if (out.shape[1 + i] > 0 && (out.shape[1 + i] + begin + block - 1) / block > in.shape[1 + i])
      return hx_refuse(call, "output: got more pixels than there are");
  }
  if (size * out.shape[3] != in.shape[3]) return hx_refuse(call, "channels: need those of whole blocks");
  return HX_OK;
}

static hx_range rows(const hx_call* call, hx_range range) {
  const int32_t block = (int32_t)hx_attr_i(call, BLOCK), begin = (int32_t)hx_attr_i(call, BEGIN);
  hx_range found;
  found.begin = (range.begin + begin) / block;
  found.end = (range.end - 1 + begin) / block + 1;
  return found;
}

static void run(const hx_call* call, int axis, hx_range range) {
  const int32_t rows_of = (int32_t)hx_attr_i(call, BLOCK), columns_of = (int32_t)hx_attr_i(call, BLOCK + 1),
                top = (int32_t)hx_attr_i(call, BEGIN), left = (int32_t)hx_attr_i(call, BEGIN + 1),
                groups = (int32_t)hx_attr_i(call, GROUPS);
  hx_view in, out;
  size_t unit;
  int32_t n, y, x, g;
  hx_input(call, 0, &in);
  hx_output(call, 0, &out);
  unit = (size_t)(out.shape[3] / groups) * (size_t)out.item;
  if (axis != 1) {
    range.begin = 0;
    range.end = out.shape[1];
  }
  for (n = 0; n < out.shape[0]; ++n)
    for (y = range.begin; y < range.end; ++y) {
      const int32_t from_row = (y + top) / rows_of, to_row = out.ring ? y % out.ring : y;
      const uint8_t* from = in.data + (size_t)n * (size_t)in.strides[0] +
                            (size_t)(in.ring ? from_row % in.ring : from_row) * (size_t)in.strides[1];
      uint8_t* to = out.data + (size_t)n * (size_t)out.strides[0] + (size_t)to_row * (size_t)out.strides[1];
      for (x = 0; x < out.shape[2]; ++x)
        for (g = 0; g < groups; ++g) {
          const int32_t pixel = (g * rows_of + (y + top) % rows_of) * columns_of + (x + left) % columns_of;
          memcpy(to + (size_t)x * (size_t)out.strides[2] + (size_t)g * unit,
                 from + (size_t)((x + left) / columns_of) * (size_t)in.strides[2] + (size_t)pixel * unit, unit);
        }
    }
}

const hx_kernel hx_kernel_interleave = {"interleave", WORDS, HX_CUT_ROWS, HX_NEEDS_ROWS, HX_CHECK(check), rows, run};
