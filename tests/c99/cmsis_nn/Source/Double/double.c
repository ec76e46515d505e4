/* What the functions compute by their documentation, pixel by pixel. They write all of their buffer, so that one which
 * something else needs shows, and count the calls, but on a microcontroller, where nothing prints. */
#include <string.h>

#include "arm_nnfunctions.h"

#if defined(__arm__)
static void count(int function) { (void)function; }
#else
#include <stdio.h>
#include <stdlib.h>

static int calls[5];
static const char* const kNames[5] = {"convolve", "depthwise_conv", "avgpool", "max_pool", "elementwise_add"};

static void report(void) {
  int i;
  for (i = 0; i < 5; ++i)
    if (calls[i]) printf("%s %d\n", kNames[i], calls[i]);
}

static void count(int function) {
  static int any;
  if (!any++) atexit(report);
  ++calls[function];
}
#endif

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

/* To nearest, ties up; then a shift to the right to nearest, ties away from 0. */
static int32_t requantized(int32_t value, int32_t multiplier, int32_t shift) {
  const int64_t moved = (int64_t)value * ((int64_t)1 << most(shift, 0)) * multiplier;
  const int64_t high = (moved + ((int64_t)1 << 30)) >> 31;
  const int64_t half = shift < 0 ? (int64_t)1 << (-shift - 1) : 0;
  return (int32_t)(high < 0 ? -((half - high) >> most(-shift, 0)) : (high + half) >> most(-shift, 0));
}

static int spoil(const cmsis_nn_context* ctx, int32_t bytes) {
  if (bytes > 0 && (!ctx->buf || ctx->size < bytes || (uintptr_t)ctx->buf % 4)) return 0;
  if (bytes > 0) memset(ctx->buf, 0x5a, (size_t)bytes);
  return 1;
}

typedef struct {
  const cmsis_nn_dims* in;
  const int8_t* x;
  int32_t y, x0; /* where the window begins */
} at;

/* The element of tap (ky, kx); `outside` where there is none. */
static int32_t element(const at* a, int32_t ky, int32_t kx, int32_t c, int32_t outside) {
  const int32_t y = a->y + ky, x = a->x0 + kx;
  return y < 0 || y >= a->in->h || x < 0 || x >= a->in->w ? outside : a->x[(y * a->in->w + x) * a->in->c + c];
}

static void store(int8_t* to, int32_t sum, int32_t offset, const cmsis_nn_activation* activation) {
  *to = (int8_t)least(most(sum + offset, activation->min), activation->max);
}

int32_t arm_convolve_wrapper_s8_get_buffer_size(const cmsis_nn_conv_params* conv_params,
                                                const cmsis_nn_dims* input_dims, const cmsis_nn_dims* filter_dims,
                                                const cmsis_nn_dims* output_dims) {
  const cmsis_nn_conv_params* p = conv_params;
  (void)output_dims;
  if (filter_dims->h == 1 && filter_dims->w == 1 && !p->padding.w && !p->padding.h) return 0;
  return 4 * ((filter_dims->w * filter_dims->h * input_dims->c + 3) / 4 * 4);
}

