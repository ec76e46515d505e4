/* Runs a compiled plan (.hxp) on a small device: no heap, no files, no operating system. The caller owns all memory.
 *
 *   static hx_net net;
 *   hx_memory memory[NUM_SPACES] = {...};               one for each row of the plan's section "spaces"
 *   status = hx_load(&net, plan, sizeof plan, hx_kernels, hx_activations, hx_codecs, memory, NUM_SPACES);
 *   status = hx_run(&net);
 *
 * All numbers in memory, inputs and outputs too, are little-endian, as in the plan. `hexane codegen` writes
 * the tables, the memory and the calls for one plan. */
#ifndef HEXANE_H_
#define HEXANE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hx_status {
  HX_OK = 0,
  HX_BAD_PLAN,    /* The file is damaged, hostile or of another version. */
  HX_UNSUPPORTED, /* A valid plan needs a part missing from this build; hx_error.name names the part. */
  HX_NO_MEMORY,   /* A memory is missing, too small or not aligned. */
  HX_STOPPED,     /* A hook stopped the run. */
  HX_BAD_INDEX    /* A run found an index outside of its axis; hx_error.name is the kernel, hx_error.row the step. */
} hx_status;

/* Errors that hx_load() finds: `where` is a section or part of the plan, `row` a row in it, `name` the name of a
 * kernel, tensor or memory in the plan, or "". */
typedef struct hx_error {
  const char* where;
  uint32_t row;
  const char* name;
  const char* what;
} hx_error;

/* A memory for one row of the section "spaces". The memory of kind "weights" stays empty: weights are read from the
 * plan's bytes. Memories of ports may be empty at load, and may be set or changed between runs. The memories for
 * streamed ports stay empty. */
typedef struct hx_memory {
  void* data;
  size_t bytes;
} hx_memory;

/* Functions that the runtime calls while a plan runs; each may be null. A step in a loop runs several times, on a
 * range of rows each time. */
typedef struct hx_hooks {
  void* context;
  /* Called before each run of a step, with its row in the plan, the axis that is cut (-1: the whole step) and the
   * range. */
  void (*trace)(void* context, uint32_t step, int axis, int32_t begin, int32_t end);
  /* Called after each run of a step, for example to do other work. A result other than 0 stops the plan with
   * HX_STOPPED. */
  int (*yield)(void* context, uint32_t step);
  /* Provides rows [begin, end) of a streamed input: writes them to `to` without gaps. A run of the plan asks for each
   * row once, in order, when it needs the row. The header that `hexane codegen` writes describes the layout of a row.
   * A result other than 0 stops the plan with HX_STOPPED. */
  int (*input)(void* context, uint32_t input, int32_t begin, int32_t end, void* to);
  /* Consumes rows [begin, end) of a streamed output. `from` is valid until the function returns. Order and result
   * are as for `input`. */
  int (*output)(void* context, uint32_t output, int32_t begin, int32_t end, const void* from);
} hx_hooks;

typedef struct hx_kernel hx_kernel;
typedef struct hx_activation hx_activation;

/* A decompressor of weights. unpack() writes exactly `bytes` bytes, or returns 0 if the result has another length. */
typedef struct hx_codec {
  const char* name;
  int (*unpack)(const uint8_t* packed, uint32_t packed_bytes, uint8_t* out, uint32_t bytes);
} hx_codec;

typedef struct hx_section {
  const uint8_t* data;
  uint32_t bytes;
  uint32_t rows;
} hx_section;

/* Another implementation of a kernel's steps, such as one that calls CMSIS-NN. */
typedef struct hx_body hx_body;

/* A step that a body computes. While the step runs, the body may write `bytes` bytes of scratch from `offset` on in
 * the arena `space`. The memory of this arena may be larger than the plan needs. */
typedef struct hx_body_step {
  uint32_t step; /* row of the step in the plan; entries are in ascending order of rows */
  const hx_body* body;
  uint32_t space, offset, bytes;              /* `offset`: a multiple of HX_SCRATCH_ALIGNMENT. */
  const int32_t *multipliers, *shifts, *bias; /* for each channel of the output, where the body needs them; multipliers
                                                 and bias: null where the plan has them so */
} hx_body_step;

#define HX_SCRATCH_ALIGNMENT 16u

#define HX_SECTIONS 16

/* A loaded plan. The caller may read all fields, and write only `hooks` and the ports of `memory`. */
typedef struct hx_net {
  hx_section sections[HX_SECTIONS];
  hx_memory* memory;
  const hx_kernel* const* kernels;
  const hx_activation* const* activations;
  const hx_codec* const* codecs;
  uint32_t weights; /* index in `memory` of the space of weights */
  const hx_body_step* body_steps;
  uint32_t num_body_steps;
  hx_hooks hooks;
  hx_error error;
  hx_status failed; /* The error that a kernel found in the current run. */
  /* Set for a plan that is the body of a loop or branch. The body's memory is part of a memory of the enclosing plan.
   * room to room_end is the free rest of that memory. */
  uint8_t *room, *room_end;
  uint32_t depth;
} hx_net;

/* Loads a plan. Verifies the whole plan, and that `kernels`, `activations` and `codecs` (tables that end with null;
 * codecs may be null for a plan without packed weights) are complete for it. The plan's bytes, the tables and the
 * memory have to stay where they are. Packed weights are unpacked into the arenas: once during the verification, and
 * then in each run. */
hx_status hx_load(hx_net* net, const void* plan, size_t bytes, const hx_kernel* const* kernels,
                  const hx_activation* const* activations, const hx_codec* const* codecs, hx_memory* memory,
                  uint32_t num_memory);

/* Assigns bodies to steps, after hx_load(). The array `rows` has to stay where it is. Verifies that each body can
 * compute its step, that its scratch is large enough and in an arena, and that the step reads and writes no byte of
 * the scratch. The caller has to choose scratch bytes that no later step reads, as `hexane codegen` does. If a body
 * cannot compute a range of its step, for example across the end of a ring, the kernel computes the range with the
 * same result. */
hx_status hx_set_bodies(hx_net* net, const hx_body_step* rows, uint32_t num);

/* Returns the index in `memory` of the space of an input or output. */
uint32_t hx_input_space(const hx_net* net, uint32_t input);
uint32_t hx_output_space(const hx_net* net, uint32_t output);
const char* hx_input_name(const hx_net* net, uint32_t input);
const char* hx_output_name(const hx_net* net, uint32_t output);

/* Runs every step. Returns HX_NO_MEMORY if a port has no memory, or a streamed port has no hook. Returns
 * HX_BAD_INDEX at the first index outside of its axis. */
hx_status hx_run(hx_net* net);

/* Resets the states to their contents at load. */
void hx_reset_state(hx_net* net);

#ifdef __cplusplus
}
#endif

#endif
