/* Shared by the loader, the executor and the kernels. */
#ifndef HEXANE_INTERNAL_H_
#define HEXANE_INTERNAL_H_

#include <float.h>
#include <limits.h>
#include <string.h>

#include "hexane_kernels.h"
#include "plan.h"

#if FLT_EVAL_METHOD != 0
#error "floats have to be computed as floats: use SSE (-msse2 -mfpmath=sse) or another FPU than x87"
#endif

/* Keeps functions with large stack frames from being inlined: together they could need too large a frame. */
#if defined(__GNUC__)
#define HX_NOINLINE __attribute__((noinline))
#else
#define HX_NOINLINE
#endif

/* The sections, in the order of the file. */
enum {
  HX_STRINGS,
  HX_SPACES,
  HX_TENSORS,
  HX_DIMS,
  HX_OPERANDS,
  HX_NUMERICS,
  HX_STEPS,
  HX_LOOPS,
  HX_MOVES,
  HX_ATTRS,
  HX_INPUTS,
  HX_OUTPUTS,
  HX_BLOCKS,
  HX_WEIGHTS,
  HX_PACKED,
  HX_STATE
};

typedef enum hx_dtype {
  HX_BOOL,
  HX_INT8,
  HX_UINT8,
  HX_INT16,
  HX_UINT16,
  HX_FP16,
  HX_INT32,
  HX_UINT32,
  HX_FP32,
  HX_INT64,
  HX_UINT64,
  HX_FP64,
  HX_DTYPES
} hx_dtype;

/* A mask with a bit for each dtype of the program. A program may leave out dtypes that its plan does not use. The
 * program then rejects plans with other dtypes. */
#if !defined(HX_PLAN_DTYPES)
#define HX_PLAN_DTYPES ((1u << HX_DTYPES) - 1)
#endif

static inline int hx_has_dtype(hx_dtype dtype) { return (int)(HX_PLAN_DTYPES >> dtype & 1); }
static inline int hx_is(hx_dtype dtype, hx_dtype one) { return hx_has_dtype(one) && dtype == one; }

/* ---- bytes: little-endian, at any address ---- */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HX_LITTLE_ENDIAN 1
#else
#define HX_LITTLE_ENDIAN 0
#endif

/* Copies a word. With -ffreestanding the compiler does not know memcpy(), and so would not inline a call. */
#if defined(__GNUC__)
#define HX_COPY(to, from, bytes) __builtin_memcpy(to, from, bytes)
#else
#define HX_COPY(to, from, bytes) memcpy(to, from, bytes)
#endif

static inline uint32_t hx_u32(const void* at) {
#if HX_LITTLE_ENDIAN
  uint32_t value;
  HX_COPY(&value, at, 4);
  return value;
#else
  const uint8_t* p = (const uint8_t*)at;
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
#endif
}

static inline void hx_put_u32(void* at, uint32_t value) {
#if HX_LITTLE_ENDIAN
  HX_COPY(at, &value, 4);
#else
  uint8_t* p = (uint8_t*)at;
  int i;
  for (i = 0; i < 4; ++i) p[i] = (uint8_t)(value >> 8 * i);
#endif
}

static inline uint64_t hx_u64(const void* at) {
  return (uint64_t)hx_u32(at) | (uint64_t)hx_u32((const uint8_t*)at + 4) << 32;
}

/* Converts bits to a signed number in two's complement. C99 leaves the result of a cast to the compiler. */
static inline int32_t hx_signed(uint32_t bits) {
  int32_t value;
  HX_COPY(&value, &bits, 4);
  return value;
}

static inline int64_t hx_i64(const void* at) {
  const uint64_t bits = hx_u64(at);
  int64_t value;
  HX_COPY(&value, &bits, 8);
  return value;
}

static inline float hx_f32(const void* at) {
  const uint32_t bits = hx_u32(at);
  float value;
  HX_COPY(&value, &bits, 4);
  return value;
}

