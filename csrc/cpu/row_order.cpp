#include "cpu/row_order.h"

#include <algorithm>

#include "cpu/region.h"
#include "plan/lifetimes.h"
#include "plan/loops.h"

namespace hexane::cpu {
namespace {

struct Bytes {
  uint64_t begin, end;
};

// Returns the view of one row of the axis.
PlanTensor row_of(PlanTensor tensor, uint32_t axis, int64_t row) {
  const int64_t place = axis == 1 && tensor.ring ? row % tensor.ring : row;
  tensor.offset += static_cast<uint64_t>(place * tensor.strides[axis]);
  tensor.shape[axis] = 1;
  tensor.ring = 0;
  return tensor;
}

// Returns the bytes of a row, from first to last; an empty range if rows interleave.
Bytes bytes_of_row(const plan::Plan& plan, const PlanTensor& tensor, uint32_t axis, int64_t row) {
  for (uint32_t outer = 0; outer < axis; ++outer)
    if (tensor.shape[outer] != 1) return {};
  const PlanTensor alone = row_of(tensor, axis, row);
  const uint64_t bytes = plan::extent_bytes(alone, plan.dtype(alone));
  return static_cast<uint64_t>(tensor.strides[axis]) < bytes ? Bytes{} : Bytes{alone.offset, alone.offset + bytes};
}

// Divides a view into dense lines: the bytes of a line, and the axes [first, end) that enumerate the lines.
struct Lines {
  uint64_t bytes;
  uint32_t first, end;
};

Lines lines_of(const PlanTensor& view, DType dtype, uint32_t axis) {
  Lines lines{(static_cast<uint64_t>(info(dtype).bits) + 7) / 8, axis, view.rank};
  while (lines.end > axis &&
         (view.shape[lines.end - 1] == 1 || static_cast<uint64_t>(view.strides[lines.end - 1]) == lines.bytes))
    lines.bytes *= static_cast<uint64_t>(view.shape[--lines.end]);
  return lines;
}

int64_t count_lines(const PlanTensor& view, const Lines& lines) {
  int64_t count = 1;
  for (uint32_t i = lines.first; i < lines.end; ++i) count *= view.shape[i];
  return count;
}

void add_lines(const PlanTensor& view, const Lines& lines, int64_t count, plan::WrittenBytes& written) {
  for (int64_t index = 0; index < count; ++index) {
    uint64_t offset = view.offset;
    int64_t rest = index;
    for (uint32_t i = lines.end; i-- > lines.first; rest /= view.shape[i])
      offset += static_cast<uint64_t>(rest % view.shape[i] * view.strides[i]);
    written.add(offset, lines.bytes);
  }
}

// Returns the rows of an input along the cut axis that these rows of the output need.
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
  for (SpaceRows& space : spaces_) {  // merges overlapping ranges
    std::map<uint64_t, uint64_t> joined;
    for (const auto& [begin, to] : space.bytes) {
      if (!joined.empty() && joined.rbegin()->second >= begin)
        joined.rbegin()->second = std::max(joined.rbegin()->second, to);
      else
        joined.emplace(begin, to);
    }
    space.bytes = std::move(joined);
  }
  add_from_before(first, end);
}

void RowOrder::add_from_before(size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    const PlanStep& step = plan_.steps[i];
    const auto axis = static_cast<uint32_t>(step.cut_axis);
    for (const uint32_t id : plan_.operands.subspan(step.operands, step.num_inputs)) {
      if (id == PLAN_ABSENT || plan_.tensors[id].rank <= axis || !touches(plan_.tensors[id])) continue;
      const PlanTensor& in = plan_.tensors[id];
      if (in.ring || !is_from_before(id, first)) continue;
      count(in.shape[axis]);
      for (int64_t row = 0; row < in.shape[axis]; ++row)
        if (const Bytes bytes = bytes_of_row(plan_, in, axis, row); bytes.end)
          spaces_[in.space].rows.insert_or_assign(bytes.begin, Row{bytes.end, id, axis, row});
    }
  }
}

// True if the last step before `first` that writes bytes of the tensor writes exactly this view and dtype.
bool RowOrder::is_from_before(uint32_t id, size_t first) {
  const PlanTensor& in = plan_.tensors[id];
  const auto writes = [&](size_t i) {  // returns an output of step i that shares bytes with the tensor, or null
    const PlanStep& step = plan_.steps[i];
    count(step.num_outputs);
    for (const uint32_t out : plan_.operands.subspan(step.operands + step.num_inputs, step.num_outputs))
      if (plan::may_overlap(plan_.tensors[out], plan_.dtype(plan_.tensors[out]), in, plan_.dtype(in)))
        return &plan_.tensors[out];
    return static_cast<const PlanTensor*>(nullptr);
  };
  size_t writer = first;
  const PlanTensor* made = nullptr;
  while (!made && writer > 0) made = writes(--writer);
  if (!made || !plan::is_same_view(*made, in) || made->dtype != in.dtype) return false;
  const PlanStep& step = plan_.steps[writer];
  if (step.num_outputs != 1) return false;
  for (const PlanLoop& loop : plan::outer_loops(plan_)) {
    if (writer < loop.first_step || writer - loop.first_step >= loop.num_steps) continue;
    for (size_t i = loop.first_step; i < writer; ++i)  // the loop's steps before the writer run again after it
      if (writes(i)) return false;
    int64_t written = 0;
    for (const plan::Run& run : plan::unroll(plan_, loop.first_step, loop.first_step + loop.num_steps)) {
      count(1);
      if (run.step == writer && run.begin <= written) written = std::max(written, run.end);
    }
    return written == made->shape[step.cut_axis];
  }
  return step.cut_axis == -1 || (step.begin == 0 && step.end == made->shape[step.cut_axis]);
}