arm_cmsis_nn_status arm_convolve_wrapper_s8(const cmsis_nn_context* ctx, const cmsis_nn_conv_params* conv_params,
                                            const cmsis_nn_per_channel_quant_params* quant_params,
                                            const cmsis_nn_dims* input_dims, const int8_t* input_data,
                                            const cmsis_nn_dims* filter_dims, const int8_t* filter_data,
                                            const cmsis_nn_dims* bias_dims, const int32_t* bias_data,
                                            const cmsis_nn_dims* output_dims, int8_t* output_data) {
  const cmsis_nn_conv_params* p = conv_params;
  const int32_t zero = -p->input_offset;
  int32_t n, y, x, o, ky, kx, c;
  (void)bias_dims;
  count(0);
  if (!spoil(ctx, arm_convolve_wrapper_s8_get_buffer_size(p, input_dims, filter_dims, output_dims)))
    return ARM_CMSIS_NN_ARG_ERROR;
  for (n = 0; n < input_dims->n; ++n, input_data += input_dims->h * input_dims->w * input_dims->c)
    for (y = 0; y < output_dims->h; ++y)
      for (x = 0; x < output_dims->w; ++x)
        for (o = 0; o < output_dims->c; ++o) {
          const int8_t* w = filter_data + o * filter_dims->h * filter_dims->w * filter_dims->c;
          at a = {input_dims, input_data, y * p->stride.h - p->padding.h, x * p->stride.w - p->padding.w};
          int32_t sum = bias_data ? bias_data[o] : 0;
          for (ky = 0; ky < filter_dims->h; ++ky)
            for (kx = 0; kx < filter_dims->w; ++kx)
              for (c = 0; c < filter_dims->c; ++c, ++w)
                sum += (element(&a, ky * p->dilation.h, kx * p->dilation.w, c, zero) - zero) * *w;
          store(output_data++, requantized(sum, quant_params->multiplier[o], quant_params->shift[o]), p->output_offset,
                &p->activation);
        }
  return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size(const cmsis_nn_dw_conv_params* dw_conv_params,
                                                      const cmsis_nn_dims* input_dims, const cmsis_nn_dims* filter_dims,
                                                      const cmsis_nn_dims* output_dims) {
  const cmsis_nn_dw_conv_params* p = dw_conv_params;
  if (input_dims->c != output_dims->c || p->dilation.w != 1 || p->dilation.h != 1) return 0;
  if (filter_dims->w == 3 && filter_dims->h == 3 && p->padding.h <= 1 && p->padding.w <= 1) return 0;
  return 2 * input_dims->c * filter_dims->w * filter_dims->h;
}

arm_cmsis_nn_status arm_depthwise_conv_wrapper_s8(const cmsis_nn_context* ctx,
                                                  const cmsis_nn_dw_conv_params* dw_conv_params,
                                                  const cmsis_nn_per_channel_quant_params* quant_params,
                                                  const cmsis_nn_dims* input_dims, const int8_t* input_data,
                                                  const cmsis_nn_dims* filter_dims, const int8_t* filter_data,
                                                  const cmsis_nn_dims* bias_dims, const int32_t* bias_data,
                                                  const cmsis_nn_dims* output_dims, int8_t* output_data) {
  const cmsis_nn_dw_conv_params* p = dw_conv_params;
  const int32_t zero = -p->input_offset;
  int32_t y, x, o, ky, kx;
  (void)bias_dims;
  count(1);
  if (!spoil(ctx, arm_depthwise_conv_wrapper_s8_get_buffer_size(p, input_dims, filter_dims, output_dims)) ||
      input_dims->n != 1 || filter_dims->c != output_dims->c || p->ch_mult * input_dims->c != output_dims->c)
    return ARM_CMSIS_NN_ARG_ERROR;
  for (y = 0; y < output_dims->h; ++y)
    for (x = 0; x < output_dims->w; ++x)
      for (o = 0; o < output_dims->c; ++o) {
        at a = {input_dims, input_data, y * p->stride.h - p->padding.h, x * p->stride.w - p->padding.w};
        int32_t sum = bias_data ? bias_data[o] : 0;
        for (ky = 0; ky < filter_dims->h; ++ky)
          for (kx = 0; kx < filter_dims->w; ++kx)
            sum += (element(&a, ky * p->dilation.h, kx * p->dilation.w, o / p->ch_mult, zero) - zero) *
                   filter_data[(ky * filter_dims->w + kx) * filter_dims->c + o];
        store(output_data++, requantized(sum, quant_params->multiplier[o], quant_params->shift[o]), p->output_offset,
              &p->activation);
      }
  return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_avgpool_s8_get_buffer_size(const int32_t output_x, const int32_t ch_src) {
  (void)output_x;
  return 4 * ch_src;
}

static arm_cmsis_nn_status pool(const cmsis_nn_pool_params* p, const cmsis_nn_dims* in, const int8_t* input,
                                const cmsis_nn_dims* filter, const cmsis_nn_dims* out, int8_t* to, int mean) {
  int32_t y, x, c, ky, kx;
  for (y = 0; y < out->h; ++y)
    for (x = 0; x < out->w; ++x)
      for (c = 0; c < in->c; ++c) {
        at a = {in, input, y * p->stride.h - p->padding.h, x * p->stride.w - p->padding.w};
        int32_t sum = 0, best = -128, taps = 0;
        for (ky = 0; ky < filter->h; ++ky)
          for (kx = 0; kx < filter->w; ++kx) {
            const int32_t value = element(&a, ky, kx, c, 1000);
            if (value == 1000) continue;
            sum += value;
            best = most(best, value);
            ++taps;
          }
        if (!taps) return ARM_CMSIS_NN_ARG_ERROR;
        if (mean) best = (sum > 0 ? sum + taps / 2 : sum - taps / 2) / taps;
        store(to++, best, 0, &p->activation);
      }
  return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_avgpool_s8(const cmsis_nn_context* ctx, const cmsis_nn_pool_params* pool_params,
                                   const cmsis_nn_dims* input_dims, const int8_t* input_data,
                                   const cmsis_nn_dims* filter_dims, const cmsis_nn_dims* output_dims,
                                   int8_t* output_data) {
  count(2);
  if (!spoil(ctx, arm_avgpool_s8_get_buffer_size(output_dims->w, input_dims->c))) return ARM_CMSIS_NN_ARG_ERROR;
  return pool(pool_params, input_dims, input_data, filter_dims, output_dims, output_data, 1);
}

arm_cmsis_nn_status arm_max_pool_s8(const cmsis_nn_context* ctx, const cmsis_nn_pool_params* pool_params,
                                    const cmsis_nn_dims* input_dims, const int8_t* input_data,
                                    const cmsis_nn_dims* filter_dims, const cmsis_nn_dims* output_dims,
                                    int8_t* output_data) {
  (void)ctx;
  count(3);
  return pool(pool_params, input_dims, input_data, filter_dims, output_dims, output_data, 0);
}

arm_cmsis_nn_status arm_elementwise_add_s8(
    const int8_t* input_1_vect, const int8_t* input_2_vect, const int32_t input_1_offset, const int32_t input_1_mult,
    const int32_t input_1_shift, const int32_t input_2_offset, const int32_t input_2_mult, const int32_t input_2_shift,
    const int32_t left_shift, int8_t* output, const int32_t out_offset, const int32_t out_mult, const int32_t out_shift,
    const int32_t out_activation_min, const int32_t out_activation_max, const int32_t block_size) {
  const cmsis_nn_activation activation = {out_activation_min, out_activation_max};
  int32_t i;
  count(4);
  for (i = 0; i < block_size; ++i) {
    const int32_t a = requantized((input_1_vect[i] + input_1_offset) * (1 << left_shift), input_1_mult, input_1_shift);
    const int32_t b = requantized((input_2_vect[i] + input_2_offset) * (1 << left_shift), input_2_mult, input_2_shift);
    store(&output[i], requantized(a + b, out_mult, out_shift), out_offset, &activation);
  }
  return ARM_CMSIS_NN_SUCCESS;
}
