// The kernel tables, one per family, each for the best instruction set of this machine.
#pragma once

#include "cpu/kernel.h"

namespace hexane::cpu {

std::span<const Kernel> arg_reduce_table();
std::span<const Kernel> attention_table();
std::span<const Kernel> binary_table();
std::span<const Kernel> cast_table();
std::span<const Kernel> channel_norm_table();
std::span<const Kernel> col2im_table();
std::span<const Kernel> conv_table();
std::span<const Kernel> conv_transpose_table();
std::span<const Kernel> copy_table();
std::span<const Kernel> cumsum_table();
std::span<const Kernel> double_table();
std::span<const Kernel> gather_table();
std::span<const Kernel> integer_table();
std::span<const Kernel> lookup_table();
std::span<const Kernel> matmul_double_table();
std::span<const Kernel> matmul_table();
std::span<const Kernel> non_max_suppression_table();
std::span<const Kernel> non_zero_table();
std::span<const Kernel> norm_table();
std::span<const Kernel> pad_table();
std::span<const Kernel> pool_table();
std::span<const Kernel> random_table();
std::span<const Kernel> quantize_table();
std::span<const Kernel> quantized_add_table();
std::span<const Kernel> quantized_conv_table();
std::span<const Kernel> quantized_matmul_table();
std::span<const Kernel> reduce_double_table();
std::span<const Kernel> reduce_integer_table();
std::span<const Kernel> reduce_table();
std::span<const Kernel> resize_table();
std::span<const Kernel> rotary_table();
std::span<const Kernel> scatter_table();
std::span<const Kernel> softmax_table();
std::span<const Kernel> sort_table();
std::span<const Kernel> unary_table();
std::span<const Kernel> unique_table();

}  // namespace hexane::cpu
