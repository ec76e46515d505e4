/* Damages plans and loads them, thousands of times, under sanitizers: none may crash, hang or touch a byte outside of
 * the plan and its memory. What still loads and is small runs once.
 *
 *   fuzz COUNT SEED PLAN...        prints how many mutants of each plan loaded and ran */
#include <stdio.h>
#include <stdlib.h>

#include "../src/internal.h"
#include "hexane_kernels.h"

#define MOST_BYTES (1u << 20)
#define MOST_RUNS 2000 /* of steps of one mutant */
#define MOST_ELEMENTS (1 << 12)

#define KERNEL(name) &hx_kernel_##name,
#define ACTIVATION(name) &hx_activation_##name,
static const hx_kernel* const kKernels[] = {HX_EACH_KERNEL(KERNEL) 0};
static const hx_activation* const kActivations[] = {HX_EACH_ACTIVATION(ACTIVATION) 0};
static const hx_codec* const kCodecs[] = {&hx_codec_lz4, 0};

static uint64_t state;
static const hx_net* fuzzed; /* what runs */

static uint32_t random_below(uint32_t n) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 2685821657736338717u) >> 33) % n;
}

static int stop(void* context, uint32_t step) {
  (void)step;
  return ++*(int*)context > MOST_RUNS;
}

static void put_u64(uint8_t* at, uint64_t value) {
  hx_put_u32(at, (uint32_t)value);
  hx_put_u32(at + 4, (uint32_t)(value >> 32));
}

/* A number in the row of a section in the plan's table: where it begins, or its size. */
static uint32_t of_section(const uint8_t* plan, int section, size_t field) {
  return (uint32_t)hx_u64(plan + sizeof(PlanHeader) + (size_t)section * sizeof(PlanSection) + field);
}

/* Where the weights begin, in front of which all is structure, and where their bytes end. */
static uint32_t structure_bytes(const uint8_t* plan) {
  return of_section(plan, HX_WEIGHTS, offsetof(PlanSection, offset));
}

static const uint64_t kExtremes[] = {
    0,           1,           2,          3,          4,          5,          7,          8,     9,
    16,          63,          64,         65,         1023,       1024,       65535,      65536, 0x7fffffff,
    0x80000000u, 0xffffffffu, 1ull << 32, 1ull << 40, 1ull << 62, ~0ull >> 1, 1ull << 63, ~0ull, ~1ull};

static void damage(uint8_t* plan, uint32_t structure) {
  const uint32_t packed = of_section(plan, HX_PACKED, offsetof(PlanSection, offset)),
                 packed_bytes = of_section(plan, HX_PACKED, offsetof(PlanSection, bytes)),
                 blocks = of_section(plan, HX_BLOCKS, offsetof(PlanSection, offset)),
                 blocks_bytes = of_section(plan, HX_BLOCKS, offsetof(PlanSection, bytes));
  uint32_t times = 1 + random_below(3);
  /* Of large plans they are a small part, which would seldom be hit. */
  const int in_blocks = blocks_bytes > 8 && random_below(4) == 0;
  if (packed_bytes && random_below(4) == 0) { /* lengths and distances of LZ4 */
    plan[packed + random_below(packed_bytes)] = (uint8_t)(random_below(2) ? 255 : random_below(256));
    --times;
  }
  while (times--) {
    const uint32_t at = in_blocks ? blocks + random_below(blocks_bytes - 8)
                                  : sizeof(PlanHeader) + random_below(structure - (uint32_t)sizeof(PlanHeader) - 8);
    const uint32_t word = at & ~3u, from = random_below(structure - 8) & ~3u;
    const uint64_t old = hx_u64(plan + word);
    switch (random_below(7)) {
      case 0:
        plan[at] ^= (uint8_t)(1u << random_below(8));
        break;
      case 1:
        plan[at] = (uint8_t)random_below(256);
        break;
      case 2:
        hx_put_u32(plan + word, (uint32_t)kExtremes[random_below(sizeof kExtremes / sizeof *kExtremes)]);
        break;
      case 3:
        put_u64(plan + word, kExtremes[random_below(sizeof kExtremes / sizeof *kExtremes)]);
        break;
      case 4:
        put_u64(plan + word, random_below(2) ? old + 1 : old - 1);
        break;
      case 5:
        put_u64(plan + word, random_below(2) ? old * 2 : old / 2);
        break;
      default:
        memmove(plan + word, plan + from, random_below(2) ? 4 : 8);
    }
  }
}

/* Touches all bytes of rows of a streamed port, as a device does. */
static void touch(const hx_net* loaded, uint32_t space, int32_t begin, int32_t end, const void* rows) {
  hx_net* net = (hx_net*)(uintptr_t)loaded;
  uint32_t step;
  for (step = 0; step < net->sections[HX_STEPS].rows; ++step) {
    hx_call call;
    hx_view view;
    uint32_t i;
    hx_step(net, step, &call);
    if (!hx_streams(&call)) continue;
    for (i = 0; i < 2; ++i) {
      const uint32_t id = hx_u32(net->sections[HX_OPERANDS].data + 4 * (call.operands + i));
      const uint8_t* row = net->sections[HX_TENSORS].data + id * sizeof(PlanTensorRow);
      if (hx_u32(row + offsetof(PlanTensorRow, space)) != space) continue;
      hx_operand(&call, 1 - i, &view);
      if (view.rank > 1 && view.shape[0] == 1 && view.shape[1] > 0)
        memset((void*)(uintptr_t)rows, 1, (size_t)(end - begin) * (size_t)(hx_size(&view) / view.shape[1] * view.item));
      return;
    }
  }
  abort();
}

