// loop: runs a body again and again, until its condition is false or the limit is reached. cond: runs one of two
// branches.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/control/body.h"
#include "cpu/operand.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

struct Attributes {
  int64_t carried;
};

// Inputs of a loop: body, limit (int64), condition (bool), carried values, captured values. The inputs of the body:
// step, condition, carried values, captured values. The outputs of the body: the next condition, the next carried
// values, and rows of stacks. The outputs of a loop: carried values, stacks and the number of steps. Plans for the C99
// runtime have one more output, the room: that runtime runs the body in it. The host's kernel does not write the room.
constexpr size_t kFirst = 3;      // Index of the loop's first carried or captured input.
constexpr size_t kBodyFirst = 2;  // Index of the body's first carried or captured input.

struct Loop {
  Loop(const Call& call) : body("loop", call, call.inputs[0]) {}
  Body body;
  size_t carried = 0, stacks = 0;
  int64_t most = INT64_MAX;  // the number of rows in the stacks, which limits the steps
};

std::span<const int64_t> shape_of(const Tensor& tensor) { return {tensor.shape, static_cast<size_t>(tensor.rank)}; }

uint64_t bytes_of(const Tensor& tensor) { return static_cast<uint64_t>(tensor.size() * item_bytes(tensor)); }

void check_number(const char* kernel, const char* what, const Tensor& tensor, DType dtype) {
  if (!tensor.present()) return;
  check_dense(kernel, what, tensor);
  if (tensor.rank != 0 || tensor.dtype != dtype)
    fail(kernel, what, ": got ", info(tensor.dtype).name, shape_text(tensor), ", need one ", info(dtype).name);
}

void check_all(const char* kernel, std::span<const Tensor> tensors, const char* what) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.present()) fail(kernel, what, ": got none, need a tensor");
    check_dense(kernel, what, tensor);
  }
}

// Returns the outputs except the room. `expected`: the number of outputs without the room.
std::span<const Tensor> without_room(std::span<const Tensor> outputs, size_t expected) {
  const bool has_room = outputs.size() == expected + 1 && outputs.back().present() && outputs.back().rank == 1 &&
                        outputs.back().dtype == DType::kUint8;
  return has_room ? outputs.first(expected) : outputs;
}

Prepared prepare_loop(const Call& call) {
  if (call.asks) return nullptr;
  const auto loop = std::make_shared<Loop>(call);
  const Body& body = loop->body;
  check_number("loop", "limit", call.inputs[1], DType::kInt64);
  check_number("loop", "condition", call.inputs[2], DType::kBool);
  const auto values = call.inputs.subspan(kFirst);
  check_all("loop", values, "input");
  const auto outputs = without_room(call.outputs, body.num_outputs());
  check_all("loop", outputs, "output");
  check_number("loop", "steps", outputs.back(), DType::kInt64);
  const int64_t carried = call.attributes<Attributes>().carried;
  if (carried < 0 || static_cast<uint64_t>(carried) > std::min(values.size(), outputs.size() - 1))
    fail("loop", "carried: got ", carried, ", need at most the inputs and outputs");
  loop->carried = static_cast<size_t>(carried);
  loop->stacks = outputs.size() - 1 - loop->carried;
  if (body.num_inputs() != kBodyFirst + values.size() || body.num_outputs() != outputs.size())
    fail("loop", "body: got ", body.num_inputs(), " inputs and ", body.num_outputs(), " outputs, need ",
         kBodyFirst + values.size(), " and ", outputs.size());
  body.check_input(0, DType::kInt64, {});
  body.check_input(1, DType::kBool, {});
  body.check_output(0, DType::kBool, {});
  for (size_t i = 0; i < values.size(); ++i) body.check_input(kBodyFirst + i, values[i].dtype, shape_of(values[i]));
  for (size_t i = 0; i < loop->carried; ++i) {
    check_same_shape("loop", outputs[i], values[i]);
    body.check_output(1 + i, outputs[i].dtype, shape_of(outputs[i]));
    if (values[i].dtype != outputs[i].dtype)
      fail("loop", "output ", i, ": got ", info(outputs[i].dtype).name, ", need ", info(values[i].dtype).name);
  }
  for (size_t i = 0; i < loop->stacks; ++i) {
    const Tensor& stack = outputs[loop->carried + i];
    if (stack.rank < 1) fail("loop", "stack ", i, ": got a number, need an axis of steps");
    body.check_output(1 + loop->carried + i, stack.dtype, shape_of(stack).subspan(1));
    loop->most = std::min(loop->most, stack.shape[0]);
  }
  return loop;
}

