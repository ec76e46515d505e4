#include <algorithm>
#include <map>
#include <vector>

#include "alloc/working_set.h"
#include "core/error.h"

namespace hexane::alloc {

void check(const WorkingSet& set, const Placement& placement) {
  struct Piece {
    int64_t offset, end;
    size_t tensor;
  };
  if (placement.spilled.size() != set.tensors.size() || placement.offsets.size() != set.tensors.size())
    fail("working_set_check", "got ", placement.offsets.size(), " places, need one for each of ", set.tensors.size(),
         " tensors");
  std::map<int64_t, std::vector<Piece>> by_step;
  int64_t traffic = 0, height = 0;
  for (size_t id = 0; id < set.tensors.size(); id++) {
    const Resident& tensor = set.tensors[id];
    const bool spilled = placement.spilled[id];
    const std::vector<int64_t>& offsets = placement.offsets[id];
    if (tensor.touches.empty()) fail("working_set_check", "tensor ", id, ": need a step that touches it");
    if (spilled && tensor.fixed) fail("working_set_check", "tensor ", id, ": got a spill, need none: it is fixed");
    if (offsets.size() != (spilled ? tensor.touches.size() : 1))
      fail("working_set_check", "tensor ", id, ": got ", offsets.size(), " offsets, need one, or one for each touch");
    for (const int64_t offset : offsets)
      if (offset < 0 || offset % set.alignment)
        fail("working_set_check", "tensor ", id, " offset: got ", offset, ", need a multiple of ", set.alignment);
    if (spilled) {
      traffic += tensor.bytes * static_cast<int64_t>(tensor.touches.size());
      if (!tensor.made || tensor.stored) traffic -= tensor.bytes;
      for (size_t i = 0; i < offsets.size(); i++)
        by_step[tensor.touches[i]].push_back({offsets[i], offsets[i] + tensor.tile_bytes, id});
    } else {
      for (int64_t step = tensor.touches.front(); step <= tensor.touches.back(); step++)
        by_step[step].push_back({offsets[0], offsets[0] + tensor.bytes, id});
    }
  }
  for (auto& [step, pieces] : by_step) {
    std::erase_if(pieces, [](const Piece& piece) { return piece.offset == piece.end; });
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    for (size_t i = 0; i < pieces.size(); i++) {
      height = std::max(height, pieces[i].end);
      if (i && pieces[i].offset < pieces[i - 1].end)
        fail("working_set_check", "step ", step, ": tensor ", pieces[i].tensor, " at ", pieces[i].offset,
             " overlaps tensor ", pieces[i - 1].tensor, ", which ends at ", pieces[i - 1].end);
    }
  }
  if (height > placement.height || placement.height > set.capacity)
    fail("working_set_check", "height: got ", placement.height, " bytes, need ", height, "..", set.capacity);
  if (traffic != placement.traffic)
    fail("working_set_check", "traffic: got ", placement.traffic, " bytes, need ", traffic);
}

}  // namespace hexane::alloc
