// Kernels in the engine's arithmetic on numbers that hit every rule, on every instruction set of this machine:
// checksums of what they return, against those that tests/engine/test_golden.py has from models in Python.
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "core/dtype.h"
#include "cpu/engine/activation.h"
#include "cpu/engine/engine_numerics.h"
#include "cpu/kernel.h"

using namespace hexane;
using cpu::Tensor;

namespace {

struct Golden {
  const char* name;
  uint64_t checksum;
};
constexpr Golden kGolden[] = {
#include "../golden/arithmetic/checksums.txt"
};
constexpr uint64_t kTables[] = {
#include "../golden/arithmetic/tables.txt"
};
static_assert(sizeof(kTables) + sizeof(int64_t) == sizeof(cpu::EngineNumerics));

// The parameter block of a chip.
std::vector<uint64_t> numerics(bool winograd) {
  std::vector<uint64_t> block{winograd};
  block.insert(block.end(), std::begin(kTables), std::end(kTables));
  return block;
}

// ---- operands ----

uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

struct Kind {
  const char* name;
  uint64_t keep, first, count;
};
constexpr Kind kKinds[] = {{"any", 0xFFFF, 0, 0},    {"network", 0x83FF, 10, 6}, {"tiny", 0x83FF, 0, 10},
                           {"ties", 0x83E0, 2, 7},   {"large", 0x83FF, 17, 6},   {"overflow", 0x83FF, 20, 5},
                           {"cancel", 0x83FF, 12, 8}};
const Kind& kind_of(std::string_view name) {
  for (const Kind& kind : kKinds)
    if (kind.name == name) return kind;
  fail("kind", "got '", std::string(name), "'");
}

struct Operand {
  std::vector<int64_t> shape, strides;
  std::vector<uint16_t> values;

  explicit Operand(std::vector<int64_t> extents) : shape(std::move(extents)), strides(shape.size()) {
    int64_t bytes = 2;
    for (size_t i = shape.size(); i-- > 0; bytes *= shape[i]) strides[i] = bytes;
    values.resize(static_cast<size_t>(bytes) / 2);
  }
  Operand(const Kind& kind, uint64_t operand, std::vector<int64_t> extents) : Operand(std::move(extents)) {
    const bool pairs = std::string_view(kind.name) == "cancel";
    for (uint64_t i = 0; i < values.size(); ++i) {
      const uint64_t hash = mixed((pairs ? i & ~uint64_t{1} : i) + ((operand + 1) << 32));
      uint64_t bits = hash & kind.keep;
      if (kind.count) bits |= (kind.first + (hash >> 16) % kind.count) << 10;
      values[i] = static_cast<uint16_t>(bits ^ (pairs ? (i & 1) << 15 : 0));
    }
  }
  Tensor tensor(bool constant) {
    const auto rank = static_cast<int32_t>(shape.size());
    return {reinterpret_cast<std::byte*>(values.data()), DType::kFp16, rank, constant, 0, shape.data(), strides.data()};
  }
};

// ---- kernels ----

// Runs the kernel in pieces along the last of its cuts, and returns the checksum of its result.
uint64_t run(const char* name, std::vector<Operand> operands, Operand out, const void* attrs, bool winograd,
             bool constant) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < operands.size(); ++i) inputs.push_back(operands[i].tensor(constant && i > 0));
  const std::array outputs{out.tensor(false)};
  const std::vector<uint64_t> block = numerics(winograd);
  cpu::Call call{inputs, outputs, attrs, "", nullptr, block.data()};
  const cpu::Kernel& kernel = cpu::find_kernel(name, "engine", call);
  const cpu::Prepared prepared = kernel.prepare ? kernel.prepare(call) : nullptr;
  call.prepared = prepared.get();
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> own(static_cast<size_t>(kernel.scratch ? kernel.scratch(call) : 0) / 64 + 1),
      shared(static_cast<size_t>(kernel.shared_scratch ? kernel.shared_scratch(call) : 0) / 64 + 1);
  if (kernel.begin) kernel.begin(call, shared[0].bytes);
  cpu::Cuts cuts;
  if (kernel.cuts) kernel.cuts(call, cuts);
  if (!cuts.count) kernel.run(call, -1, {0, 0}, own[0].bytes, shared[0].bytes);
  for (int64_t begin = 0; cuts.count && begin < cuts.items[cuts.count - 1].extent;) {
    const cpu::Cut& cut = cuts.items[cuts.count - 1];
    const int64_t end = std::min(begin + (cut.extent / 3 / cut.grain + 1) * cut.grain, cut.extent);
    kernel.run(call, cut.axis, {begin, end}, own[0].bytes, shared[0].bytes);
    begin = end;
  }
  uint64_t sum = 0;
  for (uint64_t i = 0; i < out.values.size(); ++i) sum += mixed((i + 1) << 16 | out.values[i]);
  return sum;
}

