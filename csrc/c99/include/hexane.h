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
  HX_BAD_PLAN,    /* the file is damaged, hostile or of another version */
  HX_UNSUPPORTED, /* a sound plan with something that this build has not got: hx_error.name says what */
  HX_NO_MEMORY,   /* a memory is missing, too small or not aligned */
  HX_STOPPED,     /* a hook asked for it */
  HX_BAD_INDEX    /* a run met an index outside of its axis: hx_error.name is the kernel, row the step */
} hx_status;

/* Errors that hx_load() finds: `where` is a section or part of the plan, `row` a row in it, `name` a name in the plan
 * (of a kernel, a tensor, a memory) or "". */
typedef struct hx_error {
  const char* where;
  uint32_t row;
  const char* name;
  const char* what;
} hx_error;

/* A memory for one row of the section "spaces". The memory of kind "weights" stays empty: weights are read in the plan.
 * Ports may be empty when a plan is loaded, and be given or changed between runs; streamed ones stay empty. */
typedef struct hx_memory {
  void* data;
  size_t bytes;
} hx_memory;

/* Called while a plan runs; each may be null. A step in a loop runs several times, on a range of rows each time. */
typedef struct hx_hooks {
  void* context;
  /* Before a run of a step: its row in the plan, the axis that is cut (-1: the whole step) and the range. */
  void (*trace)(void* context, uint32_t step, int axis, int32_t begin, int32_t end);
  /* After a run of a step: other work may be done here. Anything but 0 stops the plan with HX_STOPPED. */
  int (*yield)(void* context, uint32_t step);
  /* For a streamed input, which has no memory of its own: writes its rows [begin, end) to `to` without gaps. A run of
   * the plan asks for each row once, in order, when it is needed. The header that `hexane codegen` writes describes a
   * row. Anything but 0 stops the plan with HX_STOPPED. */
  int (*input)(void* context, uint32_t input, int32_t begin, int32_t end, void* to);
  /* For a streamed output: its rows [begin, end) are at `from`, until this returns. Else as `input`. */
  int (*output)(void* context, uint32_t output, int32_t begin, int32_t end, const void* from);
} hx_hooks;

typedef struct hx_kernel hx_kernel;
typedef struct hx_activation hx_activation;

/* Unpacks weights into `bytes` bytes; 0 if the result has another length. */
typedef struct hx_codec {
  const char* name;
  int (*unpack)(const uint8_t* packed, uint32_t packed_bytes, uint8_t* out, uint32_t bytes);
} hx_codec;

typedef struct hx_section {
  const uint8_t* data;
  uint32_t bytes;
  uint32_t rows;
} hx_section;

/* Another way to compute steps than their kernel's own, as with the functions of CMSIS-NN. */
typedef struct hx_body hx_body;

/* A step that a body computes. The body may write `bytes` bytes of scratch while the step runs, from `offset` on in a
 * memory of an arena, which may be larger than the plan needs. */
typedef struct hx_body_step {
  uint32_t step; /* its row in the plan, larger than that of the entry before */
  const hx_body* body;
  uint32_t space, offset, bytes;              /* offset: a multiple of HX_SCRATCH_ALIGNMENT */
  const int32_t *multipliers, *shifts, *bias; /* for each channel of the output, where the body needs them; multipliers
                                                 and bias: null where the plan has them so */
} hx_body_step;

#define HX_SCRATCH_ALIGNMENT 16u

#define HX_SECTIONS 16

/* A loaded plan. Read its fields; write only `hooks`, and the ports of `memory`. */
typedef struct hx_net {
  hx_section sections[HX_SECTIONS];
  hx_memory* memory;
  const hx_kernel* const* kernels;
  const hx_activation* const* activations;
  const hx_codec* const* codecs;
  uint32_t weights; /* their space, a row of `memory` */
  const hx_body_step* body_steps;
  uint32_t num_body_steps;
  hx_hooks hooks;
  hx_error error;
  hx_status failed; /* of the run that goes on: what a kernel found */
  /* For the body of a loop, inside a memory of the enclosing plan: the free rest of that memory, and the nesting
   * depth. */
  uint8_t *room, *room_end;
  uint32_t depth;
} hx_net;

/* Verifies the whole plan and that `kernels`, `activations` and `codecs` (tables that end with null; codecs may be null
 * for a plan without packed weights) are complete for it. The plan's bytes, the tables and the memory have to stay
 * where they are. Packed weights are unpacked into the arenas, here to look at them and then in each run. */
hx_status hx_load(hx_net* net, const void* plan, size_t bytes, const hx_kernel* const* kernels,
                  const hx_activation* const* activations, const hx_codec* const* codecs, hx_memory* memory,
                  uint32_t num_memory);

/* Has the steps of these rows computed by their bodies, after hx_load(); the rows have to stay. Verifies that a body
 * can compute its step, and that its scratch is enough, lies in an arena, and has no byte that the step itself reads or
 * writes. The caller places the scratch where no later step reads these bytes, as `hexane codegen` does. A range
 * of a step that a body cannot compute, for example across the end of a ring, its kernel computes, with the same bits.
 */
hx_status hx_set_bodies(hx_net* net, const hx_body_step* rows, uint32_t num);

/* The space of an input or output, a row of `memory`. */
uint32_t hx_input_space(const hx_net* net, uint32_t input);
uint32_t hx_output_space(const hx_net* net, uint32_t output);
const char* hx_input_name(const hx_net* net, uint32_t input);
const char* hx_output_name(const hx_net* net, uint32_t output);

/* Runs every step. HX_NO_MEMORY if a port has no memory, or a streamed one no hook; HX_BAD_INDEX at the first index
 * that is outside of its axis. */
hx_status hx_run(hx_net* net);

/* States as they were when the plan was loaded. */
void hx_reset_state(hx_net* net);

#ifdef __cplusplus
}
#endif

#endif
