// random: uniform numbers in [0, 1) from Philox4x32-10, ten rounds of mixing a counter with a key. The key is the
// stream's seed. The counter is (index of a group of four elements, number of the call), so element i does not depend
// on the cutting into pieces.
#include <algorithm>

#include "cpu/operand.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct Words {
  uint32_t words[4];
};

Words philox(uint64_t low, uint64_t high, uint64_t key) {
  uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
  uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

Prepared prepare(const Call& call) {
  const Tensor &stream = call.inputs[0], &out = call.outputs[0];
  check_dense("random", "stream", stream);
  check_dense("random", "output", out);
  if (stream.rank != 1 || stream.shape[0] != 2)
    fail("random", "stream: got the shape ", shape_text(stream), ", need (2,): a seed and the number of the call");
  return nullptr;
}

// Cuts along the outermost axis with an extent other than 1, so that pieces are contiguous.
void cuts(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1) return cuts.add(axis, out.shape[axis]);
}

void run(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const Tensor& out = call.outputs[0];
  const int64_t row = axis < 0 || out.size() == 0 ? 1 : out.size() / out.shape[axis];
  int64_t i = axis < 0 ? 0 : range.begin * row;
  const int64_t end = axis < 0 ? out.size() : range.end * row;
  const auto* stream = call.inputs[0].as<uint64_t>();
  auto* to = out.as<float>();
  while (out.size() && i < end) {
    const Words found = philox(static_cast<uint64_t>(i) / 4, stream[1], stream[0]);
    for (int64_t last = std::min(end, i / 4 * 4 + 4); i < last; ++i)
      to[i] = static_cast<float>(found.words[i % 4] >> 8) * 0x1p-24f;
  }
}

int64_t cost(const Call& call) { return 20 + 4 * call.outputs[0].size(); }

constexpr Kernel kTable[] = {{
    .name = "random",
    .dtypes = "int64->fp32",
    .accepts = "dense",
    .prepare = prepare,
    .cuts = cuts,
    .cost = cost,
    .run = run,
}};

}  // namespace

std::span<const Kernel> random_table() { return kTable; }

}  // namespace hexane::cpu
