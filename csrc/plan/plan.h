/* The flat plan: the tables of a compiled program, in memory and in a .hxp file alike. Compiles as C99 and C++20.
 *
 *   PlanHeader | PlanSection[num_sections] | section | section | ...
 *
 * Little-endian; every section starts on a 64-byte boundary, gaps are zero. Names (of kernels, dtypes, devices, memory
 * spaces) are strings, so no number has to be agreed on between the compiler and a runtime. A string is its byte
 * offset in the section "strings", where it ends with a zero byte; offset 0 is the empty string.
 *
 *   section    rows           what
 *   strings    bytes          zero-terminated UTF-8
 *   spaces     PlanSpace      memories: at most one "weights", any "arena", "state" and "param", and a "port" for each
 *                             port. Operands of other devices than the CPU are surfaces, each a memory of its own: one
 *                             tensor at its start, with the device's gaps
 *   tensors    PlanTensorRow  typed views into spaces; several may share bytes (views, in-place results)
 *   dims       int64_t        records: rank, extents, strides in bytes; tensors of one shape share theirs
 *   operands   uint32_t       rows of tensors, or PLAN_ABSENT for an optional operand that is not there
 *   numerics   PlanNumerics   the arithmetics that steps compute in, each a family and its parameters
 *   steps      PlanStep       the kernels with their operands, in running order
 *   loops      PlanLoop       ranges of steps that run several times, outer ones first; loops may be nested
 *   moves      int64_t        for each step of a loop how far its range moves with each trip
 *   attrs      bytes          attribute structs of the kernels (see cpu/kernel.h) and parameter blocks of numerics (see
 *                             core/numerics.h), 8-byte fields
 *   inputs     PlanPort       in the order of the model's signature
 *   outputs    PlanPort
 *   blocks     PlanBlock      weights that are packed, in the order of their first steps
 *   weights    bytes          the contents of the space of kind "weights", up to where the first block begins
 *   packed     bytes          the packed contents of the blocks
 *   state      bytes          the first contents of the spaces of kind "state" and "param", one after the other; zero
 *                             where this ends
 *
 * An output whose length is only known when it has been computed has its capacity as its shape; how much of it is valid
 * is the value of another output, an int64 scalar.
 *
 * A reader refuses unknown versions, sections it does not know and rows of another size. */
#ifndef HEXANE_PLAN_PLAN_H_
#define HEXANE_PLAN_PLAN_H_

#include <stdint.h>

#define PLAN_MAGIC "HEXANE\x1a\n" /* 8 bytes, no terminator stored */
#define PLAN_VERSION 4u
#define PLAN_ALIGNMENT 64u
#define PLAN_MOST_ALIGNMENT 4096u
#define PLAN_MAX_RANK 8u
#define PLAN_ABSENT 0xffffffffu

typedef struct PlanHeader {
  uint8_t magic[8];
  uint32_t version;
  uint32_t num_sections;
  uint64_t file_bytes; /* the whole file, header included */
  uint64_t checksum;   /* XXH64, seed 0, of every byte after this field */
} PlanHeader;

typedef struct PlanSection {
  char name[16];      /* zero-padded */
  uint64_t offset;    /* bytes from the start of the file, a multiple of PLAN_ALIGNMENT */
  uint64_t bytes;     /* a multiple of row_bytes */
  uint64_t row_bytes; /* size of one row; 1 for byte sections */
} PlanSection;

typedef struct PlanSpace {
  uint32_t name;      /* name of the port, or unique name of the memory: "arena", "sram", ... */
  uint32_t kind;      /* "weights" | "arena" | "state" | "param" (weights in a surface) | "port" */
  uint64_t bytes;     /* bytes needed at run time */
  uint64_t limit;     /* most bytes that the memory has; 0: no limit */
  uint64_t alignment; /* alignment of the first byte: a power of two, at most PLAN_MOST_ALIGNMENT */
} PlanSpace;

typedef struct PlanTensorRow {
  uint32_t name;
  uint32_t dtype;  /* "fp32", "int8", ... */
  uint32_t layout; /* what the axes of shape mean: "" as the model has them, "nhwc" channels last */
  uint32_t space;  /* row of spaces */
  uint64_t offset; /* bytes from the start of the space */
  uint32_t ring;   /* rows that are kept of the second outermost axis; 0: all of them */
  uint32_t dims;   /* first int64_t of the tensor's record in dims */
} PlanTensorRow;