static inline void hx_put_f32(void* at, float value) {
  uint32_t bits;
  HX_COPY(&bits, &value, 4);
  hx_put_u32(at, bits);
}

static inline uint32_t hx_u32_of(float value) {
  uint32_t bits;
  HX_COPY(&bits, &value, 4);
  return bits;
}

/* Rounds the bits of a double to float, to nearest even. The code uses integers, because most small FPUs have no
 * doubles. */
float hx_to_float(uint64_t bits);

static inline int32_t hx_i8(const uint8_t* at) { return *at < 128 ? *at : *at - 256; }

/* True if hx_whole() reads elements of the dtype: integers except uint64, and bool. */
int hx_is_whole(hx_dtype dtype);
int64_t hx_whole(const uint8_t* at, hx_dtype dtype);
/* Stores the lower `item` bytes of an integer. */
void hx_put_whole(uint8_t* to, int32_t item, int64_t value);
/* Converts bits in two's complement, like hx_signed(). */
int64_t hx_wrapped(uint64_t bits);

/* Reads a number from a row of the plan: a field of 4 bytes, or the lower half of a field of 8 bytes whose upper
 * half is known. */
#define HX_FIELD(row, type, field) hx_u32((row) + offsetof(type, field))

static inline int32_t hx_min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t hx_max(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- tensors ---- */

/* A tensor of the plan. Extents and strides fit in int32_t: the loader refuses plans of 2 GiB and more. */
typedef struct hx_view {
  uint8_t* data; /* null for a port without memory */
  int32_t shape[PLAN_MAX_RANK];
  int32_t strides[PLAN_MAX_RANK]; /* Strides in bytes; 0: broadcast. */
  int32_t ring;                   /* Number of rows of axis 1 in memory; 0: all. */
  int32_t rank;
  int32_t item; /* bytes of an element */
  hx_dtype dtype;
  uint32_t space, offset;
} hx_view;

typedef struct hx_range {
  int32_t begin, end;
} hx_range;

/* A call of a step. */
typedef struct hx_call {
  hx_net* net;
  const hx_kernel* kernel;
  const hx_activation* activation; /* the activation of the kernel "unary" */
  const uint8_t* attrs;
  uint32_t step;
  uint32_t operands; /* the step's first row in the section of operands */
  uint32_t num_inputs, num_outputs;
} hx_call;

/* Which rows of an input a row of the output needs. */
typedef enum hx_needs {
  HX_NEEDS_ALL,   /* All rows. */
  HX_NEEDS_WHOLE, /* All rows; the kernel has no cuts, and its check() checks the number of outputs. */
  HX_NEEDS_SAME,  /* The row of the same index, for inputs with the output's extent along the axis. */
  HX_NEEDS_ROWS,  /* The rows that rows() gives for input 0; HX_NEEDS_SAME for all other inputs. */
  HX_NEEDS_ORDER  /* The row of the same index, and the previous row of the output, which may be a ring. */
} hx_needs;

struct hx_kernel {
  const char* name;
  /* Length of the attributes in words of 8 bytes. */
  uint32_t attrs_words;
  /* A mask with a bit for each axis along which the output can be cut. */
  uint32_t cuts;
  hx_needs needs;
  /* Checks all conditions that run() relies on. */
  hx_status (*check)(const hx_call*);
  /* For HX_NEEDS_ROWS: returns the rows (axis 1) of input 0 that these rows of the output need. run() can read them
   * from a ring. */
  hx_range (*rows)(const hx_call*, hx_range);
  /* Computes a range of an axis of the output; axis -1: the whole output. */
  void (*run)(const hx_call*, int axis, hx_range range);
};

/* A program that sets neither trace nor yield may leave both hooks out of the build. */
#if !defined(HX_HOOKS)
#define HX_HOOKS 1
#endif

struct hx_body {
  const char* name;
  const char* kernel; /* The kernel whose steps the body can compute. */
  /* Checks all conditions that run() relies on. *bytes: the scratch that run() needs for any range of rows. */
  hx_status (*check)(const hx_call*, const hx_body_step*, uint32_t* bytes);
  /* Computes a range as a kernel does. Returns 0 if the body cannot compute the range; the kernel then computes the
   * whole range. */
  int (*run)(const hx_call*, const hx_body_step*, uint8_t* scratch, int axis, hx_range range);
};

/* A program that contains its plan, verified by the tool that wrote it, may leave the verification out of the build. */
#if !defined(HX_TRUSTED_PLAN)
#define HX_CHECK(check) check
#define HX_CHECK_FUNCTION static
#elif defined(__GNUC__)
#define HX_CHECK(check) 0
#define HX_CHECK_FUNCTION static __attribute__((unused))
#else
#define HX_CHECK(check) 0
#define HX_CHECK_FUNCTION static
#endif

#define HX_CUT_ALL 0xffu
#define HX_CUT_ROWS 2u

/* A program may leave activations out of the build if its plan has none. */
#if defined(HX_NO_ACTIVATIONS)
#define HX_ACTIVATIONS 0
#else
#define HX_ACTIVATIONS 1
#endif

struct hx_activation {
  const char* name;
  uint32_t num_numbers;
  float (*apply)(float x, float alpha, float beta);
};

/* ---- the plan ---- */

/* The kinds of memory. */
typedef enum hx_kind {
  HX_WEIGHTS_SPACE,
  HX_ARENA_SPACE,
  HX_STATE_SPACE,
  HX_PARAM_SPACE,
  HX_PORT_SPACE,
  HX_KINDS
} hx_kind;

static inline const uint8_t* hx_row(const hx_net* net, int section, uint32_t row, size_t bytes) {
  return net->sections[section].data + row * bytes;
}
static inline const uint8_t* hx_step_row(const hx_net* net, uint32_t i) {
  return hx_row(net, HX_STEPS, i, sizeof(PlanStep));
}
static inline const uint8_t* hx_loop_row(const hx_net* net, uint32_t i) {
  return hx_row(net, HX_LOOPS, i, sizeof(PlanLoop));
}
static inline const uint8_t* hx_space_row(const hx_net* net, uint32_t i) {
  return hx_row(net, HX_SPACES, i, sizeof(PlanSpace));
}
/* Returns row i of the section of operands: a tensor id, or PLAN_ABSENT. */
static inline uint32_t hx_operand_id(const hx_net* net, uint32_t i) { return hx_u32(hx_row(net, HX_OPERANDS, i, 4)); }

const char* hx_string(const hx_net* net, uint64_t offset);
int hx_same(const char* a, const char* b);
/* Returns the index of a name in a list of names. A zero byte ends each name, and another zero byte ends the list.
 * Returns the number of names if the list lacks the name. */
int hx_index_of(const char* name, const char* names);
hx_kind hx_kind_of(const hx_net* net, uint32_t space);
/* Returns the space of port i of the section HX_INPUTS or HX_OUTPUTS. */
uint32_t hx_port_space(const hx_net* net, int section, uint32_t i);
const char* hx_port_name(const hx_net* net, int section, uint32_t i);
void hx_port(const hx_net* net, int section, uint32_t i, hx_view* view);
/* Sets the error of a net and returns `status`. With HX_SHORT_ERRORS `what` is "", which saves about 5 KiB of texts. */
hx_status hx_fail(hx_net* net, hx_status status, const char* where, uint32_t row, const char* name, const char* what);
static inline int hx_is_byte(hx_dtype dtype) { return hx_is(dtype, HX_INT8) || hx_is(dtype, HX_UINT8); }
/* True for a signed 8-bit dtype. */
static inline int hx_is_signed(hx_dtype dtype) { return !hx_is(dtype, HX_UINT8); }
/* True if an 8-bit dtype holds the number. */
static inline int hx_holds(hx_dtype dtype, int32_t zero) {
  return hx_is_signed(dtype) ? zero >= -128 && zero < 128 : zero >= 0 && zero < 256;
}
extern const char hx_bad_zero[];
/* Checks that a call has two 8-bit inputs that broadcast to an 8-bit output. The other arguments: the attribute words
 * with the zero points. */
hx_status hx_check_bytes(const hx_call* call, uint32_t x_zero, uint32_t y_zero, uint32_t output_zero);

/* Sets the error of a step, like hx_fail(). */
hx_status hx_bad_step(hx_net* net, uint32_t step, const char* what);
static inline hx_status hx_refuse(const hx_call* call, const char* what) {
  return hx_bad_step(call->net, call->step, what);
}

/* Returns the record of a tensor in the section "dims": rank, extents and strides, 8 bytes each. */
const uint8_t* hx_dims(const hx_net* net, uint32_t id);
void hx_tensor(const hx_net* net, uint32_t id, hx_view* view);
#if defined(HX_SHORT_ERRORS)
#define hx_fail(net, status, where, row, name, what) (hx_fail)(net, status, where, row, name, ((void)(what), ""))
#define hx_bad_step(net, step, what) (hx_bad_step)(net, step, ((void)(what), ""))
#define hx_refuse(call, what) (hx_refuse)(call, ((void)(what), ""))
#endif
/* Gets operand i, counted over inputs and then outputs. Returns 0 if an optional operand is absent. */
int hx_operand(const hx_call* call, uint32_t i, hx_view* view);
/* Gets input i. Returns 0 if an optional input is absent. */
int hx_input(const hx_call* call, uint32_t i, hx_view* view);
static inline int hx_output(const hx_call* call, uint32_t i, hx_view* view) {
  return hx_operand(call, call->num_inputs + i, view);
}
/* Gets the first `inputs` inputs, followed by the output. Returns 0 if an input is absent. */
int hx_views(const hx_call* call, uint32_t inputs, hx_view* views);
/* Like hx_views(), but also returns 0 if the step has more inputs. */
int hx_operands(const hx_call* call, uint32_t inputs, hx_view* views);
/* Returns the bytes from the first to the last byte of a view's elements; 0 if it has no elements. */
uint32_t hx_extent(const hx_view* view);
int32_t hx_size(const hx_view* view);

void hx_step(hx_net* net, uint32_t index, hx_call* call);
const hx_kernel* hx_find_kernel(const hx_net* net, const char* name, const hx_activation** activation);
const hx_activation* hx_find_activation(const hx_net* net, const char* name);

/* Returns word i of the attributes. */
static inline int64_t hx_attr_i(const hx_call* call, uint32_t i) { return hx_i64(call->attrs + 8 * i); }
/* Returns word i as 32 bits, or INT32_MIN if it does not fit. Every check rejects INT32_MIN. */
int32_t hx_attr_n(const hx_call* call, uint32_t i);
static inline float hx_attr_f(const hx_call* call, uint32_t i) { return hx_to_float(hx_u64(call->attrs + 8 * i)); }
static inline double hx_attr_d(const hx_call* call, uint32_t i) {
  const uint64_t bits = hx_u64(call->attrs + 8 * i);
  double value;
  HX_COPY(&value, &bits, 8);
  return value;
}
/* Stores word i of the attributes, a double, as an element of this dtype: fp32, or truncated to a dtype of
 * hx_is_whole(). Returns 0 if the dtype cannot hold the number. */
int hx_attr_element(const hx_call* call, uint32_t i, hx_dtype dtype, uint8_t* to);
/* Returns the lowest or the highest value of an integer dtype. */
int64_t hx_end_of(hx_dtype dtype, int is_low);
static inline const char* hx_attr_s(const hx_call* call, uint32_t i) {
  return hx_string(call->net, hx_u64(call->attrs + 8 * i));
}
#define HX_LIST_WORDS 9u /* count, 8 values */
#define HX_EPILOGUE_WORDS 17u

/* True if the string attribute in word i is an offset in the section "strings". */
int hx_is_string(const hx_call* call, uint32_t i);

/* Sets the memory of weights to the plan's bytes, and checks that the other memories are present. */
hx_status hx_place_memory(hx_net* net);
const char* hx_section_name(uint32_t section);

/* A program may leave states and parameters out of the build if its plan has none. The program then rejects plans with
 * states or parameters. */
#if defined(HX_NO_STATES)
#define HX_STATES 0
#else
#define HX_STATES 1
#endif
hx_status hx_verify(hx_net* net);
/* Loads the plan of a body of a loop or branch. All of its memory except its ports lies in `room`. `verifies`: not 0 to
 * verify the plan. *body is null if the room is too small for an hx_net. */
hx_status hx_load_body(hx_net* around, const void* plan, size_t bytes, uint8_t* room, size_t room_bytes, int verifies,
                       hx_net** body);
hx_status hx_verify_steps(hx_net* net);

/* A program whose plan has no packed weights may leave their code out of the build. */
#if !defined(HX_NO_BLOCKS)
/* Unpacks the blocks from row *next on whose first step is `step` or an earlier step. */
hx_status hx_unpack_blocks(hx_net* net, uint32_t* next, uint32_t step);
/* Returns the address of packed weights during this step; null if they are not unpacked then. */
uint8_t* hx_unpacked(const hx_net* net, uint32_t step, uint32_t offset, uint32_t bytes);
hx_status hx_verify_blocks(hx_net* net);
/* Checks that the packed weights of an operand are unpacked during the step, and that no other operand of the step
 * shares their bytes. */
hx_status hx_verify_operand(hx_net* net, uint32_t step, uint32_t id);
#else
#define hx_unpack_blocks(net, next, step) ((void)(next), (void)(step), HX_OK)
#define hx_verify_operand(net, step, id) ((void)(step), (void)(id), HX_OK)
static inline hx_status hx_verify_blocks(hx_net* net) {
  if (net->sections[HX_BLOCKS].rows == 0) return HX_OK;
  return hx_fail(net, HX_UNSUPPORTED, "blocks", 0, "", "this build has no packed weights");
}
#endif

/* Returns the end of the longest range from range.begin on in which no operand wraps around its ring. Input 0 of a
 * kernel with rows() may wrap around its ring. */
int32_t hx_turn_end(const hx_call* call, hx_range range);

/* A program whose plan has no streamed ports may leave their code out of the build. */
#if !defined(HX_NO_STREAMED_PORTS)
/* True if port i of HX_INPUTS or HX_OUTPUTS is streamed. */
int hx_is_streamed(const hx_net* net, int section, uint32_t i);
/* True if the step is the copy of a streamed port. */
int hx_streams(const hx_call* call);
/* Runs the hook of a streamed port, which provides or consumes the rows in place of the copy. Returns the hook's
 * result. */
int hx_move_rows(const hx_call* call, int axis, hx_range range);
hx_status hx_verify_streamed_ports(hx_net* net);
#else
#define hx_is_streamed(net, section, i) ((void)(net), (void)(section), (void)(i), 0)
#define hx_streams(call) ((void)(call), 0)
#define hx_move_rows(call, axis, range) ((void)(call), (void)(axis), (void)(range), 0)
static inline hx_status hx_verify_streamed_ports(hx_net* net) {
  int section;
  uint32_t i;
  for (section = HX_INPUTS; section <= HX_OUTPUTS; ++section)
    for (i = 0; i < net->sections[section].rows; ++i)
      if (hx_u32(net->sections[section].data + i * sizeof(PlanPort) + offsetof(PlanPort, streamed)))
        return hx_fail(net, HX_UNSUPPORTED, "ports", i, "", "this build has no streamed ones");
  return HX_OK;
}
#endif

/* Lets the step's body compute a range. Returns 0 if the step has no body, or its body cannot compute the range.
 * Programs without bodies leave this function out of the build. */
#if defined(HX_BODIES)
int hx_run_body(const hx_call* call, int axis, hx_range range);
#else
#define hx_run_body(call, axis, range) 0
#endif

/* Returns XXH64 with seed 0. */
uint64_t hx_checksum(const uint8_t* p, size_t bytes);

#define HX_MOST_DEPTH 8 /* most nested loops */

/* Visits the runs of all steps in order, loops unrolled. */
typedef struct hx_runs {
  struct {
    uint32_t row, trip;
  } open[HX_MOST_DEPTH];
  uint32_t step, next_loop, depth;
} hx_runs;

/* Gets the next run. Returns 0 after the last run. For a whole step, axis is -1 and the range is empty. */
int hx_next_run(const hx_net* net, hx_runs* runs, uint32_t* step, int* axis, hx_range* range);

/* Returns the rows of an input that a range of the output along `axis` needs. */
hx_range hx_needed(const hx_call* call, uint32_t input, int axis, hx_range range);

/* ---- walking over elements ---- */

#define HX_WALK 4

/* A walk over views, broadcast to the shape of the last view. Each step of a walk visits one row of the merged
 * innermost axes. */
typedef struct hx_walk {
  int num, rank;
  int32_t shape[PLAN_MAX_RANK], index[PLAN_MAX_RANK];
  int32_t strides[HX_WALK][PLAN_MAX_RANK];
  uint8_t* at[HX_WALK];
  int32_t count; /* elements in a row */
  int32_t step[HX_WALK];
} hx_walk;

/* Begins a walk over a range of an axis of the last view, or with axis -1 over everything. Returns 0 if there is
 * nothing to visit. */
int hx_walk_begin(hx_walk* walk, const hx_view* views, int num, int axis, hx_range range);
int hx_walk_next(hx_walk* walk);

/* True if `view` broadcasts to `out`. */
int hx_broadcasts(const hx_view* view, const hx_view* out);
int hx_same_shape(const hx_view* a, const hx_view* b);
/* True if elements are in row-major order without gaps. */
int hx_is_dense(const hx_view* view);
/* True if the innermost axis has no gaps. */
int hx_is_dense_inside(const hx_view* view);

/* ---- arithmetic ---- */

/* Returns a b + c, rounded once. */
float hx_fma_soft(float a, float b, float c);
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define HX_FUSES 1
#else
#define HX_FUSES 0
#endif

#if HX_FUSES
#define hx_fma(a, b, c) __builtin_fmaf(a, b, c)
#define hx_multiply_add(a, b, c) __builtin_fmaf(a, b, c)
#else
#define hx_fma(a, b, c) hx_fma_soft(a, b, c)
#define hx_multiply_add(a, b, c) ((a) * (b) + (c)) /* only for sums whose result has a tolerance */
#endif

/* Rounds to the nearest integer, halves to even. */
static inline float hx_rounded(float x) {
  const float magic = x < 0 ? -8388608.0f : 8388608.0f; /* 2^23 */
  if (!(x < 8388608.0f && x > -8388608.0f)) return x;
  return (x + magic) - magic;
}
#if defined(__OPTIMIZE_SIZE__)
float hx_round(float x); /* one copy of the function, not one in each file */
#else
#define hx_round hx_rounded
#endif

static inline float hx_clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

/* True if the hardware computes doubles. */
#if !defined(HX_SOFT_DOUBLES) && (!defined(__arm__) || (defined(__ARM_FP) && __ARM_FP & 8))
#define HX_HAS_DOUBLES 1
#else
#define HX_HAS_DOUBLES 0
#endif

/* Returns a / step as two floats: the rounded quotient and its rounding error. `step` has the bits of a positive
 * double, and the quotient is computed in double. The results are finite; NaN gives 0. */
void hx_divide(float a, uint64_t step, float* high, float* rest);

/* Returns sum * (scale / count). Quotient and product are rounded to double, and the product then to float. The
 * scale is positive. */
float hx_share(int64_t sum, float scale, int32_t count);

#define HX_INFINITY __builtin_inff()

/* Returns the number of terms of a block in a sum of k terms, as csrc/cpu/sums.h does. */
int32_t hx_sum_block(int32_t k);

float hx_exp(float x);
float hx_log(float x);
float hx_log1p(float x);
double hx_exp_wide(double x);     /* Returns e^x. */
float hx_power(float x, float y); /* Returns x^y, with products in double. */
float hx_sqrt(float x);
float hx_scale(float x, float k);       /* Returns x 2^k. */
float hx_reduce_exp(float x, float* k); /* Returns x - k ln 2. */
float hx_exp_slope(float r);            /* Returns (e^r - 1) / r. */

/* ---- integers ---- */

typedef enum hx_integer_op {
  HX_ADD,
  HX_SUB,
  HX_MUL,
  HX_REAL_DIV,
  HX_FLOOR_DIV,
  HX_MOD,
  HX_FMOD,
  HX_MAXIMUM,
  HX_MINIMUM,
  HX_POW,
  HX_PRELU,
  HX_BITWISE_AND,
  HX_BITWISE_OR,
  HX_BITWISE_XOR,
  HX_SHIFT_LEFT,
  HX_SHIFT_RIGHT,
  HX_ABS, /* HX_ABS and later ops have one operand */
  HX_NEG,
  HX_SIGN,
  HX_RELU,
  HX_SQUARE,
  HX_CLIP,
  HX_NO_OP
} hx_integer_op;

/* A program may leave integer arithmetic out of the build if its plan uses it only in quantised ops. The program then
 * rejects plans with other integer ops. */
#if !defined(HX_NO_INTEGERS)
/* Checks that a call has `num` inputs of one integer dtype, which is also the output's. */
hx_status hx_check_integers(const hx_call* call, uint32_t num);
void hx_run_integers(const hx_call* call, int axis, hx_range range, hx_integer_op op);
/* Call this function after hx_check_reduce(). */
hx_status hx_check_integer_reduce(const hx_call* call);
/* kept, inner: the results of hx_split_reduce(). */
void hx_run_integer_reduce(hx_integer_op op, int is_mean, const hx_view* kept, hx_view* inner);
#else
#define hx_check_integers(call, num) \
  hx_fail((call)->net, HX_UNSUPPORTED, "steps", (call)->step, (call)->kernel->name, "dtype: need fp32")
#define hx_run_integers(call, axis, range, op) ((void)(op))
#define hx_check_integer_reduce(call) hx_refuse(call, "dtype: need fp32")
#define hx_run_integer_reduce(op, is_mean, kept, inner) ((void)(op))
#endif

/* ---- epilogues ---- */

/* A program may leave all epilogues but clamps, and all results of quantised products but 8-bit ones, out of the build
 * if its plan has no others. The program then rejects plans with others. */
#if !defined(HX_ONLY_CLAMPS)
#define HX_ONLY_CLAMPS 0
#endif

typedef struct hx_slot {
  enum { HX_SLOT_ADD, HX_SLOT_CLAMP, HX_SLOT_FUNCTION } kind;
  float alpha, beta;
  uint32_t operand;
  float (*apply)(float x, float alpha, float beta);
} hx_slot;

typedef struct hx_epilogue {
  int count;
  hx_slot slots[4];
} hx_epilogue;

/* `word`: the first word of the epilogue in the attributes. `can_add`: slots may add operands of the output's shape. */
hx_status hx_check_epilogue(const hx_call* call, uint32_t word, int can_add);
void hx_read_epilogue(const hx_call* call, uint32_t word, hx_epilogue* epilogue);

/* Applies the slots to x. extra[i] points to the number that slot i adds. */
float hx_apply_epilogue(const hx_epilogue* epilogue, float x, const uint8_t* const* extra);

#endif
