#include "plan/blocks.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/lz4.h"
#include "plan/loops.h"

namespace hexane::plan {
namespace {

std::string place(size_t row) { return "plan: blocks[" + std::to_string(row) + "]"; }

bool same_contents(const PlanBlock& a, const PlanBlock& b) {
  return a.offset == b.offset && a.bytes == b.bytes && a.packed == b.packed && a.packed_bytes == b.packed_bytes;
}

void unpack(const Plan& plan, size_t row, std::span<std::byte> to) {
  const PlanBlock& block = plan.blocks[row];
  lz4_unpack(place(row), plan.packed.subspan(block.packed, block.packed_bytes), to);
}

// True if bytes [offset, offset + bytes) overlap one of the ranges, which do not overlap each other.
template <typename Begin>
bool meets(const std::map<uint64_t, size_t>& ranges, std::span<const PlanBlock> blocks, uint64_t offset, uint64_t bytes,
           Begin begin) {
  const auto after = ranges.lower_bound(offset + bytes);
  if (bytes == 0 || after == ranges.begin()) return false;
  const PlanBlock& before = blocks[std::prev(after)->second];
  return begin(before) + before.bytes > offset;
}

constexpr auto kInArena = [](const PlanBlock& block) { return block.arena_offset; };

void check_fields(const Plan& plan, const std::vector<bool>& on_device, size_t row) {
  const PlanBlock& block = plan.blocks[row];
  const std::string where = place(row);
  if (block.codec >= plan.strings.size())
    fail(where, "codec: got string ", block.codec, ", need less than ", plan.strings.size());
  if (plan.string(block.codec) != "lz4") fail(where, "codec: got '", plan.string(block.codec), "', need lz4");
  if (block.arena >= plan.spaces.size() || plan.string(plan.spaces[block.arena].kind) != "arena")
    fail(where, "arena: got the space ", block.arena, ", need one of kind arena");
  if (on_device[block.arena]) fail(where, "arena: got the memory of a device, need the CPU's");
  check_range(where, "in the arena", block.arena_offset, block.bytes, plan.spaces[block.arena].bytes);
  check_range(where, "packed", block.packed, block.packed_bytes, plan.packed.size());
  if (block.bytes == 0 || block.bytes / 255 > block.packed_bytes)
    fail(where, "bytes: got ", block.bytes, " of ", block.packed_bytes, " packed, need 1 or more that LZ4 can give");
}

void check_steps(const Plan& plan, const std::vector<PlanLoop>& loops, size_t row) {
  const PlanBlock& block = plan.blocks[row];
  const std::string where = place(row);
  const uint64_t first = block.first_step, end = first + block.num_steps;
  if (block.num_steps == 0 || end > plan.steps.size())
    fail(where, "steps: got [", first, ", ", end, "), need some of ", plan.steps.size());
  if (row && first < plan.blocks[row - 1].first_step)
    fail(where, "first_step: got ", first, ", need at least ", plan.blocks[row - 1].first_step);
  for (const uint64_t step : {first, end}) {
    const auto after = std::lower_bound(loops.begin(), loops.end(), step,
                                        [](const PlanLoop& loop, uint64_t step) { return loop.first_step < step; });
    if (after != loops.begin() && step - std::prev(after)->first_step < std::prev(after)->num_steps)
      fail(where, "steps: got [", first, ", ", end, "), need no end inside of a loop");
  }
}

// Returns one row for each distinct block contents, in the order of the weights.
std::vector<size_t> distinct_blocks(const Plan& plan) {
  std::vector<size_t> rows(plan.blocks.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::stable_sort(rows.begin(), rows.end(),
                   [&](size_t a, size_t b) { return plan.blocks[a].offset < plan.blocks[b].offset; });
  const auto same = [&](size_t a, size_t b) { return same_contents(plan.blocks[a], plan.blocks[b]); };
  rows.erase(std::unique(rows.begin(), rows.end(), same), rows.end());
  return rows;
}

// Blocks of different contents lie one after another in the section "packed". In the space of the weights, blocks
// follow the unpacked weights, with gaps smaller than the alignment. So the space of the weights is no larger than the
// file's unpacked contents can be.
void check_space(const Plan& plan) {
  const PlanSpace* space = weights_space(plan);
  if (!space) fail("plan", "blocks: got some, need a space of kind weights");
  uint64_t end = end_of(plan.weights), packed = 0;
  for (const size_t row : distinct_blocks(plan)) {
    const PlanBlock& block = plan.blocks[row];
    if (block.offset < end || block.offset - end >= PLAN_ALIGNMENT)
      fail(place(row), "offset: got ", block.offset, ", need it less than ", PLAN_ALIGNMENT, " bytes after ", end);
    check_range(place(row), "in the weights", block.offset, block.bytes, space->bytes);
    if (block.packed != packed) fail(place(row), "packed: got ", block.packed, ", need ", packed);
    end = block.offset + block.bytes;
    packed += block.packed_bytes;
  }
  if (space->bytes - end >= PLAN_ALIGNMENT)
    fail("plan", "blocks: got ", end, " bytes of weights, need those of the space, ", space->bytes);
  if (packed != plan.packed.size())
    fail("plan", "packed: got ", plan.packed.size(), " bytes, need those of the blocks, ", packed);
}

}  // namespace

LiveBlocks::LiveBlocks(const Plan& plan) : plan_(plan), in_arena_(plan.spaces.size()) {
  if (plan.blocks.empty() && !plan.packed.empty())
    fail("plan", "packed: got ", plan.packed.size(), " bytes, need none without blocks");
  if (plan.blocks.empty()) return;
  const std::vector<bool> on_device = device_spaces(plan);
  const std::vector<PlanLoop> loops = outer_loops(plan);
  for (size_t row = 0; row < plan.blocks.size(); ++row) {
    check_fields(plan, on_device, row);
    check_steps(plan, loops, row);
  }
  check_space(plan);
  std::vector<std::byte> unpacked;
  for (const size_t row : distinct_blocks(plan)) {
    unpacked.resize(plan.blocks[row].bytes);
    unpack(plan, row, unpacked);
  }
}

std::span<const PlanBlock> LiveBlocks::begin(size_t step) {
  while (!by_end_.empty() && by_end_.begin()->first <= step) {
    const PlanBlock& block = plan_.blocks[by_end_.begin()->second];
    in_arena_[block.arena].erase(block.arena_offset);
    in_weights_.erase(block.offset);
    by_end_.erase(by_end_.begin());
  }
  const size_t first = next_;
  for (; next_ < plan_.blocks.size() && plan_.blocks[next_].first_step == step; ++next_) insert(next_);
  return plan_.blocks.subspan(first, next_ - first);
}

void LiveBlocks::insert(size_t row) {
  const PlanBlock& block = plan_.blocks[row];
  ByOffset& arena = in_arena_[block.arena];
  if (meets(arena, plan_.blocks, block.arena_offset, block.bytes, kInArena))
    fail(place(row), "got bytes of the arena in which another block is, need its own");
  if (in_weights_.count(block.offset)) fail(place(row), "got weights that another block has at the same time");
  arena.emplace(block.arena_offset, row);
  in_weights_.emplace(block.offset, row);
  by_end_.emplace(uint64_t{block.first_step} + block.num_steps, row);
}

void LiveBlocks::check_operand(const std::string& where, const PlanTensor& tensor) const {
  const uint64_t bytes = extent_bytes(tensor, plan_.dtype(tensor));
  if (plan_.kind(tensor) != "weights") {
    if (meets(in_arena_[tensor.space], plan_.blocks, tensor.offset, bytes, kInArena))
      fail(where, plan_.string(tensor.name), ": got bytes of the arena in which packed weights are");
    return;
  }
  if (tensor.offset + bytes <= end_of(plan_.weights)) return;
  const auto after = in_weights_.upper_bound(tensor.offset);
  const PlanBlock* block = after == in_weights_.begin() ? nullptr : &plan_.blocks[std::prev(after)->second];
  if (!block || tensor.offset + bytes > block->offset + block->bytes)
    fail(where, plan_.string(tensor.name), ": reads weights that are not in a block unpacked for this step");
}

void unpack_weights(const Plan& plan, std::span<std::byte> to) {
  copy_pieces(plan.weights, 0, to);
  for (const size_t row : distinct_blocks(plan))
    unpack(plan, row, to.subspan(plan.blocks[row].offset, plan.blocks[row].bytes));
}

}  // namespace hexane::plan
