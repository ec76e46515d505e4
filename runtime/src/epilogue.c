/* Epilogues: what happens to an accumulator on its way to memory. */
#include "internal.h"

static const uint32_t kSlotWords = 4;

hx_status hx_check_epilogue(const hx_call* call, uint32_t word, int can_add) {
  const int64_t count = hx_attr_i(call, word);
  int64_t i;
  hx_view out, extra;
  hx_output(call, 0, &out);
  if (count < 0 || count > 4) return hx_refuse(call, "epilogue: need 0 to 4 slots");
  for (i = 0; i < count; ++i) {
    const uint32_t at = word + 1 + (uint32_t)i * kSlotWords;
    const int64_t operand = hx_attr_i(call, at + 3);
    const char* kind;
    if (!hx_is_string(call, at)) return hx_refuse(call, "epilogue: got a string outside of the section");
    kind = hx_attr_s(call, at);
    if (hx_same(kind, "add")) {
      if (!can_add || operand < 0 || operand >= call->num_inputs || !hx_input(call, (uint32_t)operand, &extra) ||
          extra.dtype != out.dtype || out.dtype != HX_FP32 || !hx_same_shape(&extra, &out) ||
          !hx_is_dense_inside(&extra))
        return hx_refuse(call, "epilogue: need to add an operand of the output's shape and dtype");
      continue;
    }
    if (operand != -1) return hx_refuse(call, "epilogue: got an operand for a function");
    if (hx_same(kind, "relu") || hx_same(kind, "relu6") || hx_same(kind, "clip")) continue;
    if (!hx_find_activation(call->net, kind))
      return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, kind, "activation: this build has not got it");
  }
  return HX_OK;
}

void hx_read_epilogue(const hx_call* call, uint32_t word, hx_epilogue* epilogue) {
  int i;
  epilogue->count = (int)hx_attr_i(call, word);
  for (i = 0; i < epilogue->count; ++i) {
    const uint32_t at = word + 1 + (uint32_t)i * kSlotWords;
    const char* kind = hx_attr_s(call, at);
    hx_slot* slot = &epilogue->slots[i];
    slot->alpha = hx_attr_f(call, at + 1);
    slot->beta = hx_attr_f(call, at + 2);
    slot->operand = (uint32_t)hx_attr_i(call, at + 3);
    slot->kind = HX_SLOT_CLAMP;
    slot->apply = 0;
    if (hx_same(kind, "add")) {
      slot->kind = HX_SLOT_ADD;
    } else if (hx_same(kind, "relu")) {
      slot->kind = HX_SLOT_RELU;
      slot->alpha = 0;
    } else if (hx_same(kind, "relu6")) {
      slot->alpha = 0;
      slot->beta = 6;
    } else if (!hx_same(kind, "clip")) {
      slot->kind = HX_SLOT_FUNCTION;
      slot->apply = hx_find_activation(call->net, kind)->apply;
    }
  }
}

float hx_apply_epilogue(const hx_epilogue* epilogue, float x, const uint8_t* const* extra) {
  int i;
  for (i = 0; i < epilogue->count; ++i) {
    const hx_slot* slot = &epilogue->slots[i];
    switch (slot->kind) {
      case HX_SLOT_ADD:
        x += hx_f32(extra[i]);
        break;
      case HX_SLOT_RELU:
        x = x < slot->alpha ? slot->alpha : x;
        break;
      case HX_SLOT_CLAMP:
        x = hx_clamp(x, slot->alpha, slot->beta);
        break;
      default:
        x = slot->apply(x, slot->alpha, slot->beta);
    }
  }
  return x;
}
