// A CPU kernel, as other code sees it: a row in a table. A step looks its kernel up once, by name, dtypes and family.
//
// A kernel states along which axes its first output can be cut, with which grain, and which box of an input a box of
// the output needs. Threads, tiles and row streaming all use this interface. Calls of run() on ranges that together
// cover the output give the same bits as one run() on the whole output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "core/limits.h"
#include "core/memory_pool.h"

namespace hexane::cpu {

// One operand of a call. An absent optional input has data == nullptr and rank == -1.
struct Tensor {
  std::byte* data;
  DType dtype;
  int rank;
  bool constant;           // A weight, or a state that no step writes: fixed bytes, readable in prepare().
  int64_t ring;            // Number of rows of axis 1 in memory (0: all rows); row i lies at i % ring.
  const int64_t* shape;    // Extents, [rank].
  const int64_t* strides;  // Strides in bytes, [rank]; 0 where an axis is broadcast.

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  bool present() const { return rank >= 0; }
  // Returns the place of row i of axis 1 among the rows in memory.
  int64_t kept_row(int64_t i) const { return ring ? i % ring : i; }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

// The result of prepare() for a call, computed when a plan is loaded: for example packed weights, coalesced strides,
// resolved activations.
using Prepared = std::shared_ptr<const void>;

// A step with its operands resolved.
struct Call {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  const void* attrs;           // The kernel's attributes.
  const char* strings;         // Section "strings" of the plan: a string attribute is an offset into it.
  const void* prepared;        // The result of prepare(), or null.
  const void* numerics;        // Parameters of the family's arithmetic, such as a chip's tables; null for ieee.
  MemoryPool* pool = nullptr;  // Shares packed weights between programs; may be null.
  bool asks = false;           // The call only answers queries and never runs, so prepare() need not pack weights.
  int threads = 1;             // Number of threads that may share the steps of a body.
  int depth = 0;               // Number of bodies that enclose the step.

  // For prepare(): shares packed weights. Returns `packed`, or equal bytes of another program from the pool.
  Block share(Memory packed) const {
    return pool ? pool->keep(std::move(packed)) : std::make_shared<const Memory>(std::move(packed));
  }
  // Like share(), but packs only if the pool lacks the block. Blocks are found by the kernel, the weight's dtype,
  // shape, strides and bytes, and `layout`. `layout` has to list all other values that the packed bytes depend on.
  template <typename Pack>
  Block share_packed(const char* kernel, const Tensor& weight, std::initializer_list<int64_t> layout, int64_t bytes,
                     const Pack& pack) const {
    const auto make = [&] {
      Memory packed(static_cast<uint64_t>(bytes), "packed weights");
      pack(packed.data());
      return packed;
    };
    if (!pool) return std::make_shared<const Memory>(make());
    std::string key = kernel;
    const auto add = [&](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
    add(weight.dtype);
    for (int i = 0; i < weight.rank; ++i) {
      add(weight.shape[i]);
      add(weight.strides[i]);
    }
    for (const int64_t item : layout) add(item);
    add(bytes);
    return pool->made_of(weight.data, std::move(key), make);
  }

  template <typename T>
  const T& attributes() const {
    return *static_cast<const T*>(attrs);
  }
  template <typename T>
  const T& state() const {
    return *static_cast<const T*>(prepared);
  }
  std::string_view string(uint64_t id) const { return strings + id; }
};

struct Range {
  int64_t begin;
  int64_t end;
  bool operator==(const Range&) const = default;
};

// A part of a tensor: a range of each of its axes.
struct Box {
  int rank = 0;
  Range axes[8] = {};
  Range& operator[](int axis) { return axes[axis]; }
  const Range& operator[](int axis) const { return axes[axis]; }
};

// An axis of the first output that pieces may divide. A piece is [i * grain, j * grain) or ends at the extent.
struct Cut {
  int axis;
  int64_t extent;
  int64_t grain;
};

struct Cuts {
  Cut items[8];
  int count = 0;  // 0: the output is computed in one piece, run() gets axis -1
  void add(int axis, int64_t extent, int64_t grain = 1) { items[count++] = {axis, extent, grain}; }
};

// The rows of a weight in a kernel's packed form: byte j of row i lies at
// data[i / group * group_bytes + j * group + i % group].
struct PackedRows {
  Block block;  // the owner of the data; null: the packed form has no such rows
  const std::byte* data = nullptr;
  int64_t group = 0, group_bytes = 0;
};

// One row of a kernel table, written with designated initialisers. Fields left out keep their defaults. Attribute
// structs have only 8-byte fields, described by a layout string that Python packs them with. For example "stride:2i
// alpha:f mode:s axes:L epilogue:E" means int64_t stride[2]; double alpha; uint64_t mode; IntList axes; Epilogue
// epilogue.
struct Kernel {
  const char* name;

  // "fp32,fp32->fp32"; "*" is any dtype, "8b" "16b" "32b" "64b" any dtype of that size. A trailing "..." repeats the
  // last dtype for every further operand on its side. An absent input matches any token.
  const char* dtypes;

