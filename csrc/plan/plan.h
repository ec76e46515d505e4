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
 *                             tensor at its start, with the strides that the device needs
 *   tensors    PlanTensorRow  typed views into spaces; several may share bytes (views, in-place results)
 *   dims       int64_t        records: rank, extents, strides in bytes; tensors may share a record
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
 *   state      bytes          the first contents of the spaces of kind "state" and "param", one after the other; bytes
 *                             after the end of the section are zero
 *
 * If the length of an output is known only after the run, its shape gives its capacity. Another output, an int64
 * scalar, gives the valid length.
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
  uint64_t file_bytes; /* Bytes of the whole file, header included. */
  uint64_t checksum;   /* XXH64, seed 0, of every byte after this field. */
} PlanHeader;

typedef struct PlanSection {
  char name[16];      /* Name, padded with zeros. */
  uint64_t offset;    /* Bytes from the start of the file, a multiple of PLAN_ALIGNMENT. */
  uint64_t bytes;     /* Bytes of the section, a multiple of row_bytes. */
  uint64_t row_bytes; /* Size of one row; 1 for byte sections. */
} PlanSection;

typedef struct PlanSpace {
  uint32_t name;      /* Name of the port, or unique name of the memory, such as "arena" or "sram". */
  uint32_t kind;      /* "weights" | "arena" | "state" | "param" (weights in a surface) | "port". */
  uint64_t bytes;     /* Bytes needed at run time. */
  uint64_t limit;     /* Most bytes that the memory has; 0: no limit. */
  uint64_t alignment; /* Alignment of the first byte: a power of two, at most PLAN_MOST_ALIGNMENT. */
} PlanSpace;

typedef struct PlanTensorRow {
  uint32_t name;
  uint32_t dtype;  /* Such as "fp32". */
  uint32_t layout; /* Meaning of the axes of shape; "": as in the model, "nhwc": channels last. */
  uint32_t space;  /* Row of spaces. */
  uint64_t offset; /* Bytes from the start of the space. */
  uint32_t ring;   /* Rows that are kept of the second outermost axis; 0: all of them. */
  uint32_t dims;   /* First int64_t of the tensor's record in dims. */
} PlanTensorRow;

/* A PlanTensorRow with its dims in place: a row of the section "tensors" of a plan in memory, not in a file. */
typedef struct PlanTensor {
  uint32_t name;
  uint32_t dtype;  /* Such as "fp32". */
  uint32_t layout; /* Meaning of the axes of shape; "": as in the model, "nhwc": channels last. */
  uint32_t space;  /* Row of spaces. */
  uint64_t offset; /* Bytes from the start of the space. */
  uint32_t rank;
  uint32_t ring; /* rows that are kept of the second outermost axis; 0: all of them */
  int64_t shape[PLAN_MAX_RANK];
  int64_t strides[PLAN_MAX_RANK]; /* bytes, never negative; 0 for an axis that is broadcast */
} PlanTensor;

typedef struct PlanNumerics {
  uint32_t name;   /* Name for messages, such as "host" or "h13"; the first row has the program's target. */
  uint32_t family; /* Such as "ieee". */
  uint64_t offset; /* Offset of the parameter block in attrs, a multiple of 8. */
  uint64_t bytes;  /* Size of the family's parameter block. */
} PlanNumerics;

typedef struct PlanStep {
  uint32_t kernel;   /* Looked up by name, operand dtypes and family when the plan is loaded; "program" on "ane". */
  uint32_t numerics; /* Row of numerics. */
  uint32_t device;   /* "cpu", or "ane" for a program that the plan's loader provides. */
  uint32_t source;   /* Place in the user's model that the step comes from, for messages and profiles. */
  uint32_t operands; /* First row of operands: the step's inputs, then its outputs, after the previous step's. */
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t attrs_bytes;
  uint64_t attrs;   /* Offset in attrs, a multiple of 8. */
  int64_t cut_axis; /* Axis of the first output that [begin, end) cuts; -1: the whole output, not in loops. */
  int64_t begin;
  int64_t end;
} PlanStep;

/* Trip t of a loop runs its steps in order, each on [begin + t * move, end + t * move) of its cut axis, clipped to the
 * output's extent. If the clipped range is empty, the step does not run. A range may therefore begin below 0, for steps
 * that have to wait for other steps. Enclosing loops add their own moves. begin, end, and what one loop moves them by
 * in all its trips are at most 2^27. A step in a loop reads only rows that have been written: see cpu/row_order.h. */
typedef struct PlanLoop {
  uint32_t first_step;
  uint32_t num_steps;
  int64_t trips;  /* At least 1. */
  uint64_t moves; /* Row of moves for the first step. */
} PlanLoop;

/* Weights that are packed. All other weights are read in the plan, where they lie. Before the first of its steps a
 * block is unpacked to its range of an arena, which no other operand of these steps touches. After the last of the
 * block's steps the range is free. (With enough memory, a runtime may unpack all blocks once, to their places in the
 * space of the weights.) A block's range of steps neither begins nor ends inside a loop. Weights of several steps may
 * be in several blocks with the same contents. */
typedef struct PlanBlock {
  uint64_t offset; /* Offset of the unpacked bytes in the space of kind "weights", after the section "weights". */
  uint64_t bytes;  /* At least 1. */
  uint64_t packed; /* Offset in the section "packed". */
  uint64_t packed_bytes;
  uint64_t arena_offset;
  uint32_t arena; /* Row of spaces. */
  uint32_t codec; /* "lz4": a block of LZ4, without a frame. */
  uint32_t first_step;
  uint32_t num_steps; /* at least 1 */
} PlanBlock;

typedef struct PlanPort {
  uint32_t name;         /* The user's name of the port. */
  uint32_t emitted_name; /* The name in programs emitted for a device. */
  uint32_t tensor;       /* Row of tensors, with the port's dtype, shape and strides. */
  uint32_t length;       /* 1 + the row of outputs that holds the valid length of the axis; 0: none. */
  uint32_t axis;         /* The axis of this length; 0 without one. */
  uint32_t streamed;     /* 1 if the port comes or goes row by row, see below; else 0. */
} PlanPort;

/* Only one step touches a streamed port: a copy between the whole port and an arena. In the arena the port's rows (of
 * the copy's axis 1) lie one after another, maybe in a ring. The runs of this copy visit the rows in order, each once.
 * So a runtime without memory for a streamed port may receive or send the rows in the arena, in place of the copy. */

#ifdef __cplusplus
static_assert(sizeof(PlanHeader) == 32 && sizeof(PlanSection) == 40 && sizeof(PlanSpace) == 32 &&
              sizeof(PlanTensorRow) == 32 && sizeof(PlanTensor) == 160 && sizeof(PlanNumerics) == 24 &&
              sizeof(PlanStep) == 64 && sizeof(PlanLoop) == 24 && sizeof(PlanBlock) == 56 && sizeof(PlanPort) == 24);
#endif

#endif /* HEXANE_PLAN_PLAN_H_ */