uint64_t matmul(const Kind& kind, const Kind& other) {
  const struct {
    int64_t transpose_x, transpose_y;
    cpu::Epilogue epilogue;
  } attrs{};
  return run("matmul", {{kind, 0, {5, 54}}, {other, 1, {54, 21}}, {other, 2, {21}}}, Operand({5, 21}), &attrs, false,
             &kind < &other);
}

uint64_t image_product(std::string_view name, const Kind& kind, const Kind& other) {
  const bool dense = name.starts_with("conv"), pairs = name.ends_with("pairs"), strided = name.ends_with("2");
  const int64_t stride = strided ? 2 : 1, height = strided ? 2 : 4, width = strided ? 5 : 9;
  const struct {
    cpu::IntList strides, dilations, pads;
    int64_t groups;
    cpu::Epilogue epilogue;
  } attrs{{2, {stride, stride}}, {2, {1, 1}}, {4, {1, 1, 1, 1}}, dense ? 1 : 18, {}};
  return run("conv", {{kind, 0, {1, 4, 9, 18}}, {other, 1, {18, dense ? 18 : 1, 3, 3}}, {other, 2, {18}}},
             Operand({1, height, width, 18}), &attrs, pairs, true);
}

uint64_t unary(const char* name) {
  const int64_t count = 1 << 16;
  Operand every({count});
  for (int64_t bits = 0; bits < count; ++bits) every.values[static_cast<size_t>(bits)] = static_cast<uint16_t>(bits);
  return run(name, {every}, Operand({count}), nullptr, false, false);
}

uint64_t binary(const char* name, const Kind& kind) {
  const cpu::Epilogue none{};
  return run(name, {{kind, 0, {3001}}, {kind, 1, {3001}}}, Operand({3001}), &none, false, false);
}

uint64_t lines(std::string_view name, const Kind& kind) {
  std::vector<Operand> operands{{kind, 0, {5, 47}}};
  const int64_t axis = 1;
  const struct {
    cpu::IntList axes;
    int64_t keep_dims;
  } reduced{{1, {1}}, 0};
  const struct {
    cpu::IntList axes;
    double epsilon;
  } norm{{1, {1}}, 1e-3};
  if (name == "softmax") return run("softmax", operands, Operand({5, 47}), &axis, false, false);
  if (name != "layer_norm") return run(std::string(name).c_str(), operands, Operand({5}), &reduced, false, false);
  for (const uint64_t i : {1, 2}) operands.emplace_back(kind_of("network"), i, std::vector<int64_t>{47});
  return run("layer_norm", operands, Operand({5, 47}), &norm, false, false);
}

// "depthwise of stride 2 tiny ties": the words that are kinds stand last.
uint64_t checksum_of(std::string name) {
  std::vector<const Kind*> kinds;
  for (bool found = true; found;) {
    found = false;
    for (const Kind& kind : kKinds)
      if (name.ends_with(std::string(" ") + kind.name)) {
        kinds.insert(kinds.begin(), &kind);
        name.resize(name.size() - std::strlen(kind.name) - 1);
        found = true;
        break;
      }
  }
  if (kinds.empty()) return unary(name.c_str());
  if (name == "matmul") return matmul(*kinds[0], *kinds[1]);
  if (kinds.size() == 2) return image_product(name, *kinds[0], *kinds[1]);
  const bool along = name == "softmax" || name == "layer_norm" || name.starts_with("reduce");
  return along ? lines(name, *kinds[0]) : binary(name.c_str(), *kinds[0]);
}

void equal_maps_are_one() {
  const auto block = numerics(false), other = numerics(true);
  const auto map = cpu::half_map("elu", 1.5, 0, block.data());
  CHECK(map == cpu::half_map("elu", 1.5, 0, std::vector(block).data()));
  CHECK(map != cpu::half_map("elu", 1.25, 0, block.data()));
  CHECK(map != cpu::half_map("gelu", 1.5, 0, block.data()));
  CHECK(map != cpu::half_map("elu", 1.5, 0, other.data()));
}

// A process keeps the instruction set of its first kernels, so each gets a process of its own.
int check_all(const char* set) {
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const int64_t bit = rest & -rest;
    if (std::string_view(hwy::TargetName(bit)) != set) continue;
    hwy::SetSupportedTargetsForTest(bit);
    hwy::GetChosenTarget().Update(bit);
  }
  equal_maps_are_one();
  for (const Golden& golden : kGolden) {
    const bool same = checksum_of(golden.name) == golden.checksum;
    if (!same) std::fprintf(stderr, "%s: %s differs\n", set, golden.name);
    CHECK(same);
  }
  return checks_failed();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return check_all(argv[1]);
  const int64_t sets = hwy::SupportedTargets() & HWY_TARGETS;
  if ((sets & (sets - 1)) == 0) return check_all(hwy::TargetName(sets));  // an emulator may not start processes
  for (int64_t rest = sets; rest != 0; rest &= rest - 1) {
    const std::string command = std::string("\"") + argv[0] + "\" " + hwy::TargetName(rest & -rest);
    CHECK(std::system(command.c_str()) == 0);
  }
  return checks_failed();
}
