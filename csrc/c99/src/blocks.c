/* Packed weights: the loader's checks, and unpacking for the next step. */
#include "internal.h"

#if !defined(HX_NO_BLOCKS)

#define MOST_WORK (1u << 24) /* most comparisons of operands with blocks: less than a second */

static const uint8_t* block_row(const hx_net* net, uint32_t i) { return hx_row(net, HX_BLOCKS, i, sizeof(PlanBlock)); }

/* The lower half of a field. The upper half is 0: it was checked, or the plan is trusted. */
#define U32(row, field) HX_FIELD(row, PlanBlock, field)
#define U64(row, field) hx_u64((row) + offsetof(PlanBlock, field))

static const hx_codec* find_codec(const hx_net* net, const uint8_t* block) {
  const hx_codec* const* codec = net->codecs;
  for (; codec && *codec; ++codec)
    if (hx_same((*codec)->name, hx_string(net, U32(block, codec)))) return *codec;
  return 0;
}

hx_status hx_unpack_blocks(hx_net* net, uint32_t* next, uint32_t step) {
  for (; *next < net->sections[HX_BLOCKS].rows; ++*next) {
    const uint8_t* block = block_row(net, *next);
    const hx_codec* codec;
    if (U32(block, first_step) > step) break;
    codec = find_codec(net, block);
    if (!codec)
      return hx_fail(net, HX_UNSUPPORTED, "blocks", *next, hx_string(net, U32(block, codec)),
                     "codec: this build has not got it");
    if (!codec->unpack(net->sections[HX_PACKED].data + U32(block, packed), U32(block, packed_bytes),
                       (uint8_t*)net->memory[U32(block, arena)].data + U32(block, arena_offset), U32(block, bytes)))
      return hx_fail(net, HX_BAD_PLAN, "blocks", *next, "", "packed: need data that unpacks to the block's bytes");
  }
  return HX_OK;
}

uint8_t* hx_unpacked(const hx_net* net, uint32_t step, uint32_t offset, uint32_t bytes) {
  uint32_t i;
  for (i = 0; i < net->sections[HX_BLOCKS].rows; ++i) {
    const uint8_t* block = block_row(net, i);
    const uint32_t first = U32(block, first_step), begin = U32(block, offset), size = U32(block, bytes);
    if (first > step) break;
    if (step - first < U32(block, num_steps) && offset >= begin && offset - begin <= size &&
        bytes <= size - (offset - begin))
      return (uint8_t*)net->memory[U32(block, arena)].data + U32(block, arena_offset) + (offset - begin);
  }
  return 0;
}

static hx_status bad(hx_net* net, uint32_t i, const char* what) {
  return hx_fail(net, HX_BAD_PLAN, "blocks", i, "", what);
}

static int apart(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a + a_bytes <= b || b + b_bytes <= a;
}

