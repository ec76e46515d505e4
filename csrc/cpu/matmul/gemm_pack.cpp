// Packs weights and biases into the panels of gemm.h, and resolves epilogues.
#include <algorithm>
#include <cstring>

#include "cpu/matmul/gemm.h"

namespace hexane::cpu {
namespace {

template <class T>
void pack_panel(const std::byte* from, int64_t k_stride, int64_t n_stride, int64_t num_k, int64_t n, T* to) {
  if (n_stride == sizeof(T)) {
    for (int64_t k = 0; k < num_k; ++k, to += kPanelLanes) {
      std::memcpy(to, from + k * k_stride, n * sizeof(T));
      std::fill(to + n, to + kPanelLanes, T{});
    }
    return;
  }
  // Blocks of k, so that the 16 lanes of a block stay in cache while they are gathered column by column.
  constexpr int64_t kBlock = 64;
  for (int64_t k0 = 0; k0 < num_k; k0 += kBlock) {
    const int64_t count = std::min(kBlock, num_k - k0);
    for (int64_t lane = 0; lane < kPanelLanes; ++lane) {
      const std::byte* source = from + lane * n_stride + k0 * k_stride;
      T* lanes = to + k0 * kPanelLanes + lane;
      for (int64_t k = 0; k < count; ++k)
        lanes[k * kPanelLanes] = lane < n ? *reinterpret_cast<const T*>(source + k * k_stride) : T{};
    }
  }
}

}  // namespace

void pack_panels(const std::byte* from, int64_t item_bytes, int64_t k_stride, int64_t n_stride, int64_t num_k,
                 int64_t num_columns, std::byte* to, int64_t panel_bytes) {
  for (int64_t n = 0; n < num_columns; n += kPanelLanes, from += kPanelLanes * n_stride, to += panel_bytes) {
    const int64_t lanes = std::min(kPanelLanes, num_columns - n);
    if (item_bytes == 4)
      pack_panel(from, k_stride, n_stride, num_k, lanes, reinterpret_cast<uint32_t*>(to));
    else
      pack_panel(from, k_stride, n_stride, num_k, lanes, reinterpret_cast<uint16_t*>(to));
  }
}

int64_t checked_product(const char* kernel, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product) || product > int64_t{1} << 40)
      fail(kernel, "size: got more than 2^40 bytes to pack or to keep, need less");
  return product;
}

void expand_half(std::byte* values, int64_t bytes, const Arithmetic& arithmetic) {
  arithmetic.to_floats(values + bytes / 2, DType::kFp16, bytes / 4, reinterpret_cast<float*>(values));
}

void check_bias(const char* kernel, const Tensor& bias, int64_t n) {
  check_operand(kernel, "bias", bias);
  const int64_t last = bias.rank > 0 ? bias.shape[bias.rank - 1] : 1;
  if (last != n || bias.size() != n)
    fail(kernel, "bias: got ", bias.size(), " elements of which ", last, " in the last axis, need ", n);
}

void pack_bias(const Tensor& bias, int64_t n, float* to, const Arithmetic& arithmetic) {
  if (n > 0) {
    const int64_t stride = bias.rank > 0 ? bias.strides[bias.rank - 1] : 0;
    for (int64_t i = 0; i < n; ++i) arithmetic.to_floats(bias.data + i * stride, bias.dtype, 1, to + i);
  }
  std::fill(to + n, to + ceil_div(n, kPanelLanes) * kPanelLanes, 0.0f);
}

ResolvedEpilogue resolve_epilogue(const char* kernel, const Call& call, const Epilogue& epilogue, bool engine) {
  ResolvedEpilogue result;
  if (epilogue.count < 0 || epilogue.count > kMaxSlots)
    fail(kernel, "epilogue: got ", epilogue.count, " slots, need 0 to ", kMaxSlots);
  const Tensor& out = call.outputs[0];
  for (int i = 0; i < epilogue.count; ++i) {
    const EpilogueSlot& slot = epilogue.slots[i];
    const std::string_view kind = call.string(slot.kind);
    ResolvedSlot& resolved = result.slots[result.count++];
    resolved = {
        ResolvedSlot::kClamp, static_cast<float>(slot.alpha), static_cast<float>(slot.beta), 0, nullptr, nullptr};
    if (kind == "add") {
      if (slot.operand < 0 || slot.operand >= static_cast<int64_t>(call.inputs.size()))
        fail(kernel, "epilogue: got operand ", slot.operand, ", need one of ", call.inputs.size(), " inputs");
      const Tensor& extra = call.inputs[slot.operand];
      check_operand(kernel, "epilogue operand", extra);
      if (extra.dtype != out.dtype ||
          !std::equal(extra.shape, extra.shape + extra.rank, out.shape, out.shape + out.rank))
        fail(kernel, "epilogue: got an operand ", slot.operand, " of another shape or dtype, need those of the output");
      if (extra.size() > 0 && extra.rank > 0 && extra.shape[extra.rank - 1] > 1 &&
          extra.strides[extra.rank - 1] != item_bytes(extra))
        fail(kernel, "epilogue: operand ", slot.operand, ": got a last stride of ", extra.strides[extra.rank - 1],
             " bytes, need ", item_bytes(extra));
      resolved.kind = ResolvedSlot::kAdd;
      resolved.extra = result.num_extra;
      result.extra_operand[result.num_extra++] = static_cast<int>(slot.operand);
    } else if (kind == "relu") {
      resolved.kind = ResolvedSlot::kRelu;
      resolved.alpha = 0.0f;
    } else if (kind == "relu6") {
      resolved.alpha = 0.0f;
      resolved.beta = 6.0f;
    } else if (kind != "clip") {
      resolved.kind = ResolvedSlot::kFunction;
      result.in_registers = false;
      resolved.function = find_row_function(kind);
      if (engine) resolved.map = half_map(kind, slot.alpha, slot.beta, call.numerics);
      if (resolved.map) resolved.kind = ResolvedSlot::kMap;
    }
  }
  return result;
}

}  // namespace hexane::cpu