void run_loop(const Call& call, int, Range, std::byte*, const std::byte*) {
  const auto& loop = call.state<Loop>();
  const auto values = call.inputs.subspan(kFirst);
  const int64_t limit = call.inputs[1].present() ? *call.inputs[1].as<int64_t>() : INT64_MAX;
  Body::Lent body(loop.body);
  if (body.carried().size() != 2 * loop.carried) {
    body.carried().clear();
    for (size_t i = 0; i < 2 * loop.carried; ++i)
      body.carried().emplace_back(std::max<uint64_t>(bytes_of(values[i / 2]), 1), "carried");
  }
  int64_t step = 0;
  uint8_t going = !call.inputs[2].present() || *call.inputs[2].as<uint8_t>();
  uint8_t next = going;
  body.set_input(0, reinterpret_cast<std::byte*>(&step));
  body.set_input(1, reinterpret_cast<std::byte*>(&going));
  body.set_output(0, reinterpret_cast<std::byte*>(&next));
  for (size_t i = 0; i < values.size(); ++i) body.set_input(kBodyFirst + i, values[i].data);
  const auto target = [&](size_t i) { return body.carried()[2 * i + static_cast<size_t>(step % 2)].data(); };
  for (; going && step < limit; ++step) {
    if (step == loop.most) fail("loop", "got more than ", loop.most, " steps, need at most as many as its stacks hold");
    for (size_t i = 0; i < loop.carried; ++i) {
      body.set_output(1 + i, target(i));
    }
    for (size_t i = 0; i < loop.stacks; ++i) {
      const Tensor& stack = call.outputs[loop.carried + i];
      const uint64_t row = stack.shape[0] ? bytes_of(stack) / static_cast<uint64_t>(stack.shape[0]) : 0;
      body.set_output(1 + loop.carried + i, stack.data + static_cast<uint64_t>(step) * row);
    }
    body.run();
    for (size_t i = 0; i < loop.carried; ++i) body.set_input(kBodyFirst + i, target(i));
    going = next != 0;
  }
  --step;  // the last step, whose results are in the carried memory
  for (size_t i = 0; i < loop.carried; ++i)
    if (const uint64_t bytes = bytes_of(values[i]))
      std::memcpy(call.outputs[i].data, step < 0 ? values[i].data : target(i), bytes);
  ++step;
  for (size_t i = 0; i < loop.stacks; ++i) {
    const Tensor& stack = call.outputs[loop.carried + i];
    const uint64_t bytes = bytes_of(stack);
    const uint64_t used = bytes ? bytes / static_cast<uint64_t>(stack.shape[0]) * static_cast<uint64_t>(step) : 0;
    if (bytes > used) std::memset(stack.data + used, 0, bytes - used);
  }
  *call.outputs[loop.carried + loop.stacks].as<int64_t>() = step;
}

struct Branches {
  Branches(const Call& call) : then("cond", call, call.inputs[0]), otherwise("cond", call, call.inputs[1]) {}
  Body then, otherwise;
  size_t results = 0;
};

// Inputs of cond: two branches, condition (bool), and the inputs of both branches.
Prepared prepare_cond(const Call& call) {
  if (call.asks) return nullptr;
  const auto branches = std::make_shared<Branches>(call);
  if (!call.inputs[2].present()) fail("cond", "condition: got none, need a tensor");
  check_number("cond", "condition", call.inputs[2], DType::kBool);
  const auto values = call.inputs.subspan(kFirst);
  const auto outputs = without_room(call.outputs, branches->then.num_outputs());
  check_all("cond", values, "input");
  check_all("cond", outputs, "output");
  for (const Body* body : {&branches->then, &branches->otherwise}) {
    if (body->num_inputs() != values.size() || body->num_outputs() != outputs.size())
      fail("cond", "body: got ", body->num_inputs(), " inputs and ", body->num_outputs(), " outputs, need ",
           values.size(), " and ", outputs.size());
    for (size_t i = 0; i < values.size(); ++i) body->check_input(i, values[i].dtype, shape_of(values[i]));
    for (size_t i = 0; i < outputs.size(); ++i) body->check_output(i, outputs[i].dtype, shape_of(outputs[i]));
  }
  branches->results = outputs.size();
  return branches;
}

void run_cond(const Call& call, int, Range, std::byte*, const std::byte*) {
  const auto& branches = call.state<Branches>();
  Body::Lent body(*call.inputs[2].as<uint8_t>() ? branches.then : branches.otherwise);
  const auto values = call.inputs.subspan(kFirst);
  for (size_t i = 0; i < values.size(); ++i) body.set_input(i, values[i].data);
  for (size_t i = 0; i < branches.results; ++i) body.set_output(i, call.outputs[i].data);
  body.run();
}

constexpr Kernel kTable[] = {
    {
        .name = "loop",
        .dtypes = "uint8,int64,bool,*...->*...",
        .family = "any",
        .attrs = "carried:i",
        .attrs_bytes = sizeof(Attributes),
        .accepts = "dense",
        .prepare = prepare_loop,
        .run = run_loop,
        .runs_steps = true,
    },
    {
        .name = "cond",
        .dtypes = "uint8,uint8,bool,*...->*...",
        .family = "any",
        .accepts = "dense",
        .prepare = prepare_cond,
        .run = run_cond,
        .runs_steps = true,
    },
};

}  // namespace

std::span<const Kernel> control_table() { return kTable; }

}  // namespace hexane::cpu
