// Runs a plan on surfaces: the rows of the inputs are packed, the plan runs, the rows of the outputs are spread.
#include "program.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/memory.h"
#include "plan/reader.h"
#include "run/context.h"

using namespace hexane;

namespace {

constexpr uint64_t kRowBytes = 64;  // rows of the engine begin at multiples

uint64_t round_up(uint64_t bytes) { return (bytes + kRowBytes - 1) / kRowBytes * kRowBytes; }

struct PortData {
  std::string name, dtype;
  fake_port port;
  uint64_t row_bytes;
  Memory packed;

  PortData(const plan::Plan& plan, const PlanPort& row) : name(plan.string(row.name)) {
    const PlanTensor& tensor = plan.tensors[row.tensor];
    dtype = plan.string(tensor.dtype);
    if (tensor.rank > 4) fail("stand-in", "port ", name, " has rank ", tensor.rank);
    bool known = false;
    for (const char* takes : {"fp16", "fp32", "int8", "uint8", "int16", "uint16"}) known |= dtype == takes;
    if (!known) fail("stand-in", "port ", name, " is ", dtype);
    port = {name.c_str(), dtype.c_str(), {1, 1, 1, 1}, 0, 0, 0, 0};
    std::copy_n(tensor.shape, tensor.rank, port.shape + 4 - tensor.rank);
    row_bytes = static_cast<uint64_t>(port.shape[3] * info(plan.dtype(tensor)).bits / 8);
    port.row_stride = round_up(row_bytes);
    port.plane_stride = port.row_stride * static_cast<uint64_t>(port.shape[2]);
    port.batch_stride = port.plane_stride * static_cast<uint64_t>(port.shape[1]);
    port.bytes = port.batch_stride * static_cast<uint64_t>(port.shape[0]);
    packed = Memory(plan.spaces[tensor.space].bytes, "port");
    if (packed.size() != port.bytes / port.row_stride * row_bytes) fail("stand-in", "port ", name, " is not packed");
  }

  // Calls copy(packed row, row of the surface).
  template <typename Copy>
  void rows(void* surface, Copy copy) {
    auto* row = static_cast<std::byte*>(surface);
    for (uint64_t at = 0; at < packed.size(); at += row_bytes, row += port.row_stride) copy(packed.data() + at, row);
  }
};

void say(char* why, size_t why_bytes, const std::exception& error) {
  std::snprintf(why, why_bytes, "%s", error.what());
}

}  // namespace

struct fake_program {
  std::shared_ptr<Memory> bytes;
  std::shared_ptr<run::Context> context;
  std::vector<PortData> inputs, outputs;
  run::Context::Ports ports;
  std::mutex running;  // the packed memory is of one run at a time
};

fake_program* fake_program_make(const void* plan, size_t bytes, char* why, size_t why_bytes) try {
  auto result = std::make_unique<fake_program>();
  result->bytes = std::make_shared<Memory>(bytes, "plan");
  std::memcpy(result->bytes->data(), plan, bytes);
  const plan::Plan read = plan::read_plan({result->bytes->data(), bytes});
  result->context = run::Context::make(std::make_shared<run::Image>(read, result->bytes, 1));
  for (const PlanPort& row : read.inputs) result->inputs.emplace_back(read, row);
  for (const PlanPort& row : read.outputs) result->outputs.emplace_back(read, row);
  for (auto* side : {&result->inputs, &result->outputs})
    for (PortData& data : *side) {
      data.port.name = data.name.c_str();  // short strings lie in the object, which has moved
      data.port.dtype = data.dtype.c_str();
      result->ports.addresses.push_back(data.packed.data());
    }
  result->ports.id = result->context->new_id();
  return result.release();
} catch (const std::exception& error) {
  say(why, why_bytes, error);
  return nullptr;
}

void fake_program_free(fake_program* program) { delete program; }

size_t fake_program_num_ports(const fake_program* program, bool output) {
  return (output ? program->outputs : program->inputs).size();
}

fake_port fake_program_port(const fake_program* program, bool output, size_t index) {
  return (output ? program->outputs : program->inputs)[index].port;
}

bool fake_program_run(fake_program* program, void* const* inputs, void* const* outputs, char* why,
                      size_t why_bytes) try {
  const std::lock_guard lock(program->running);
  for (PortData& data : program->inputs)
    data.rows(*inputs++, [&](std::byte* packed, const std::byte* row) { std::memcpy(packed, row, data.row_bytes); });
  program->context->run(program->ports);
  for (PortData& data : program->outputs)
    data.rows(*outputs++, [&](const std::byte* packed, std::byte* row) { std::memcpy(row, packed, data.row_bytes); });
  return true;
} catch (const std::exception& error) {
  say(why, why_bytes, error);
  return false;
}