/* A PlanTensorRow with its dims in place: a row of the section "tensors" of a plan in memory, not in a file. */
typedef struct PlanTensor {
  uint32_t name;
  uint32_t dtype;  /* "fp32", "int8", ... */
  uint32_t layout; /* what the axes of shape mean: "" as the model has them, "nhwc" channels last */
  uint32_t space;  /* row of spaces */
  uint64_t offset; /* bytes from the start of the space */
  uint32_t rank;
  uint32_t ring; /* rows that are kept of the second outermost axis; 0: all of them */
  int64_t shape[PLAN_MAX_RANK];
  int64_t strides[PLAN_MAX_RANK]; /* bytes, never negative; 0 for an axis that is broadcast */
} PlanTensor;

typedef struct PlanNumerics {
  uint32_t name;   /* "host", "h13", ...: for messages; the first row has the program's target */
  uint32_t family; /* "ieee" */
  uint64_t offset; /* offset of the parameter block in attrs, a multiple of 8 */
  uint64_t bytes;  /* size of the family's parameter block */
} PlanNumerics;

typedef struct PlanStep {
  uint32_t kernel; /* looked up once, by name, operand dtypes and family, when the plan is loaded; "program" on "ane" */
  uint32_t numerics; /* row of numerics */
  uint32_t device;   /* "cpu", or "ane" for a program that whoever loads the plan brings along */
  uint32_t source;   /* place in the user's model that the step comes from, for messages and profiles */
  uint32_t operands; /* first row of operands: the inputs, then the outputs; behind those of the step before */
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t attrs_bytes;
  uint64_t attrs;   /* offset in attrs, a multiple of 8 */
  int64_t cut_axis; /* axis of the first output along which [begin, end) is computed; -1: all of it, not in loops */
  int64_t begin;
  int64_t end;
} PlanStep;

/* Trip t of a loop runs its steps in order, each on [begin + t * move, end + t * move) of its cut axis, clipped to the
 * output's extent; where nothing is left it does not run. A range may therefore begin below 0, for steps that have to
 * wait for other steps. Loops around add their own moves. begin, end, and what one loop moves them by in all its trips
 * are at most 2^27. A loop reads its own results only as rows that exist: see cpu/row_order.h. */
typedef struct PlanLoop {
  uint32_t first_step;
  uint32_t num_steps;
  int64_t trips;  /* at least 1 */
  uint64_t moves; /* row of moves for the first step */
} PlanLoop;

/* Weights that are packed. All other weights are read in the plan, where they lie. Before the first of its steps a
 * block is unpacked to its range of an arena, which no other operand of these steps touches. After the last of its
 * steps the range is free. (With enough memory, a runtime may unpack all blocks once, to their places in the space of
 * the weights.) The steps begin and end outside of loops. Weights of several steps may be in several blocks with the
 * same contents. */
typedef struct PlanBlock {
  uint64_t offset; /* offset of the unpacked bytes in the space of kind "weights", after the section "weights" */
  uint64_t bytes;  /* at least 1 */
  uint64_t packed; /* offset in the section "packed" */
  uint64_t packed_bytes;
  uint64_t arena_offset;
  uint32_t arena; /* row of spaces */
  uint32_t codec; /* "lz4": a block of LZ4, without a frame */
  uint32_t first_step;
  uint32_t num_steps; /* at least 1 */
} PlanBlock;

typedef struct PlanPort {
  uint32_t name;         /* the user's name */
  uint32_t emitted_name; /* the name in programs emitted for a device */
  uint32_t tensor;       /* row of tensors; dtype, shape and strides are its */
  uint32_t length;       /* 0, or 1 + the row of outputs that holds how many indices of the axis are valid */
  uint32_t axis;         /* 0 where there is no length */
  uint32_t streamed;     /* 1: comes or goes row by row, see below; else 0 */
} PlanPort;

/* Only one step touches a streamed port: a copy between all of it and an arena, where its rows (of axis 1, as that step
 * has the axes) lie one behind the other, maybe in a ring. The runs of this step go through the rows in order, and
 * through each once. So a runtime without memory for a streamed port may receive or send the rows in the arena, in
 * place of the copy. */

#ifdef __cplusplus
static_assert(sizeof(PlanHeader) == 32 && sizeof(PlanSection) == 40 && sizeof(PlanSpace) == 32 &&
              sizeof(PlanTensorRow) == 32 && sizeof(PlanTensor) == 160 && sizeof(PlanNumerics) == 24 &&
              sizeof(PlanStep) == 64 && sizeof(PlanLoop) == 24 && sizeof(PlanBlock) == 56 && sizeof(PlanPort) == 24);
#endif

#endif /* HEXANE_PLAN_PLAN_H_ */