static hx_status check_fields(hx_net* net, uint32_t i) {
  const uint8_t *block = block_row(net, i), *space;
  const uint32_t arena = U32(block, arena), first = U32(block, first_step), num = U32(block, num_steps);
  const uint64_t bytes = U64(block, bytes), offset = U64(block, offset), packed = U64(block, packed),
                 packed_bytes = U64(block, packed_bytes), arena_offset = U64(block, arena_offset),
                 packed_all = net->sections[HX_PACKED].bytes;
  uint64_t all;
  uint32_t row;
  if (U32(block, codec) >= net->sections[HX_STRINGS].bytes) return bad(net, i, "codec: got none of the strings");
  if (!find_codec(net, block))
    return hx_fail(net, HX_UNSUPPORTED, "blocks", i, hx_string(net, U32(block, codec)),
                   "codec: this build has not got it");
  if (arena >= net->sections[HX_SPACES].rows) return bad(net, i, "arena: got none of the spaces");
  space = hx_space_row(net, arena);
  if (hx_kind_of(net, arena) != HX_ARENA_SPACE) return bad(net, i, "arena: need a space of kind arena");
  all = hx_u64(space + offsetof(PlanSpace, bytes));
  if (bytes == 0 || bytes > all || arena_offset > all - bytes) return bad(net, i, "need bytes inside of the arena");
  if (packed > packed_all || packed_bytes > packed_all - packed) return bad(net, i, "packed: need it in its section");
  if (net->weights == PLAN_ABSENT) return bad(net, i, "need a space of kind weights");
  space = hx_space_row(net, net->weights);
  all = hx_u64(space + offsetof(PlanSpace, bytes));
  if (bytes > all || offset > all - bytes || offset < net->sections[HX_WEIGHTS].bytes)
    return bad(net, i, "offset: need it in the space of the weights, after the weights that are not packed");
  if (num == 0 || num > net->sections[HX_STEPS].rows || first > net->sections[HX_STEPS].rows - num)
    return bad(net, i, "steps: need some of the plan's");
  if (i && first < U32(block_row(net, i - 1), first_step)) return bad(net, i, "first_step: need them in order");
  for (row = 0; row < net->sections[HX_LOOPS].rows; ++row) {
    const uint8_t* loop = hx_loop_row(net, row);
    const uint64_t begin = HX_FIELD(loop, PlanLoop, first_step), end = begin + HX_FIELD(loop, PlanLoop, num_steps),
                   behind = (uint64_t)first + num;
    if ((first > begin && first < end) || (behind > begin && behind < end))
      return bad(net, i, "steps: need no end inside of a loop");
  }
  return HX_OK;
}

/* Checks that blocks that are unpacked at the same time share no bytes, neither in the arena nor among the weights. */
static hx_status check_pair(hx_net* net, uint32_t i, uint32_t other) {
  const uint8_t *a = block_row(net, i), *b = block_row(net, other);
  if (apart(U32(a, first_step), U32(a, num_steps), U32(b, first_step), U32(b, num_steps))) return HX_OK;
  if (!apart(U64(a, offset), U64(a, bytes), U64(b, offset), U64(b, bytes)))
    return bad(net, i, "got weights that another block has at the same time");
  if (U32(a, arena) == U32(b, arena) &&
      !apart(U64(a, arena_offset), U64(a, bytes), U64(b, arena_offset), U64(b, bytes)))
    return bad(net, i, "got bytes of the arena in which another block is");
  return HX_OK;
}

hx_status hx_verify_blocks(hx_net* net) {
  const uint32_t num = net->sections[HX_BLOCKS].rows;
  uint32_t i, other, work = 0;
  for (i = 0; i < num; ++i) {
    hx_status status = check_fields(net, i);
    for (other = 0; other < i && status == HX_OK; ++other) status = check_pair(net, i, other);
    work += i + net->sections[HX_LOOPS].rows;
    if (work > MOST_WORK) return hx_fail(net, HX_UNSUPPORTED, "blocks", i, "", "got too many to verify");
    if (status != HX_OK) return status;
  }
  return HX_OK;
}

hx_status hx_verify_operand(hx_net* net, uint32_t step, uint32_t id) {
  uint32_t i, bytes, space, offset;
  hx_view view;
  if (net->sections[HX_BLOCKS].rows == 0) return HX_OK;
  hx_tensor(net, id, &view);
  bytes = hx_extent(&view);
  space = view.space;
  offset = view.offset;
  if (space == net->weights) {
    if (offset + bytes <= net->sections[HX_WEIGHTS].bytes || hx_unpacked(net, step, offset, bytes)) return HX_OK;
    return hx_fail(net, HX_BAD_PLAN, "steps", step, "", "reads weights that are not in a block unpacked for it");
  }
  for (i = 0; i < net->sections[HX_BLOCKS].rows; ++i) {
    const uint8_t* block = block_row(net, i);
    const uint32_t first = U32(block, first_step);
    if (first > step) break;
    if (step - first < U32(block, num_steps) && space == U32(block, arena) && bytes &&
        !apart(offset, bytes, U64(block, arena_offset), U64(block, bytes)))
      return hx_fail(net, HX_BAD_PLAN, "steps", step, "", "got bytes of the arena in which packed weights are");
  }
  return HX_OK;
}

#else
typedef int hx_no_blocks; /* C99 allows no empty file */
#endif
