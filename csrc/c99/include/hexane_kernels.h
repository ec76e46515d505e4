/* Every kernel and activation of the runtime, by their names in plans. The kernel "unary" applies an activation. A
 * program lists the kernels and activations that it needs in tables that end with null. The linker drops all other
 * kernels and activations. */
#ifndef HEXANE_KERNELS_H_
#define HEXANE_KERNELS_H_

#include "hexane.h"

#define HX_EACH_KERNEL(KERNEL) \
  KERNEL(add)                  \
  KERNEL(argsort)              \
  KERNEL(avg_pool)             \
  KERNEL(bitwise_and)          \
  KERNEL(bitwise_or)           \
  KERNEL(bitwise_xor)          \
  KERNEL(cast)                 \
  KERNEL(cond)                 \
  KERNEL(conv)                 \
  KERNEL(conv_transpose)       \
  KERNEL(copy)                 \
  KERNEL(cumsum)               \
  KERNEL(dequantize)           \
  KERNEL(encoded_conv)         \
  KERNEL(encoded_matmul)       \
  KERNEL(equal)                \
  KERNEL(floor_div)            \
  KERNEL(fmod)                 \
  KERNEL(gather)               \
  KERNEL(gather_along_axis)    \
  KERNEL(gather_nd)            \
  KERNEL(greater)              \
  KERNEL(greater_equal)        \
  KERNEL(interleave)           \
  KERNEL(layer_norm)           \
  KERNEL(less)                 \
  KERNEL(less_equal)           \
  KERNEL(logical_and)          \
  KERNEL(logical_not)          \
  KERNEL(logical_or)           \
  KERNEL(logical_xor)          \
  KERNEL(lookup)               \
  KERNEL(loop)                 \
  KERNEL(matmul)               \
  KERNEL(max_pool)             \
  KERNEL(maximum)              \
  KERNEL(minimum)              \
  KERNEL(mod)                  \
  KERNEL(mul)                  \
  KERNEL(not_equal)            \
  KERNEL(one_hot)              \
  KERNEL(pad)                  \
  KERNEL(pow)                  \
  KERNEL(prelu)                \
  KERNEL(q31_add)              \
  KERNEL(q31_avg_pool)         \
  KERNEL(q31_conv)             \
  KERNEL(q31_matmul)           \
  KERNEL(q31_mean)             \
  KERNEL(q31_mul)              \
  KERNEL(q31_softmax)          \
  KERNEL(quantize)             \
  KERNEL(quantize_by_range)    \
  KERNEL(quantized_add)        \
  KERNEL(quantized_conv)       \
  KERNEL(quantized_matmul)     \
  KERNEL(quantized_mean)       \
  KERNEL(real_div)             \
  KERNEL(recurrent)            \
  KERNEL(reduce_argmax)        \
  KERNEL(reduce_argmin)        \
  KERNEL(reduce_max)           \
  KERNEL(reduce_mean)          \
  KERNEL(reduce_min)           \
  KERNEL(reduce_prod)          \
  KERNEL(reduce_sum)           \
  KERNEL(reduce_sum_square)    \
  KERNEL(resize_linear)        \
  KERNEL(resize_nearest)       \
  KERNEL(reverse)              \
  KERNEL(rms_norm)             \
  KERNEL(running_reduce)       \
  KERNEL(running_sum)          \
  KERNEL(scatter_along_axis)   \
  KERNEL(scatter_nd)           \
  KERNEL(select)               \
  KERNEL(shift_left)           \
  KERNEL(shift_right)          \
  KERNEL(softmax)              \
  KERNEL(sub)                  \
  KERNEL(unary)                \
  KERNEL(write_slice)

#define HX_EACH_ACTIVATION(ACTIVATION) \
  ACTIVATION(abs)                      \
  ACTIVATION(ceil)                     \
  ACTIVATION(celu)                     \
  ACTIVATION(clip)                     \
  ACTIVATION(cos)                      \
  ACTIVATION(cosh)                     \
  ACTIVATION(elu)                      \
  ACTIVATION(erf)                      \
  ACTIVATION(exp)                      \
  ACTIVATION(exp2)                     \
  ACTIVATION(floor)                    \
  ACTIVATION(gelu)                     \
  ACTIVATION(gelu_tanh)                \
  ACTIVATION(hard_swish)               \
  ACTIVATION(inverse)                  \
  ACTIVATION(leaky_relu)               \
  ACTIVATION(linear_activation)        \
  ACTIVATION(log)                      \
  ACTIVATION(neg)                      \
  ACTIVATION(relu)                     \
  ACTIVATION(relu6)                    \
  ACTIVATION(round)                    \
  ACTIVATION(rsqrt)                    \
  ACTIVATION(scaled_tanh)              \
  ACTIVATION(selu)                     \
  ACTIVATION(sigmoid)                  \
  ACTIVATION(sigmoid_hard)             \
  ACTIVATION(sign)                     \
  ACTIVATION(silu)                     \
  ACTIVATION(sin)                      \
  ACTIVATION(sinh)                     \
  ACTIVATION(softplus)                 \
  ACTIVATION(softsign)                 \
  ACTIVATION(sqrt)                     \
  ACTIVATION(square)                   \
  ACTIVATION(tan)                      \
  ACTIVATION(tanh)                     \
  ACTIVATION(threshold)                \
  ACTIVATION(thresholded_relu)

#define HX_DECLARE_KERNEL(name) extern const hx_kernel hx_kernel_##name;
#define HX_DECLARE_ACTIVATION(name) extern const hx_activation hx_activation_##name;
HX_EACH_KERNEL(HX_DECLARE_KERNEL)
HX_EACH_ACTIVATION(HX_DECLARE_ACTIVATION)
extern const hx_codec hx_codec_lz4;

#endif
