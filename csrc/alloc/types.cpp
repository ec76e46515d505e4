#include "alloc/types.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace hexane::alloc {
namespace {

void validate(std::span<const Place> layers, std::span<const Operand> tensors) {
  const auto num_layers = static_cast<int64_t>(layers.size());
  const auto need = [&](size_t id, const char* what, int64_t got, int64_t lowest, int64_t end) {
    if (got < lowest || got >= end)
      fail("types", "tensor ", id, " ", what, ": got ", got, ", need ", lowest, "..", end - 1);
  };
  for (size_t id = 0; id < tensors.size(); id++) {
    need(id, "producer", tensors[id].producer, -1, num_layers);
    need(id, "rewrites", tensors[id].rewrites, -1, static_cast<int64_t>(tensors.size()));
    for (const int32_t reader : tensors[id].readers) need(id, "reader", reader, 0, num_layers);
    if (tensors[id].rewrites < 0) continue;
    const int32_t producer = tensors[id].producer, old = tensors[tensors[id].rewrites].producer;
    const bool made_before =
        producer >= 0 && (old < 0 || (old < num_layers && layers[old].position < layers[producer].position));
    if (!made_before)
      fail("types", "tensor ", id, " rewrites: got tensor ", tensors[id].rewrites, ", need one made before it");
  }
}

class Chooser {
 public:
  Chooser(std::span<const Place> layers, std::span<const Operand> tensors, bool chaining)
      : layers_(layers), tensors_(tensors), chaining_(chaining), fan_out_(layers.size()) {
    std::vector<std::vector<int32_t>> behind(layers.size());
    for (const Operand& tensor : tensors) {
      if (tensor.producer < 0) continue;
      auto& list = behind[tensor.producer];
      list.insert(list.end(), tensor.readers.begin(), tensor.readers.end());
      if (tensor.kept) list.push_back(-1);
    }
    for (size_t v = 0; v < layers.size(); v++) {
      std::sort(behind[v].begin(), behind[v].end());
      behind[v].erase(std::unique(behind[v].begin(), behind[v].end()), behind[v].end());
      fan_out_[v] = behind[v].size();
    }
  }

  Allocation run() {
    Allocation result{std::vector<Type>(tensors_.size()), std::vector<ChainBreak>(tensors_.size())};
    std::vector<size_t> order(tensors_.size());  // a tensor comes before its rewrites
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return made_at(a) < made_at(b); });
    for (const size_t id : order) {
      result.breaks[id] = chain_break(tensors_[id]);
      result.types[id] = type_of(tensors_[id], result.breaks[id], result.types);
    }
    return result;
  }

 private:
  int32_t made_at(size_t id) const { return tensors_[id].producer < 0 ? -1 : layers_[tensors_[id].producer].position; }

  // True if one partition has all layers that touch the tensor, and main memory needs no copy of the tensor.
  bool stays_in_partition(const Operand& tensor) const {
    if (tensor.kept || tensor.readers.empty()) return false;
    const int32_t home = layers_[tensor.readers[0]].partition;
    const bool read_here = std::all_of(tensor.readers.begin(), tensor.readers.end(),
                                       [&](int32_t reader) { return layers_[reader].partition == home; });
    return read_here && (tensor.producer < 0 ? tensor.readers.size() > 1 : layers_[tensor.producer].partition == home);
  }

  ChainBreak chain_break(const Operand& tensor) const {
    if (tensor.producer < 0 || tensor.readers.empty() || tensor.ring || tensor.rewrites >= 0)
      return ChainBreak::kNoEdge;
    if (!chaining_) return ChainBreak::kDisabled;
    if (fan_out_[tensor.producer] != 1) return ChainBreak::kFanOut;
    const Place &from = layers_[tensor.producer], &to = layers_[tensor.readers[0]];
    if (from.unit != to.unit) return ChainBreak::kOtherClass;
    if (from.engine != to.engine) return ChainBreak::kOtherEngine;
    if (!(tensor.made == tensor.read)) return ChainBreak::kGeometry;
    if (to.position != from.position + 1 || to.partition != from.partition) return ChainBreak::kNotNext;
    return tensor.rows_made < tensor.rows_needed ? ChainBreak::kTooFewRows : ChainBreak::kChained;
  }

  Type type_of(const Operand& tensor, ChainBreak chain, const std::vector<Type>& types) const {
    const bool stays = stays_in_partition(tensor), made = tensor.producer >= 0;
    if (tensor.ring && stays) return made ? Type::kRingDependent : Type::kRing;
    if (tensor.rewrites >= 0) {
      const Type old = types[tensor.rewrites];
      if (!is_on_chip(old)) return Type::kInPlaceStreamed;
      if (stays)
        return old == Type::kResident || old == Type::kInPlace || old == Type::kRing ? Type::kInPlace
                                                                                     : Type::kInPlaceDependent;
    }
    if (!stays) return Type::kStreamed;
    if (chain == ChainBreak::kChained) return Type::kChained;
    return made ? Type::kDependent : Type::kResident;
  }

  std::span<const Place> layers_;
  std::span<const Operand> tensors_;
  bool chaining_;
  std::vector<size_t> fan_out_;  // for each layer: number of consumers, main memory included
};

}  // namespace

Allocation choose_types(std::span<const Place> layers, std::span<const Operand> tensors, bool chaining) {
  validate(layers, tensors);
  return Chooser(layers, tensors, chaining).run();
}

}  // namespace hexane::alloc
