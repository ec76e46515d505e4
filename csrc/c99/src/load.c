/* hx_load: the container of a plan file, then its contents (verify.c), then the initial contents of states. */
#include "internal.h"

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

#define PRIME1 0x9E3779B185EBCA87u
#define PRIME2 0xC2B2AE3D27D4EB4Fu
#define PRIME3 0x165667B19E3779F9u
#define PRIME4 0x85EBCA77C2B2AE63u
#define PRIME5 0x27D4EB2F165667C5u

/* These functions are not inlined: with registers of 32 bits, a product of 64 bits takes many instructions. */
static HX_NOINLINE uint64_t xxh_round(uint64_t lane, uint64_t word) {
  return rotate(lane + word * PRIME2, 31) * PRIME1;
}

static HX_NOINLINE uint64_t xxh_merge(uint64_t hash, uint64_t lane) {
  return (hash ^ xxh_round(0, lane)) * PRIME1 + PRIME4;
}

/* Returns XXH64 with seed 0. */
uint64_t hx_checksum(const uint8_t* p, size_t bytes) {
  uint64_t lanes[4] = {PRIME1 + PRIME2, PRIME2, 0, 0 - PRIME1}, hash = PRIME5;
  const size_t total = bytes;
  int i;
  for (; bytes >= 32; bytes -= 32)
    for (i = 0; i < 4; ++i, p += 8) lanes[i] = xxh_round(lanes[i], hx_u64(p));
  if (total >= 32) {
    hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
    for (i = 0; i < 4; ++i) hash = xxh_merge(hash, lanes[i]);
  }
  hash += total;
  for (; bytes >= 8; bytes -= 8, p += 8) hash = rotate(hash ^ xxh_round(0, hx_u64(p)), 27) * PRIME1 + PRIME4;
  for (; bytes >= 4; bytes -= 4, p += 4) hash = rotate(hash ^ hx_u32(p) * PRIME1, 23) * PRIME2 + PRIME3;
  for (; bytes; --bytes, ++p) hash = rotate(hash ^ *p * PRIME5, 11) * PRIME1;
  hash = (hash ^ hash >> 33) * PRIME2;
  hash = (hash ^ hash >> 29) * PRIME3;
  return hash ^ hash >> 32;
}

static const struct {
  const char* name;
  uint32_t row_bytes;
} kSections[HX_SECTIONS] = {{"strings", 1},
                            {"spaces", sizeof(PlanSpace)},
                            {"tensors", sizeof(PlanTensorRow)},
                            {"dims", 8},
                            {"operands", 4},
                            {"numerics", sizeof(PlanNumerics)},
                            {"steps", sizeof(PlanStep)},
                            {"loops", sizeof(PlanLoop)},
                            {"moves", 8},
                            {"attrs", 1},
                            {"inputs", sizeof(PlanPort)},
                            {"outputs", sizeof(PlanPort)},
                            {"blocks", sizeof(PlanBlock)},
                            {"weights", 1},
                            {"packed", 1},
                            {"state", 1}};

const char* hx_section_name(uint32_t section) { return kSections[section].name; }

/* Takes aligned bytes from the room; returns null if too few are left. */
static uint8_t* taken(hx_net* net, size_t bytes, size_t alignment) {
  const size_t gap = (size_t)(0 - (uintptr_t)net->room) & (alignment - 1), left = (size_t)(net->room_end - net->room);
  uint8_t* const at = net->room + gap;
  if (gap > left || bytes > left - gap) return 0;
  net->room = at + bytes;
  return at;
}

static hx_status check_header(hx_net* net, const uint8_t* file, size_t bytes) {
  static const char kMagic[] = PLAN_MAGIC;
  const size_t start = offsetof(PlanHeader, checksum) + 8;
  if (!file || bytes < sizeof(PlanHeader) || hx_u64(file) != hx_u64(kMagic))
    return hx_fail(net, HX_BAD_PLAN, "header", 0, "", "need the first bytes of a plan");
  if (hx_u32(file + offsetof(PlanHeader, version)) != PLAN_VERSION)
    return hx_fail(net, HX_BAD_PLAN, "header", 0, "", "version: compile the model again");
  if (bytes > INT_MAX) return hx_fail(net, HX_UNSUPPORTED, "header", 0, "", "need less than 2 GiB");
  if (hx_u32(file + offsetof(PlanHeader, num_sections)) != HX_SECTIONS)
    return hx_fail(net, HX_BAD_PLAN, "header", 0, "", "sections: need 16");
  if (hx_u32(file + offsetof(PlanHeader, file_bytes)) != bytes || hx_u32(file + offsetof(PlanHeader, file_bytes) + 4))
    return hx_fail(net, HX_BAD_PLAN, "header", 0, "", "another size than the file's; is it truncated?");
  if (hx_u64(file + offsetof(PlanHeader, checksum)) != hx_checksum(file + start, bytes - start))
    return hx_fail(net, HX_BAD_PLAN, "header", 0, "", "checksum: the file is damaged");
  return HX_OK;
}

