#include "cpu/control/body.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cpu/operand.h"

namespace hexane::cpu {
namespace {

constexpr uintptr_t kPlanAlignment = 16;  // alignment of a plan whose weights are read in place

bool is_aligned(const Tensor& file) { return reinterpret_cast<uintptr_t>(file.data) % kPlanAlignment == 0; }

const Tensor& checked(const char* kernel, const Call& call, const Tensor& file) {
  if (call.depth >= kMostBodies) fail(kernel, "got more than ", kMostBodies, " bodies in each other, need fewer");
  check_dense(kernel, "body", file);
  if (!file.constant || file.rank != 1 || file.dtype != DType::kUint8)
    fail(kernel, "body: got no constant vector of uint8, need the bytes of a plan");
  return file;
}

Memory aligned_copy(const Tensor& file) {
  if (is_aligned(file)) return {};
  Memory copy(static_cast<uint64_t>(file.size()), "body");
  std::memcpy(copy.data(), file.data, copy.size());
  return copy;
}

std::string text(DType dtype, std::span<const int64_t> shape) {
  std::string result = std::string(info(dtype).name) + "[";
  for (size_t i = 0; i < shape.size(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

std::span<const int64_t> shape_of(const PlanTensor& tensor) { return {tensor.shape, tensor.rank}; }

}  // namespace

Body::Body(const char* kernel, const Call& call, const Tensor& file)
    : kernel_(kernel),
      copy_(aligned_copy(checked(kernel, call, file))),
      plan_(plan::read_plan({copy_.data() ? copy_.data() : file.data, static_cast<size_t>(file.size())})) {
  std::vector<std::byte*> bases(plan_.spaces.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    const std::string_view kind = plan_.string(plan_.spaces[i].kind);
    if ((kind == "state" || kind == "param") && plan_.spaces[i].bytes)
      fail(kernel, "body: got ", plan_.spaces[i].bytes, " bytes of kind ", kind, ", need none in a body");
    if (kind == "weights" && !plan_.weights.empty())
      bases[i] = const_cast<std::byte*>(plan_.weights.front().bytes.data());
  }
  if (!plan_.blocks.empty()) fail(kernel, "body: got packed weights, need them plain in a body");
  for (const PlanStep& step : plan_.steps)
    if (plan_.string(step.device) != "cpu") fail(kernel, "body: got a step of a device, need those of the CPU");
  steps_ = std::make_unique<const ResolvedSteps>(plan_, bases, std::span<const ResolvedSteps::Piece>(), call.pool,
                                                 call.threads, std::span<const uint32_t>(), call.depth + 1);
}

void Body::check_port(const PlanPort& port, const char* side, size_t index, DType dtype,
                      std::span<const int64_t> shape) const {
  const PlanTensor& tensor = plan_.tensors[port.tensor];
  const auto has = shape_of(tensor);
  if (plan_.dtype(tensor) != dtype || !std::equal(has.begin(), has.end(), shape.begin(), shape.end()))
    fail(kernel_, "body: ", side, " ", index, ": got ", text(plan_.dtype(tensor), has), ", need ", text(dtype, shape));
}

void Body::check_input(size_t index, DType dtype, std::span<const int64_t> shape) const {
  check_port(plan_.inputs[index], "input", index, dtype, shape);
}

void Body::check_output(size_t index, DType dtype, std::span<const int64_t> shape) const {
  check_port(plan_.outputs[index], "output", index, dtype, shape);
}

std::unique_ptr<Body::Runner> Body::take() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto runner = std::move(free_.back());
      free_.pop_back();
      return runner;
    }
  }
  auto runner = std::make_unique<Runner>();
  std::vector<std::byte*> bases(plan_.spaces.size());
  for (size_t i = 0; i < bases.size(); ++i) {
    if (plan_.string(plan_.spaces[i].kind) != "arena") continue;
    runner->own.emplace_back(plan_.spaces[i].bytes, std::string(plan_.string(plan_.spaces[i].name)));
    bases[i] = runner->own.back().data();
  }
  runner->executor = std::make_unique<Executor>(*steps_, bases, Executor::Elsewhere());
  return runner;
}

void Body::put_back(std::unique_ptr<Runner> runner) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(runner));
}

}  // namespace hexane::cpu
