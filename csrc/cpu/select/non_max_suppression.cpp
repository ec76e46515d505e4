// non_max_suppression: for each batch item and class, selects boxes by descending score. A box that overlaps a selected
// box by more than a threshold is dropped. Boxes of different kinds never count as overlapping. All arithmetic is in
// fp32, as ONNX defines it. The output has the maximum length; unused rows are zero.
#include <algorithm>
#include <bit>
#include <cmath>

#include "cpu/operand.h"
#include "cpu/select/sort_key.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct Attributes {
  int64_t max_output;  // per class
  double iou_threshold;
  double score_threshold;  // -infinity: no threshold
  int64_t center_point_box;
};

struct Box {
  float left, top, right, bottom, area;
};

struct Entry {
  uint64_t key;  // a higher score has a smaller key
  int64_t index;
};

struct Limits {
  int64_t batches, classes, boxes, most;
};

// Returns the kind of each box, (batches, boxes); nullptr if all boxes have the same kind.
const int32_t* kinds_of(const Call& call) {
  return call.inputs.size() > 2 && call.inputs[2].present() ? call.inputs[2].as<int32_t>() : nullptr;
}

Prepared prepare(const Call& call) {
  const Tensor &boxes = call.inputs[0], &scores = call.inputs[1], &selected = call.outputs[0],
               &length = call.outputs[1];
  check_dense("non_max_suppression", "boxes", boxes);
  check_dense("non_max_suppression", "scores", scores);
  check_dense("non_max_suppression", "selected", selected);
  check_dense("non_max_suppression", "length", length);
  if (boxes.rank != 3 || scores.rank != 3 || boxes.shape[2] != 4 || boxes.shape[0] != scores.shape[0] ||
      boxes.shape[1] != scores.shape[2])
    fail("non_max_suppression", "shapes: got boxes ", shape_text(boxes), " and scores ", shape_text(scores),
         ", need (batches, boxes, 4) and (batches, classes, boxes)");
  const Limits limits{boxes.shape[0], scores.shape[1], boxes.shape[1],
                      std::clamp<int64_t>(call.attributes<Attributes>().max_output, 0, boxes.shape[1])};
  const int64_t capacity = limits.batches * limits.classes * limits.most;
  if (selected.rank != 2 || selected.shape[0] != capacity || selected.shape[1] != 3)
    fail("non_max_suppression", "selected: got the shape ", shape_text(selected), ", need (", capacity, ", 3)");
  if (kinds_of(call) != nullptr) {
    const Tensor& kinds = call.inputs[2];
    check_dense("non_max_suppression", "kinds", kinds);
    if (kinds.rank != 2 || kinds.shape[0] != limits.batches || kinds.shape[1] != limits.boxes)
      fail("non_max_suppression", "kinds: got the shape ", shape_text(kinds), ", need (", limits.batches, ", ",
           limits.boxes, ")");
  }
  if (length.rank != 0) fail("non_max_suppression", "length: got the shape ", shape_text(length), ", need a number");
  return std::make_shared<Limits>(limits);
}

// Makes a box from two corners in any order (y, x, y, x), or from center and size (x, y, width, height).
Box make_box(const float* p, bool center) {
  Box box;
  if (center) {
    const float width = p[2] / 2, height = p[3] / 2;
    box = {p[0] - width, p[1] - height, p[0] + width, p[1] + height, 0};
  } else {
    box = {p[1], p[0], p[3], p[2], 0};
    if (box.left >= box.right) std::swap(box.left, box.right);
    if (box.top >= box.bottom) std::swap(box.top, box.bottom);
  }
  box.area = (box.right - box.left) * (box.bottom - box.top);
  return box;
}

// True if two boxes overlap by more than `threshold`. Boxes of area 0 overlap nothing.
bool overlap(const Box& a, const Box& b, float threshold) {
  const float width = std::min(a.right, b.right) - std::max(a.left, b.left);
  const float height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  if (!(width > 0 && height > 0)) return false;
  const float both = width * height, either = a.area + b.area - both;
  return both > 0 && a.area > 0 && b.area > 0 && either > 0 && both / either > threshold;
}

void run(const Call& call, int, Range, std::byte* scratch, const std::byte*) {
  const auto& a = call.attributes<Attributes>();
  const auto& limits = call.state<Limits>();
  const auto iou = static_cast<float>(a.iou_threshold), least = static_cast<float>(a.score_threshold);
  const bool filter = !(std::isinf(a.score_threshold) && a.score_threshold < 0);
  auto* const entries = reinterpret_cast<Entry*>(scratch);
  auto* const boxes = reinterpret_cast<Box*>(entries + limits.boxes);
  const float* scores = call.inputs[1].as<float>();
  int64_t* const out = call.outputs[0].as<int64_t>();
  int64_t count = 0;
  for (int64_t batch = 0; batch < limits.batches; ++batch) {
    const float* corners = call.inputs[0].as<float>() + batch * limits.boxes * 4;
    for (int64_t i = 0; i < limits.boxes; ++i) boxes[i] = make_box(corners + 4 * i, a.center_point_box != 0);
    const int32_t* kinds = kinds_of(call) == nullptr ? nullptr : kinds_of(call) + batch * limits.boxes;
    for (int64_t kind = 0; kind < limits.classes; ++kind, scores += limits.boxes) {
      Entry* end = entries;
      for (int64_t i = 0; i < limits.boxes; ++i)
        if (!filter || scores[i] > least) *end++ = {~sort_key(scores[i]) & 0xffffffff, i};
      std::sort(entries, end,
                [](const Entry& x, const Entry& y) { return x.key != y.key ? x.key < y.key : x.index < y.index; });
      const int64_t first = count;
      for (const Entry* entry = entries; entry != end && count - first < limits.most; ++entry) {
        bool alone = true;
        for (int64_t k = first; alone && k < count; ++k) {
          const int64_t chosen = out[3 * k + 2];
          const bool rivals = kinds == nullptr || kinds[entry->index] == kinds[chosen];
          alone = !(rivals && overlap(boxes[entry->index], boxes[chosen], iou));
        }
        if (!alone) continue;
        out[3 * count] = batch;
        out[3 * count + 1] = kind;
        out[3 * count + 2] = entry->index;
        ++count;
      }
    }
  }
  std::fill(out + 3 * count, out + call.outputs[0].size(), 0);
  *call.outputs[1].as<int64_t>() = count;
}

int64_t cost(const Call& call) {
  const auto& limits = call.state<Limits>();
  return 50 + limits.batches * limits.classes * limits.boxes *
                  (5 + 2 * std::bit_width(static_cast<uint64_t>(limits.boxes)) + limits.most / 16);
}

int64_t scratch(const Call& call) {
  return call.state<Limits>().boxes * static_cast<int64_t>(sizeof(Entry) + sizeof(Box));
}

constexpr Kernel kernel(const char* dtypes) {
  return {
      .name = "non_max_suppression",
      .dtypes = dtypes,
      .attrs = "max_output:i iou_threshold:f score_threshold:f center_point_box:i",
      .attrs_bytes = sizeof(Attributes),
      .accepts = "dense",
      .prepare = prepare,
      .cost = cost,
      .scratch = scratch,
      .run = run,
  };
}

// Plans of older versions have no input for kinds.
constexpr Kernel kTable[] = {kernel("fp32,fp32,int32->int64,int64"), kernel("fp32,fp32->int64,int64")};

}  // namespace

std::span<const Kernel> non_max_suppression_table() { return kTable; }

}  // namespace hexane::cpu
