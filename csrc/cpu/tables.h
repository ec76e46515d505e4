// The kernel tables. Each file of kernels defines one function, named as in the list with the suffix `_table`. The
// function returns the kernels for the best instruction set of this machine.
#pragma once

#include "cpu/kernel.h"

// clang-format off
#define HEXANE_KERNEL_TABLES(X) \
  X(activation) X(arg_reduce) X(attention) X(attention_gradient) X(binary) X(cast) X(channel_norm) X(col2im) X(conv) X(conv_transpose) X(control) X(conv_weight_gradient) X(copy) \
  X(cross_entropy) X(cumsum) X(decode) X(dft) X(double) X(encoded_matmul) X(gather) X(integer) X(interleave) X(lookup) X(matmul) X(matmul_double) X(max_pool_gradient) \
  X(non_max_suppression) X(non_zero) X(norm) X(optimizer) X(pad) X(pool) X(q31) X(q31_softmax) X(quantize) X(quantize_by_range) X(quantized_add) X(quantized_conv) X(quantized_matmul) X(quantized_mean) \
  X(random) X(recurrent) X(reduce) X(reduce_double) X(reduce_integer) X(resize) X(rotary) X(running_reduce) X(scatter) X(softmax) X(sort) X(sparse_matmul) \
  X(unary) X(unique) X(widening_matmul)
// clang-format on

namespace hexane::cpu {

#define HEXANE_DECLARE_TABLE(name) std::span<const Kernel> name##_table();
HEXANE_KERNEL_TABLES(HEXANE_DECLARE_TABLE)
#undef HEXANE_DECLARE_TABLE

}  // namespace hexane::cpu
