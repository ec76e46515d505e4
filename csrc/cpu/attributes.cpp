#include "cpu/attributes.h"

#include <algorithm>
#include <cstdlib>

namespace hexane::cpu {
namespace {

class Checker {
 public:
  Checker(const std::string& where, Bytes attrs, Bytes strings, size_t num_inputs)
      : where_(where), attrs_(attrs), strings_(strings), num_inputs_(static_cast<int64_t>(num_inputs)) {}

  // Checks one field of `count` items of a kind, and moves on to the next field.
  void field(std::string_view name, char kind, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (kind == 's') check_string(name, at_);
      if (kind == 'L') check_count(name, read<IntList>(where_, attrs_, at_).count, std::size(IntList{}.values));
      if (kind == 'E') check_epilogue(name);
      at_ += size_of(kind);
    }
  }
  uint64_t end() const { return at_; }

 private:
  static uint64_t size_of(char kind) {
    return kind == 'L' ? sizeof(IntList) : kind == 'E' ? sizeof(Epilogue) : sizeof(int64_t);
  }

  void check_string(std::string_view name, uint64_t at) const {
    const auto offset = read<uint64_t>(where_, attrs_, at);
    if (offset >= strings_.size())
      fail(where_, "attribute ", name, ": got string ", offset, ", need less than ", strings_.size());
  }

  void check_count(std::string_view name, int64_t count, size_t most) const {
    if (count < 0 || count > static_cast<int64_t>(most))
      fail(where_, "attribute ", name, ": got ", count, " values, need at most ", most);
  }

  void check_epilogue(std::string_view name) const {
    const auto epilogue = read<Epilogue>(where_, attrs_, at_);
    check_count(name, epilogue.count, std::size(epilogue.slots));
    for (size_t i = 0; i < std::size(epilogue.slots); ++i) {
      check_string(name, at_ + offsetof(Epilogue, slots) + i * sizeof(EpilogueSlot) + offsetof(EpilogueSlot, kind));
      const int64_t operand = epilogue.slots[i].operand;
      if (operand < -1 || operand >= num_inputs_)
        fail(where_, "attribute ", name, ": operand: got ", operand, ", need -1 or less than ", num_inputs_);
    }
  }

  const std::string& where_;
  const Bytes attrs_;
  const Bytes strings_;
  const int64_t num_inputs_;
  uint64_t at_ = 0;
};

}  // namespace

void check_attributes(const std::string& where, const Kernel& kernel, Bytes attrs, Bytes strings, size_t num_inputs) {
  if (attrs.size() != static_cast<uint64_t>(kernel.attrs_bytes))
    fail(where, "attributes: got ", attrs.size(), " bytes, need ", kernel.attrs_bytes);
  Checker checker(where, attrs, strings, num_inputs);
  std::string_view layout = kernel.attrs;
  while (!layout.empty()) {  // "name:countkind name:kind ..."
    const std::string_view item = layout.substr(0, layout.find(' '));
    layout.remove_prefix(std::min(item.size() + 1, layout.size()));
    const size_t colon = item.find(':');
    const std::string digits(item.substr(colon + 1, item.size() - colon - 2));
    checker.field(item.substr(0, colon), item.back(), digits.empty() ? 1 : std::strtoull(digits.c_str(), nullptr, 10));
  }
  if (checker.end() != attrs.size())
    fail(where, "attributes: the layout '", kernel.attrs, "' has ", checker.end(), " bytes, the struct ", attrs.size());
}

}  // namespace hexane::cpu
