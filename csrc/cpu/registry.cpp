// Looks kernels up. Only this file lists all kernel tables.
#include <array>
#include <string>

#include "cpu/kernel.h"
#include "cpu/tables.h"

namespace hexane::cpu {

std::span<const std::span<const Kernel>> kernel_tables() {
#define HEXANE_LIST_TABLE(name) name##_table(),
  static const std::array tables = {HEXANE_KERNEL_TABLES(HEXANE_LIST_TABLE)};
#undef HEXANE_LIST_TABLE
  return tables;
}

namespace {

bool token_matches(std::string_view token, DType dtype) {
  if (token == "*") return true;
  if (token == info(dtype).name) return true;
  return token.ends_with('b') && token == std::to_string(info(dtype).bits) + "b";
}

// True if dtype tokens such as "fp32,fp32..." match the operands. "..." repeats the token before it. After other
// operands, a repeated token may also match none.
bool side_matches(std::string_view tokens, std::span<const Tensor> operands) {
  std::string_view token;
  bool repeats = false;
  for (const Tensor& operand : operands) {
    if (!repeats) {
      if (tokens.empty()) return false;
      const size_t comma = tokens.find(',');
      token = tokens.substr(0, comma);
      tokens = comma == std::string_view::npos ? std::string_view{} : tokens.substr(comma + 1);
      if (token.ends_with("...")) {
        repeats = true;
        token.remove_suffix(3);
      }
    }
    if (operand.present() && !token_matches(token, operand.dtype)) return false;
  }
  const bool one_left = tokens.ends_with("...") && tokens.find(',') == std::string_view::npos;
  return tokens.empty() || (one_left && !operands.empty());
}

std::string signature(const Call& call) {
  std::string text;
  for (const auto side : {call.inputs, call.outputs}) {
    if (side.data() == call.outputs.data()) text += "->";
    for (size_t i = 0; i < side.size(); ++i)
      text += std::string(i ? "," : "") + (side[i].present() ? std::string(info(side[i].dtype).name) : "none");
  }
  return text;
}

bool serves(const Kernel& kernel, std::string_view family) {
  return kernel.family == family || kernel.family == std::string_view("any");
}

// Compares names, the first letter first: most names differ in this letter, and the search decides how fast a plan
// loads.
bool is_named(const Kernel& kernel, std::string_view name) {
  return !name.empty() && kernel.name[0] == name[0] && kernel.name == name;
}

const Kernel* matching_kernel(std::string_view name, std::string_view family, std::span<const Tensor> inputs,
                              std::span<const Tensor> outputs) {
  for (const auto table : kernel_tables())
    for (const Kernel& kernel : table) {
      if (!is_named(kernel, name) || !serves(kernel, family)) continue;
      const std::string_view dtypes = kernel.dtypes;
      const size_t arrow = dtypes.find("->");
      if (side_matches(dtypes.substr(0, arrow), inputs) && side_matches(dtypes.substr(arrow + 2), outputs))
        return &kernel;
    }
  return nullptr;
}

}  // namespace

bool has_kernel(std::string_view name, std::string_view family, std::span<const Tensor> inputs,
                std::span<const Tensor> outputs) {
  return matching_kernel(name, family, inputs, outputs) != nullptr;
}

const Kernel& find_kernel(std::string_view name, std::string_view family, const Call& call) {
  if (const Kernel* found = matching_kernel(name, family, call.inputs, call.outputs)) return *found;
  std::string candidates;
  for (const auto table : kernel_tables())
    for (const Kernel& kernel : table) {
      if (!is_named(kernel, name)) continue;
      candidates += std::string(candidates.empty() ? "" : "; ") + kernel.dtypes;
      if (!serves(kernel, family)) candidates += std::string(" (") + kernel.family + ")";
    }
  if (candidates.empty()) fail("kernel", "no kernel is named '", name, "'");
  fail("kernel", name, ": got ", signature(call), " (", family, "), need one of ", candidates, "; cast first");
}

void cut_every_axis(const Call& call, Cuts& cuts) {
  const Tensor& out = call.outputs[0];
  for (int axis = 0; axis < out.rank; ++axis)
    if (out.shape[axis] > 1) cuts.add(axis, out.shape[axis]);
}

}  // namespace hexane::cpu