  // The arithmetic: "ieee" or "engine"; or "any". A kernel of "any" does no arithmetic on the elements' values, so
  // it serves every family.
  const char* family = "ieee";

  const char* attrs = "";   // Layout string of the attributes.
  int64_t attrs_bytes = 0;  // Size of the attribute struct.
  const char* accepts;      // Accepts any strides ("strided"), a dense innermost axis ("rows"), or no gaps ("dense").

  // All functions of a kernel are pure, except that run() and begin() write outputs and scratch.

  // Checks a call and prepares its data; null: nothing to prepare. Reads constant inputs only; throws Error (where =
  // kernel name) if shapes, strides or attributes do not fit.
  Prepared (*prepare)(const Call&) = nullptr;
  // Returns true if only prepare() reads this constant input: it has copied what the other functions need. The bytes of
  // the input may be gone after prepare(). Null: other functions may read every input.
  bool (*copies)(const Call&, int input) = nullptr;
  // Returns the rows of a constant matrix that prepare() has packed. Null: no packed form has them.
  PackedRows (*packed_rows)(const Call&, int input) = nullptr;
  // Like prepare(), for a call that reads a constant matrix from the packed rows of another step. The bytes of the
  // input itself may be gone. Returns null if the call cannot do that. Null: no call can.
  Prepared (*prepare_packed)(const Call&, int input, const PackedRows& rows) = nullptr;
  // Lists the axes that pieces may divide, the best for threads first; null: the output is computed in one piece.
  void (*cuts)(const Call&, Cuts&) = nullptr;
  // Returns the box of an input, which must be present, that the box `out` of the outputs depends on. All outputs have
  // the shape of the first output. The returned box lies inside the input; its range of an axis may be empty. Null:
  // every output depends on the whole of every input. Call needs() through needed_box().
  Box (*needs)(const Call&, int input, const Box& out) = nullptr;
  // Returns the estimated nanoseconds on one core; null: the time to move the operands' bytes.
  int64_t (*cost)(const Call&) = nullptr;
  // Returns the bytes of scratch for each thread; null: none.
  int64_t (*scratch)(const Call&) = nullptr;
  // Returns the bytes of scratch that all threads of a call share. begin() fills this scratch before the first run().
  // Null: none.
  int64_t (*shared_scratch)(const Call&) = nullptr;
  // Fills the shared scratch, for example with a packed weight that is not constant. begin() may read only inputs 1 and
  // 2 as rings. Null: nothing to fill.
  void (*begin)(const Call&, std::byte* shared) = nullptr;
  // Divides the work of begin() among threads: begin_parts() returns the number of parts, begin_part() does one of
  // them. begin() does all parts.
  int64_t (*begin_parts)(const Call&) = nullptr;
  void (*begin_part)(const Call&, int64_t part, std::byte* shared) = nullptr;
  void (*run)(const Call&, int axis, Range range, std::byte* scratch, const std::byte* shared);

  // Called before run(): returns true if run() will change the old contents of the outputs. Null: always true.
  bool (*changes)(const Call&) = nullptr;

  // True if run() reads input 0 as a ring (Tensor::kept_row), with windows across the ring's end. For all other rings
  // run_rows() in rings.h shifts the base address, so that the kernel sees whole tensors.
  bool reads_ring = false;

  // True if a run along axis 1 reads the row before its range from output 0. The kernel's ranges then run in order on
  // one thread. Output 0 may be a ring with fewer rows than a range.
  bool in_order = false;

  // True if run() runs a plan of its own. The threads then share the steps of that plan, not this step.
  bool runs_steps = false;
};

// Returns every kernel table of the library, for the best instruction set of this machine.
std::span<const std::span<const Kernel>> kernel_tables();

// Returns the kernel for these operands in that family, or in "any". If no kernel matches, throws an Error that lists
// the existing kernels.
const Kernel& find_kernel(std::string_view name, std::string_view family, const Call& call);

// True if there is a kernel for operands of these dtypes; absent operands are ignored.
bool has_kernel(std::string_view name, std::string_view family, std::span<const Tensor> inputs,
                std::span<const Tensor> outputs);

// cuts() of kernels whose output can be cut along every axis with grain 1. The outermost axis with an extent other than
// 1 comes first.
void cut_every_axis(const Call& call, Cuts& cuts);

// ---- attribute fields of variable length ----

struct IntList {  // layout "L"
  int64_t count;
  int64_t values[kMaxList];
};

// The operations between an accumulator and the stored value, in order: add the bias (an operand of its own), then each
// slot.
struct EpilogueSlot {
  uint64_t kind;  // The string "add" (adds the operand), or the name of a unary op with a row function.
  double alpha;   // The op's first two numeric attributes in the order of its record, or 0.
  double beta;
  int64_t operand;  // for "add", the index in Call::inputs; for other ops, -1
};

struct Epilogue {  // layout "E"
  int64_t count;
  EpilogueSlot slots[kMaxSlots];
};

// Applies a unary op to n floats in place. Epilogues call activations through this type.
using RowFunction = void (*)(float* x, int64_t n, float alpha, float beta);
RowFunction find_row_function(std::string_view op);  // throws Error if the op has no row function

}  // namespace hexane::cpu