bool RowOrder::touches(const PlanTensor& tensor) const {
  const auto& bytes = spaces_[tensor.space].bytes;
  const uint64_t end = tensor.offset + plan::extent_bytes(tensor, plan_.dtype(tensor));
  const auto after = bytes.lower_bound(end);
  return after != bytes.begin() && std::prev(after)->second > tensor.offset;
}

void RowOrder::count(int64_t rows) {
  rows_left_ -= std::min(rows, rows_left_ + 1);
  if (rows_left_ < 0) fail("plan", "loop: got too many rows to follow, need fewer");
}

std::map<uint64_t, RowOrder::Row>::iterator RowOrder::SpaceRows::from(uint64_t begin) {
  const auto at = rows.lower_bound(begin - std::min(begin, interleaved));
  return at == rows.begin() ? at : std::prev(at);
}

void RowOrder::run(const std::string& where, const PlanStep& step, const Kernel& kernel, const Call& call, Range rows) {
  const auto axis = static_cast<uint32_t>(step.cut_axis);
  for (uint32_t i = 0; i < step.num_inputs; ++i) {
    const uint32_t id = plan_.operands[step.operands + i];
    if (id == PLAN_ABSENT || !touches(plan_.tensors[id])) continue;
    const PlanTensor& in = plan_.tensors[id];
    if (in.rank <= axis) fail(where, "input ", i, ": got no axis ", axis, ", need the one the loop cuts");
    const Range needed = needed_rows(kernel, call, static_cast<int>(i), static_cast<int>(axis), rows);
    count(needed.end - needed.begin);
    for (int64_t row = needed.begin; row < needed.end; ++row)
      if (!is_there(id, axis, row))
        fail(where, "input ", i, ": row ", row, " is not there, need it written before and not overwritten");
  }
  if (kernel.in_order && rows.begin > 0 &&
      !is_there(plan_.operands[step.operands + step.num_inputs], axis, rows.begin - 1))
    fail(where, "output 0: row ", rows.begin - 1, " is not there, need rows in order and none overwritten");
  for (uint32_t i = 0; i < step.num_outputs; ++i) {
    const uint32_t id = plan_.operands[step.operands + step.num_inputs + i];
    const PlanTensor& out = plan_.tensors[id];
    const Range written = i == 0 ? rows : Range{0, out.rank > axis ? out.shape[axis] : 0};
    count(written.end - written.begin);
    for (int64_t row = written.begin; row < written.end; ++row) write(id, axis, row);
  }
}

bool RowOrder::is_there(uint32_t id, uint32_t axis, int64_t row) {
  const PlanTensor& in = plan_.tensors[id];
  const Bytes bytes = bytes_of_row(plan_, in, axis, row);
  if (bytes.end == 0) return false;
  SpaceRows& space = spaces_[in.space];
  const auto found = space.rows.find(bytes.begin);
  if (found != space.rows.end() && found->second.end == bytes.end && found->second.index == row &&
      plan::is_same_view(plan_.tensors[found->second.tensor], in))
    return true;
  std::vector<uint32_t> pieces{axis, id};  // pieces that cover this row; the same for every row
  for (auto at = space.from(bytes.begin); at != space.rows.end() && at->first < bytes.end; ++at) {
    const PlanTensor& piece = plan_.tensors[at->second.tensor];
    count(1);
    if (at->second.end > bytes.begin && at->second.axis == axis && at->second.index == row && piece.ring == in.ring &&
        piece.strides[axis] == in.strides[axis])
      pieces.push_back(at->second.tensor);
  }
  const auto [known, is_new] = covered_.try_emplace(pieces, false);
  if (is_new) {
    plan::WrittenBytes there;
    for (size_t i = 2; i < pieces.size(); ++i) {
      const PlanTensor alone = row_of(plan_.tensors[pieces[i]], axis, row);
      const Lines lines = lines_of(alone, plan_.dtype(alone), axis);
      const int64_t num_lines = count_lines(alone, lines);
      count(num_lines);
      add_lines(alone, lines, num_lines, there);
    }
    known->second = there.covers(row_of(in, axis, row), plan_.dtype(in));
  }
  return known->second;
}

// Marks a row as valid, and rows that share bytes with it as invalid.
void RowOrder::write(uint32_t id, uint32_t axis, int64_t row) {
  const PlanTensor& out = plan_.tensors[id];
  const Bytes bytes = bytes_of_row(plan_, out, axis, row);
  const bool apart = bytes.end != 0;  // if the row has no byte range of its own, the whole tensor becomes invalid
  const PlanTensor alone = apart ? row_of(out, axis, row) : out;
  const Bytes lost = apart ? bytes : Bytes{out.offset, out.offset + plan::extent_bytes(out, plan_.dtype(out))};
  SpaceRows& space = spaces_[out.space];
  for (auto at = space.from(lost.begin); at != space.rows.end() && at->first < lost.end;) {
    const Row& other = at->second;
    const uint64_t other_bytes = other.end - at->first;
    count(1);
    if (other.end <= lost.begin) {
      ++at;
      continue;
    }
    const PlanTensor there = row_of(plan_.tensors[other.tensor], other.axis, other.index);
    if (apart && other.tensor != id && !plan::may_overlap(there, plan_.dtype(there), alone, plan_.dtype(alone))) {
      space.interleaved = std::max({space.interleaved, other_bytes, bytes.end - bytes.begin});
      ++at;
    } else {
      at = space.rows.erase(at);
    }
  }
  if (apart) space.rows.insert_or_assign(bytes.begin, Row{bytes.end, id, axis, row});
}

}  // namespace hexane::cpu
