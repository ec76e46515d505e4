// interleave: [N, H, W, G * R * S * C] -> [N, OH, OW, G * C]. The channels of an input pixel hold R x S pixels of the
// result. `begin`: the number of leading rows and columns to drop from the result.
//
//   x: a b    channels:  a0 a1   b0 b1    result:  a0 a1 b0 b1
//                        a2 a3   b2 b3             a2 a3 b2 b3
#include <algorithm>

#include "cpu/move/strided_copy.h"
#include "cpu/operand.h"
#include "cpu/region.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

constexpr const char* kName = "interleave";

struct InterleaveAttributes {
  int64_t block[2], begin[2], groups;
};

Prepared prepare(const Call& call) {
  if (call.inputs.size() != 1 || call.outputs.size() != 1)
    fail(kName, "operands: got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need 1 and 1");
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  check_image(kName, "input", in);
  check_written(kName, "output", out);
  check_image(kName, "output", out);
  if (item_bytes(in) != item_bytes(out))
    fail(kName, "output dtype: got ", info(out.dtype).name, ", need the size of ", info(in.dtype).name);
  const auto& a = call.attributes<InterleaveAttributes>();
  for (int i = 0; i < 2; ++i) {
    if (a.block[i] < 1 || a.block[i] > 1 << 16) fail(kName, "block: got ", a.block[i], ", need 1 to ", 1 << 16);
    if (a.begin[i] < 0 || a.begin[i] >= a.block[i])
      fail(kName, "begin: got ", a.begin[i], ", need 0 to ", a.block[i] - 1);
  }
  if (a.groups < 1 || a.groups > 1 << 20) fail(kName, "groups: got ", a.groups, ", need 1 to ", 1 << 20);
  if (in.rank != 4 || out.rank != 4 || in.shape[0] != out.shape[0] || out.shape[3] % a.groups ||
      in.shape[3] / (a.block[0] * a.block[1]) != out.shape[3] || in.shape[3] % (a.block[0] * a.block[1]))
    fail(kName, "shapes: got ", shape_text(in), " and ", shape_text(out), ", need channels of ", a.block[0], " x ",
         a.block[1], " pixels in ", a.groups, " groups");
  for (int i = 0; i < 2; ++i)
    if (out.shape[1 + i] > 0 && (out.shape[1 + i] + a.begin[i] + a.block[i] - 1) / a.block[i] > in.shape[1 + i])
      fail(kName, "output axis ", 1 + i, ": got ", out.shape[1 + i], ", need at most ",
           in.shape[1 + i] * a.block[i] - a.begin[i]);
  return nullptr;
}

void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor &in = call.inputs[0], &out = call.outputs[0];
  const auto& a = call.attributes<InterleaveAttributes>();
  const auto part = [&](int which) { return axis == which ? range : Range{0, out.shape[which]}; };
  const Range images = part(0), rows = part(1);
  const int64_t item = item_bytes(out), channels = out.shape[3] / a.groups, unit = channels * item;
  const int64_t block = a.block[0] * a.block[1] * unit;  // bytes of one group's channels in a pixel of x
  for (int64_t n = images.begin; n < images.end; ++n)
    for (int64_t y = rows.begin; y < rows.end; ++y) {
      const int64_t iy = (y + a.begin[0]) / a.block[0], py = (y + a.begin[0]) % a.block[0];
      const std::byte* from_row =
          in.data + n * in.strides[0] + in.kept_row(iy) * in.strides[1] + py * a.block[1] * unit;
      std::byte* to_row = out.data + n * out.strides[0] + y * out.strides[1];
      int64_t ix = 0, px = a.begin[1];
      for (int64_t x = 0; x < out.shape[2]; ++x) {
        const std::byte* from = from_row + ix * in.strides[2] + px * unit;
        std::byte* to = to_row + x * out.strides[2];
        for (int64_t g = 0; g < a.groups; ++g) copy_run(to + g * unit, from + g * block, unit);
        if (++px == a.block[1]) px = 0, ++ix;
      }
    }
}

void cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  if (out.shape[0] > 1) cuts.add(0, out.shape[0]);
  if (out.shape[1] > 1) cuts.add(1, out.shape[1]);
}

Box needs(const Call& call, int, const Box& out) {
  const auto& a = call.attributes<InterleaveAttributes>();
  Box box = whole(call.inputs[0]);
  box[0] = out[0];
  for (int i = 0; i < 2; ++i)
    box[1 + i] = {(out[1 + i].begin + a.begin[i]) / a.block[i], (out[1 + i].end - 1 + a.begin[i]) / a.block[i] + 1};
  return box;
}

int64_t cost(const Call& call) { return 20 + call.outputs[0].size() * item_bytes(call.outputs[0]) / 12; }

constexpr Kernel row(const char* dtypes) {
  return {
      .name = kName,
      .dtypes = dtypes,
      .family = "any",
      .attrs = "block:2i begin:2i groups:i",
      .attrs_bytes = sizeof(InterleaveAttributes),
      .accepts = "rows",
      .prepare = prepare,
      .cuts = cuts,
      .needs = needs,
      .cost = cost,
      .run = run,
      .reads_ring = true,
  };
}

constexpr Kernel kTable[] = {row("8b->8b"), row("16b->16b"), row("32b->32b"), row("64b->64b")};

}  // namespace

std::span<const Kernel> interleave_table() { return kTable; }

}  // namespace hexane::cpu
