// The parts of a plan that all callers share: its weights, the resolved steps, and the programs of devices. Any number
// of contexts run an image at the same time. Only an image's weights change, and only while no context runs.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/fork_mutex.h"
#include "core/memory.h"
#include "cpu/resolved_steps.h"
#include "plan/reader.h"
#include "run/device_steps.h"

namespace hexane::run {

class Context;

// True if the tensor lies in memory of that kind. Params that a device reads are weights in surfaces of their own.
inline bool is_kind(const plan::Plan& plan, const PlanTensor& tensor, std::string_view kind) {
  return plan.kind(tensor) == kind || (kind == "weights" && plan.kind(tensor) == "param");
}

// The first contents of states, and of params that a device reads.
struct FirstContents {
  struct Block {  // a block with a byte other than zero
    uint32_t space;
    uint64_t offset;
    Bytes bytes;
  };
  std::vector<Block> blocks;
  std::vector<plan::Piece> pieces;    // Pieces of the section "state".
  std::shared_ptr<const void> owner;  // Owner of the pieces' bytes, if not the plan's owner.
};

class Image {
 public:
  // `owner` keeps the plan's bytes alive. Large aligned weights are used in place, others are copied. Packed weights
  // are unpacked once, into a copy of all weights. With a pool, weights are copied to blocks that images share, and the
  // plan's bytes are not read again. `programs`: one for each device step of the plan, in order; `swaps`: states that
  // these programs compute anew. `state_owner` keeps the first contents of states, if `owner` does not. `packed_only`:
  // large weights in the pool that kernels have packed are not kept beside their panels. Then the weights can be
  // neither read, replaced nor saved.
  Image(const plan::Plan& plan, std::shared_ptr<const void> owner, int threads, std::shared_ptr<MemoryPool> pool = {},
        std::span<const DeviceProgram> programs = {}, std::span<const Swap> swaps = {},
        std::shared_ptr<const void> state_owner = {}, bool packed_only = false);

  const plan::Plan& plan() const { return plan_; }
  const cpu::ResolvedSteps& steps() const { return *steps_; }
  const std::vector<DeviceProgram>& programs() const { return programs_; }
  const std::vector<Swap>& swaps() const { return swaps_; }
  bool calls_back() const { return calls_back_; }
  const PlanTensor& find(std::string_view kind, std::string_view name) const;  // throws Error with the existing names

  // Replaces a weight, and everything prepared from it, for all contexts. Waits for running calls, and holds new calls
  // back until the weight is replaced.
  void update(const PlanTensor& weight, const std::byte* packed);

  std::shared_ptr<const FirstContents> first_contents();  // Null if the first contents have been dropped.
  void drop_first_contents();                             // Frees first contents; a save under way still writes them.

  // Writes the plan to a file with the current weights, and with the states' first contents or the current ones of a
  // context. Calls may run while the file is written. Throws Error if the file needs first contents that have been
  // dropped. Packed weights stay packed, unless a weight has been updated: then all weights are written unpacked.
  void save(const std::string& path, Context* states_now = nullptr);
  // Passes the bytes of the same file to `write`, in pieces.
  void write(Context* states_now, const std::function<void(std::span<const Bytes>)>& write);

  // Estimates the bytes that destroying this image and its contexts would free, while the other images of its pool
  // live on.
  uint64_t unshared_bytes();

 private:
  friend class Context;
  struct WeightPiece {
    uint64_t offset, end;   // range of the piece in the space
    const std::byte* data;  // null if only packed panels are kept
    Block block;            // the owner of the data; null if the data is in the plan's bytes
  };
  class Pause;
  void place_weights();
  void drop_packed_weights();
  void find_first_contents(std::span<const plan::Piece> pieces, std::shared_ptr<const void> state_owner);
  std::vector<Memory> first_constants(std::span<std::byte*> bases) const;
  void own_weights(uint32_t space);
  void overwrite(const PlanTensor& weight, const std::byte* packed);
  static const std::byte* bytes_of(const WeightPiece& piece);
  std::shared_ptr<Memory> copy_of_weights() const;
  const std::byte* weights_at(uint64_t offset) const;
  void add(const std::shared_ptr<Context>& context, Context* like);
  void copy_params(const Context& from, Context& to) const;

  const std::shared_ptr<const void> owner_;
  const std::shared_ptr<MemoryPool> pool_;
  const plan::Plan plan_;  // the plan without first contents
  const std::vector<DeviceProgram> programs_;
  const std::vector<Swap> swaps_;
  const bool calls_back_;
  std::unique_ptr<cpu::ResolvedSteps> steps_;

  // The members below change: a thread that uses them holds the mutex.
  ForkMutex changing_;
  std::shared_ptr<const FirstContents> first_contents_;
  std::vector<std::weak_ptr<Context>> contexts_;
  std::shared_ptr<Memory> own_weights_;  // A copy of the plan's weights, if they are not aligned or have been updated.
  bool updated_ = false;                 // Whether a weight has been updated.
  bool params_updated_ = false;          // Whether a param in surfaces of contexts has been updated.
  std::byte* weights_;                   // Null while the weights are in pieces.
  std::vector<WeightPiece> pieces_;      // Large weights, shared or in the plan's bytes, and a block of small weights.
  std::vector<Memory> first_constants_;  // For each space: first contents from which steps have prepared data.
};

}  // namespace hexane::run
