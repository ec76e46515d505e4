#include "cpu/row_order.h"

#include <algorithm>

#include "cpu/region.h"
#include "plan/lifetimes.h"

namespace hexane::cpu {
namespace {

struct Bytes {
  uint64_t begin, end;
};

// The bytes of one row along the axis; none unless rows lie one behind the other.
Bytes bytes_of_row(const plan::Plan& plan, PlanTensor tensor, uint32_t axis, int64_t row) {
  const int64_t place = axis == 1 && tensor.ring ? row % tensor.ring : row;
  const int64_t pitch = tensor.strides[axis];
  for (uint32_t outer = 0; outer < axis; ++outer)
    if (tensor.shape[outer] != 1) return {};
  tensor.offset += static_cast<uint64_t>(place * pitch);
  tensor.shape[axis] = 1;
  tensor.ring = 0;
  const uint64_t bytes = plan::extent_bytes(tensor, plan.dtype(tensor));
  return static_cast<uint64_t>(pitch) < bytes ? Bytes{} : Bytes{tensor.offset, tensor.offset + bytes};
}

// The rows of an input along the axis that is cut.
Range needed_rows(const Kernel& kernel, const Call& call, int input, int axis, Range rows) {
  Box box = whole(call.outputs[0]);
  box[axis] = rows;
  return needed_box(kernel, call, input, box)[axis];
}

}  // namespace

RowOrder::RowOrder(const plan::Plan& plan, size_t first, size_t end) : plan_(plan), spaces_(plan.spaces.size()) {
  for (const PlanStep& step : plan.steps.subspan(first, end - first))
    for (uint64_t i = step.operands + step.num_inputs; i < step.operands + step.num_inputs + step.num_outputs; ++i) {
      const PlanTensor& out = plan.tensors[plan.operands[i]];
      uint64_t& to = spaces_[out.space].bytes[out.offset];
      to = std::max(to, out.offset + plan::extent_bytes(out, plan.dtype(out)));
    }
  for (Written& space : spaces_) {  // joined, so that they are disjoint
    std::map<uint64_t, uint64_t> joined;
    for (const auto& [begin, to] : space.bytes) {
      if (!joined.empty() && joined.rbegin()->second >= begin)
        joined.rbegin()->second = std::max(joined.rbegin()->second, to);
      else
        joined.emplace(begin, to);
    }
    space.bytes = std::move(joined);
  }
}

bool RowOrder::touches(const PlanTensor& tensor) const {
  const auto& bytes = spaces_[tensor.space].bytes;
  const uint64_t end = tensor.offset + plan::extent_bytes(tensor, plan_.dtype(tensor));
  const auto after = bytes.lower_bound(end);
  return after != bytes.begin() && std::prev(after)->second > tensor.offset;
}

void RowOrder::count(const std::string& where, Range rows) {
  rows_left_ -= rows.end - rows.begin;
  if (rows_left_ < 0) fail(where, "loop: got too many rows to follow, need fewer");
}

void RowOrder::run(const std::string& where, const PlanStep& step, const Kernel& kernel, const Call& call, Range rows) {
  const auto axis = static_cast<uint32_t>(step.cut_axis);
  for (uint32_t i = 0; i < step.num_inputs; ++i) {
    const uint32_t id = plan_.operands[step.operands + i];
    if (id == PLAN_ABSENT || !touches(plan_.tensors[id])) continue;
    const PlanTensor& in = plan_.tensors[id];
    if (in.rank <= axis) fail(where, "input ", i, ": got no axis ", axis, ", need the one the loop cuts");
    const Range needed = needed_rows(kernel, call, static_cast<int>(i), static_cast<int>(axis), rows);
    count(where, needed);
    const auto& there = spaces_[in.space].rows;
    for (int64_t row = needed.begin; row < needed.end; ++row) {
      const Bytes bytes = bytes_of_row(plan_, in, axis, row);
      const auto found = there.find(bytes.begin);
      if (bytes.end == 0 || found == there.end() || found->second.end != bytes.end || found->second.index != row ||
          !plan::is_same_view(plan_.tensors[found->second.tensor], in))
        fail(where, "input ", i, ": row ", row, " is not there, need it written before and not overwritten");
    }
  }
  for (uint32_t i = 0; i < step.num_outputs; ++i) {
    const uint32_t id = plan_.operands[step.operands + step.num_inputs + i];
    const PlanTensor& out = plan_.tensors[id];
    const Range written = i == 0 ? rows : Range{0, out.rank > axis ? out.shape[axis] : 0};
    count(where, written);
    auto& there = spaces_[out.space].rows;
    for (int64_t row = written.begin; row < written.end; ++row) {
      const Bytes bytes = bytes_of_row(plan_, out, axis, row);
      const bool apart = bytes.end != 0;  // else everything of the tensor is lost to readers
      const Bytes lost = apart ? bytes : Bytes{out.offset, out.offset + plan::extent_bytes(out, plan_.dtype(out))};
      auto at = there.lower_bound(lost.begin);
      if (at != there.begin() && std::prev(at)->second.end > lost.begin) --at;
      while (at != there.end() && at->first < lost.end) at = there.erase(at);
      if (apart) there.emplace(bytes.begin, Row{bytes.end, id, row});
    }
  }
}

}  // namespace hexane::cpu
