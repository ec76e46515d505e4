/* Epilogues: the operations between an accumulator and the stored value. */
#include "internal.h"

static const uint32_t kSlotWords = 4;

enum { ADD, RELU, RELU6, CLIP, OTHER };

static int kind_of(const char* name) { return hx_index_of(name, "add\0relu\0relu6\0clip\0"); }

hx_status hx_check_epilogue(const hx_call* call, uint32_t word, int can_add) {
  const int32_t count = hx_attr_n(call, word);
  int32_t i;
  hx_view out, extra;
  if (count < 0 || count > 4) return hx_refuse(call, "epilogue: need 0 to 4 slots");
  hx_output(call, 0, &out);
  for (i = 0; i < count; ++i) {
    const uint32_t at = word + 1 + (uint32_t)i * kSlotWords;
    const int32_t operand = hx_attr_n(call, at + 3);
    int kind;
    if (!hx_is_string(call, at)) return hx_refuse(call, "epilogue: got a string outside of the section");
    kind = kind_of(hx_attr_s(call, at));
    if (kind == ADD && !HX_ONLY_CLAMPS) {
      if (!can_add || operand < 0 || (uint32_t)operand >= call->num_inputs ||
          !hx_input(call, (uint32_t)operand, &extra) || extra.dtype != out.dtype || out.dtype != HX_FP32 ||
          !hx_same_shape(&extra, &out) || !hx_is_dense_inside(&extra))
        return hx_refuse(call, "epilogue: need to add an operand of the output's shape and dtype");
      continue;
    }
    if (operand != -1) return hx_refuse(call, "epilogue: got an operand for a function");
    if (kind >= RELU && kind <= CLIP) continue;
    if (HX_ONLY_CLAMPS || !hx_find_activation(call->net, hx_attr_s(call, at)))
      return hx_fail(call->net, HX_UNSUPPORTED, "steps", call->step, hx_attr_s(call, at),
                     "activation: this build has not got it");
  }
  return HX_OK;
}

void hx_read_epilogue(const hx_call* call, uint32_t word, hx_epilogue* epilogue) {
  int i;
  epilogue->count = (int)hx_attr_n(call, word);
  for (i = 0; i < epilogue->count; ++i) {
    const uint32_t at = word + 1 + (uint32_t)i * kSlotWords;
    const int kind = kind_of(hx_attr_s(call, at));
    hx_slot* slot = &epilogue->slots[i];
    slot->alpha = kind == RELU || kind == RELU6 ? 0 : hx_attr_f(call, at + 1);
    slot->beta = kind == RELU ? HX_INFINITY : kind == RELU6 ? 6 : hx_attr_f(call, at + 2);
    slot->operand = (uint32_t)hx_attr_n(call, at + 3);
    slot->kind = HX_SLOT_CLAMP;
    slot->apply = 0;
    if (HX_ONLY_CLAMPS) continue;
    if (kind == ADD) slot->kind = HX_SLOT_ADD;
    if (kind != OTHER) continue;
    slot->kind = HX_SLOT_FUNCTION;
    slot->apply = hx_find_activation(call->net, hx_attr_s(call, at))->apply;
  }
}

float hx_apply_epilogue(const hx_epilogue* epilogue, float x, const uint8_t* const* extra) {
  int i;
  for (i = 0; i < epilogue->count; ++i) {
    const hx_slot* slot = &epilogue->slots[i];
    if (HX_ONLY_CLAMPS || slot->kind == HX_SLOT_CLAMP)
      x = hx_clamp(x, slot->alpha, slot->beta);
    else
      x = slot->kind == HX_SLOT_ADD ? x + hx_f32(extra[i]) : slot->apply(x, slot->alpha, slot->beta);
  }
  return x;
}
