// A CPU kernel, as the rest of the code sees it: a row in a table, looked up once by name, dtypes and family.
//
// A kernel says along which axes its first output can be cut, in which steps, and which box of an input a box of the
// output needs. Threads, tiles and row streaming all use this interface. Calls of run() on ranges that together cover
// the output give the same bits as one run() on all of it.
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

// One operand of a call. An optional input that is not there has data == nullptr and rank == -1.
struct Tensor {
  std::byte* data;
  DType dtype;
  int rank;
  bool constant;           // a weight, or a state that no step writes: the same bytes in every call, known in prepare()
  int64_t ring;            // rows kept of axis 1 (0: all): row i lives at i % ring
  const int64_t* shape;    // [rank]
  const int64_t* strides;  // [rank], bytes; 0 where an axis is broadcast

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  bool present() const { return rank >= 0; }
  // Where row i of axis 1 lies among the rows that are kept.
  int64_t kept_row(int64_t i) const { return ring ? i % ring : i; }
  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

// The result of prepare() for a call when a plan is loaded: packed weights, coalesced strides, resolved activations.
using Prepared = std::shared_ptr<const void>;

// A step with its operands resolved.
struct Call {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  const void* attrs;           // the kernel's attribute struct
  const char* strings;         // section "strings" of the plan: a string attribute is an offset into it
  const void* prepared;        // the result of prepare(), or null
  const void* numerics;        // parameters of the family's arithmetic, e.g. of one chip; null for ieee
  MemoryPool* pool = nullptr;  // memory that programs share, or null
  bool asks = false;           // the call is never run: prepare() need not pack weights
  int threads = 1;             // that may share the steps of a body
  int depth = 0;               // bodies that the step lies in

  // Packed weights, for prepare(): the memory itself, or the same bytes of another program.
  Block share(Memory packed) const {
    return pool ? pool->keep(std::move(packed)) : std::make_shared<const Memory>(std::move(packed));
  }
  // The same, packed only if no other program has done so. layout: all that the packed bytes depend on besides the
  // kernel, and the weight's dtype, shape, strides and bytes.
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

// An axis of the first output along which it may be computed piece by piece: [i * grain, j * grain) or up to extent.
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

// One row of a kernel table: written with designated initialisers, without the fields that it has nothing to say of.
// Attribute structs have only 8-byte fields, described by a layout string that Python packs by: "stride:2i alpha:f
// mode:s axes:L epilogue:E" is int64_t stride[2]; double alpha; uint64_t mode; IntList axes; Epilogue epilogue.
struct Kernel {
  const char* name;

  // "fp32,fp32->fp32"; "*" is any dtype, "8b" "16b" "32b" "64b" any dtype of that size. A trailing "..." repeats the
  // last dtype for every further operand on its side. An absent input matches any token.
  const char* dtypes;

  // The arithmetic: "ieee", "engine", "q31"; or "any", of a kernel that computes nothing from the elements' values, and
  // so serves steps of every family.
  const char* family = "ieee";

  const char* attrs = "";   // layout string
  int64_t attrs_bytes = 0;  // sizeof the attribute struct
  const char* accepts;      // strides of operands: "strided" any, "rows" innermost axis dense, "dense" no gaps

  // All functions are pure except the computing ones, which write only their outputs and scratch.

  // Null: nothing to prepare. Reads constant inputs only; throws Error (where = kernel name) if shapes, strides or
  // attributes do not fit.
  Prepared (*prepare)(const Call&) = nullptr;
  // Best axis for threads first; null: in one piece.
  void (*cuts)(const Call&, Cuts&) = nullptr;
  // The box of a present input that a box of the outputs needs; all outputs have the shape of the first. No byte
  // outside this box has any influence. The box lies inside the tensor; an axis of it may be empty. Null: all of every
  // input. Call it through needed_box().
  Box (*needs)(const Call&, int input, const Box& out) = nullptr;
  // About how many nanoseconds one core takes; null: as long as moving the operands' bytes.
  int64_t (*cost)(const Call&) = nullptr;
  // Bytes each thread needs in addition to the output; null: none.
  int64_t (*scratch)(const Call&) = nullptr;
  // Bytes one call needs, filled by begin() before the first run(); null: none.
  int64_t (*shared_scratch)(const Call&) = nullptr;
  // Packs for example a weight that is not constant. Inputs 1 and 2 are the only rings that it reads. Null:
  // nothing.
  void (*begin)(const Call&, std::byte* shared) = nullptr;
  // Where threads can share what begin() does: how many parts it has, and one of them. begin() does them all.
  int64_t (*begin_parts)(const Call&) = nullptr;
  void (*begin_part)(const Call&, int64_t part, std::byte* shared) = nullptr;
  void (*run)(const Call&, int axis, Range range, std::byte* scratch, const std::byte* shared);

  // True if run() changes the old contents of the outputs before it; null: it may.
  bool (*changes)(const Call&) = nullptr;

  // True if run() finds the rows of input 0 in a ring (Tensor::kept_row), also for windows that span its end. All other
  // rings are made to look whole by run_rows() in rings.h.
  bool reads_ring = false;

  // True if a run along axis 1 reads the row before its range from output 0, which it finds in a ring. Ranges are then
  // run one after the other, in order. Then no thread shares a step, and an output that is a ring may be shorter than a
  // range.
  bool in_order = false;

  // True if run() runs a plan of its own. The threads share its steps in place of this plan's.
  bool runs_steps = false;
};

// Every table of the library, for the best instruction set of this machine.
std::span<const std::span<const Kernel>> kernel_tables();

// The row for these operands in that family, or in "any"; throws Error naming what there is if there is none.
const Kernel& find_kernel(std::string_view name, std::string_view family, const Call& call);

// True if there is one for operands of these dtypes; absent operands are ignored.
bool has_kernel(std::string_view name, std::string_view family, std::span<const Tensor> inputs,
                std::span<const Tensor> outputs);

// Kernels whose output can be cut along every axis, one row at a time, best the outermost axis that is not 1.
void cut_every_axis(const Call& call, Cuts& cuts);

// ---- attribute fields of variable length ----

struct IntList {  // layout "L"
  int64_t count;
  int64_t values[kMaxList];
};

// The steps from an accumulator to the stored value, in order: add the bias (an operand of its own), then each slot.
struct EpilogueSlot {
  uint64_t kind;  // string: "add" (adds the operand) or the name of a unary op with a row function
  double alpha;   // first two numeric attributes of that op, in the order of its record; 0 where it has none
  double beta;
  int64_t operand;  // index in Call::inputs for "add", else -1
};

struct Epilogue {  // layout "E"
  int64_t count;
  EpilogueSlot slots[kMaxSlots];
};

// Applies the unary op to n floats in place: what activations are to an epilogue.
using RowFunction = void (*)(float* x, int64_t n, float alpha, float beta);
RowFunction find_row_function(std::string_view op);  // throws Error if the op has none

}  // namespace hexane::cpu