static int bring(void* context, uint32_t input, int32_t begin, int32_t end, void* to) {
  touch(fuzzed, hx_input_space(fuzzed, input), begin, end, to);
  return ++*(int*)context > MOST_RUNS;
}

static int take(void* context, uint32_t output, int32_t begin, int32_t end, const void* from) {
  touch(fuzzed, hx_output_space(fuzzed, output), begin, end, from);
  return ++*(int*)context > MOST_RUNS;
}

/* 1: it loaded; 2: it ran as well. */
static int try_plan(const uint8_t* plan, size_t bytes) {
  enum { MOST_SPACES = 64 };
  hx_memory memory[MOST_SPACES];
  hx_net net;
  uint32_t i, num = 0;
  int runs = 0, result = 0, small = 1;
  uint64_t total = 0;
  memset(memory, 0, sizeof memory);
  if (bytes >= sizeof(PlanHeader) + HX_SECTIONS * sizeof(PlanSection)) { /* memory of the sizes that it asks for */
    const uint8_t* section = plan + sizeof(PlanHeader) + HX_SPACES * sizeof(PlanSection);
    const uint64_t offset = hx_u64(section + offsetof(PlanSection, offset)),
                   size = hx_u64(section + offsetof(PlanSection, bytes));
    if (offset <= bytes && size <= bytes - offset)
      for (; num < MOST_SPACES && (num + 1) * sizeof(PlanSpace) <= size; ++num) {
        const uint64_t need = hx_u64(plan + offset + num * sizeof(PlanSpace) + offsetof(PlanSpace, bytes));
        if (need > MOST_BYTES - total) break;
        total += need;
        if (need && posix_memalign(&memory[num].data, PLAN_MOST_ALIGNMENT, (size_t)need)) abort();
        memory[num].bytes = (size_t)need;
        if (need) memset(memory[num].data, 1, (size_t)need);
      }
  }
  {
    void* held[MOST_SPACES]; /* the loader points weights to the plan */
    for (i = 0; i < MOST_SPACES; ++i) held[i] = memory[i].data;
    if (hx_load(&net, plan, bytes, kKernels, kActivations, kCodecs, memory, num) == HX_OK) {
      result = 1;
      for (i = 0; i < net.sections[HX_TENSORS].rows; ++i) {
        hx_view view;
        hx_tensor(&net, i, &view);
        small &= hx_size(&view) <= MOST_ELEMENTS * 8;
      }
      net.hooks.context = &runs;
      net.hooks.yield = stop;
      net.hooks.input = bring;
      net.hooks.output = take;
      fuzzed = &net;
      if (small && hx_run(&net) == HX_OK) result = 2;
    } else if (!net.error.where || !net.error.name || !net.error.what) {
      abort();
    }
    for (i = 0; i < MOST_SPACES; ++i) free(held[i]);
  }
  return result;
}

static uint8_t* copy_of(const uint8_t* from, size_t bytes) {
  uint8_t* copy = (uint8_t*)malloc(bytes ? bytes : 1);
  if (!copy) abort();
  memcpy(copy, from, bytes);
  return copy;
}

static void fuzz(const char* path, const uint8_t* original, uint32_t bytes, int count) {
  int loaded = 0, ran = 0, i;
  if (try_plan(original, bytes) != 2) {
    printf("%s: does not run as it is\n", path);
    exit(1);
  }
  for (i = 0; i < count; ++i) {
    uint32_t size = bytes;
    uint8_t* plan = copy_of(original, bytes);
    int result;
    damage(plan, structure_bytes(original));
    if (random_below(20) == 0) { /* cut off, in a block of its own size */
      uint8_t* all = plan;
      size = random_below(bytes + 1);
      plan = copy_of(all, size);
      free(all);
    }
    if (size >= sizeof(PlanHeader)) { /* what an attacker would make right */
      const size_t start = offsetof(PlanHeader, checksum) + 8;
      if (random_below(10)) put_u64(plan + offsetof(PlanHeader, file_bytes), size);
      put_u64(plan + offsetof(PlanHeader, checksum), hx_checksum(plan + start, size - start));
    }
    result = try_plan(plan, size);
    loaded += result > 0;
    ran += result > 1;
    free(plan);
  }
  printf("%s: %d mutants, %d loaded, %d ran\n", path, count, loaded, ran);
}

int main(int argc, char** argv) {
  int i;
  for (i = 3; i < argc; ++i) {
    FILE* file = fopen(argv[i], "rb");
    uint8_t* plan;
    long bytes;
    if (!file || fseek(file, 0, SEEK_END) || (bytes = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) return 2;
    plan = (uint8_t*)malloc((size_t)bytes);
    if (!plan || fread(plan, 1, (size_t)bytes, file) != (size_t)bytes) return 2;
    fclose(file);
    state = 88172645463325252u + (uint64_t)strtoul(argv[2], 0, 10) * 7919u;
    fuzz(argv[i], plan, (uint32_t)bytes, atoi(argv[1]));
    free(plan);
  }
  return 0;
}