static hx_status find_sections(hx_net* net, const uint8_t* file, size_t bytes) {
  size_t end = sizeof(PlanHeader) + HX_SECTIONS * sizeof(PlanSection);
  uint32_t i;
  if (bytes < end) return hx_fail(net, HX_BAD_PLAN, "sections", 0, "", "the file ends inside the table of sections");
  for (i = 0; i < HX_SECTIONS; ++i) {
    const uint8_t* row = file + sizeof(PlanHeader) + i * sizeof(PlanSection);
    const uint8_t* numbers = row + offsetof(PlanSection, offset); /* offset, bytes, row_bytes */
    const uint32_t offset = hx_u32(numbers), size = hx_u32(numbers + 8), row_bytes = hx_u32(numbers + 16);
    const size_t need = (end + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    const char *name = kSections[i].name, *left = name;
    uint32_t k;
    for (k = 0; k < sizeof(((PlanSection*)0)->name); ++k) {
      if (row[k] != (uint8_t)*left) return hx_fail(net, HX_BAD_PLAN, "sections", i, name, "got another name");
      if (*left) ++left;
    }
    if (hx_u32(numbers + 4) | hx_u32(numbers + 12) | hx_u32(numbers + 20) || row_bytes != kSections[i].row_bytes)
      return hx_fail(net, HX_BAD_PLAN, "sections", i, name, "row_bytes: got another size");
    if (offset != need || need > bytes || size > bytes - need)
      return hx_fail(net, HX_BAD_PLAN, "sections", i, name, "need it after the previous section and inside the file");
    if (size % row_bytes) return hx_fail(net, HX_BAD_PLAN, "sections", i, name, "need whole rows");
    for (; end < need; ++end)
      if (file[end]) return hx_fail(net, HX_BAD_PLAN, "sections", i, name, "the gap before it is not zero");
    net->sections[i].data = file + need;
    net->sections[i].bytes = size;
    net->sections[i].rows = size / row_bytes;
    end = need + size;
  }
  return end == bytes ? HX_OK : hx_fail(net, HX_BAD_PLAN, "sections", 0, "", "bytes behind the last one");
}

hx_status hx_place_memory(hx_net* net) {
  uint32_t i;
  net->weights = PLAN_ABSENT;
  for (i = 0; i < net->sections[HX_SPACES].rows; ++i) {
    const uint8_t* row = hx_space_row(net, i);
    const hx_kind kind = hx_kind_of(net, i);
    const size_t bytes = HX_FIELD(row, PlanSpace, bytes), alignment = HX_FIELD(row, PlanSpace, alignment);
    hx_memory* memory = &net->memory[i];
    if (kind == HX_WEIGHTS_SPACE) {
      net->weights = i;
      memory->data = (void*)(uintptr_t)net->sections[HX_WEIGHTS].data; /* cast is safe: no step may write weights */
      memory->bytes = net->sections[HX_WEIGHTS].bytes;
    } else if (net->depth && kind == HX_ARENA_SPACE) {
      memory->data = taken(net, bytes, alignment);
      memory->bytes = bytes;
      if (!memory->data) return hx_fail(net, HX_NO_MEMORY, "spaces", i, "", "room: need more memory");
    } else if (kind != HX_PORT_SPACE && bytes &&
               (!memory->data || memory->bytes < bytes || ((uintptr_t)memory->data & (alignment - 1)))) {
      return hx_fail(net, HX_NO_MEMORY, "spaces", i, hx_string(net, HX_FIELD(row, PlanSpace, name)),
                     "need memory of its size and alignment");
    }
  }
  return HX_OK;
}

hx_status hx_load(hx_net* net, const void* plan, size_t bytes, const hx_kernel* const* kernels,
                  const hx_activation* const* activations, const hx_codec* const* codecs, hx_memory* memory,
                  uint32_t num_memory) {
  const uint8_t* file = (const uint8_t*)plan;
  hx_status status;
  memset(net, 0, sizeof *net);
  hx_fail(net, HX_OK, "", 0, "", "");
  net->memory = memory;
  net->kernels = kernels;
  net->activations = activations;
  net->codecs = codecs;
  status = check_header(net, file, bytes);
  if (status == HX_OK) status = find_sections(net, file, bytes);
  if (status == HX_OK && net->sections[HX_SPACES].rows > num_memory)
    status = hx_fail(net, HX_NO_MEMORY, "spaces", num_memory, "", "need a memory for each");
#if defined(HX_TRUSTED_PLAN)
  if (status == HX_OK) status = hx_place_memory(net);
#else
  if (status == HX_OK) status = hx_verify(net);
#endif
  if (status == HX_OK) hx_reset_state(net);
  return status;
}

hx_status hx_load_body(hx_net* around, const void* plan, size_t bytes, uint8_t* room, size_t room_bytes, int verifies,
                       hx_net** body) {
  hx_net whole, *net;
  uint32_t spaces;
  hx_status status;
  memset(&whole, 0, sizeof whole);
  whole.room = room;
  whole.room_end = room + room_bytes;
  *body = net = (hx_net*)(void*)taken(&whole, sizeof *net, HX_SCRATCH_ALIGNMENT);
  if (!net) return HX_NO_MEMORY;
  memcpy(net, &whole, sizeof *net);
  hx_fail(net, HX_OK, "", 0, "", "");
  net->depth = around->depth + 1;
  net->kernels = around->kernels;
  net->activations = around->activations;
  status = verifies ? check_header(net, (const uint8_t*)plan, bytes) : HX_OK;
  if (status == HX_OK) status = find_sections(net, (const uint8_t*)plan, bytes);
  if (status != HX_OK) return status;
  spaces = net->sections[HX_SPACES].rows;
  if (spaces > room_bytes / sizeof(hx_memory)) spaces = 0;
  net->memory = (hx_memory*)(void*)taken(net, spaces * sizeof(hx_memory), HX_SCRATCH_ALIGNMENT);
  if (!net->memory || spaces != net->sections[HX_SPACES].rows)
    return hx_fail(net, HX_NO_MEMORY, "spaces", 0, "", "room: need more memory");
  memset(net->memory, 0, spaces * sizeof(hx_memory));
  if (net->sections[HX_BLOCKS].rows)
    return hx_fail(net, HX_UNSUPPORTED, "blocks", 0, "", "need plain weights in a body");
  return verifies ? hx_verify(net) : hx_place_memory(net);
}
