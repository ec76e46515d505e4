// Checks the conditions of each allocation type.
#include <set>

#include "alloc/types.h"
#include "core/error.h"

namespace hexane::alloc {

void check_types(std::span<const Place> layers, std::span<const Operand> tensors, std::span<const Type> types,
                 bool chaining) {
  if (types.size() != tensors.size())
    fail("types_check", "got ", types.size(), " types, need one for each of ", tensors.size(), " tensors");
  for (size_t id = 0; id < tensors.size(); id++) {
    const Operand& tensor = tensors[id];
    const int type = static_cast<int>(types[id]);
    const auto need = [&](bool holds, const char* rule) {
      if (!holds) fail("types_check", "tensor ", id, " of type ", type, ": need ", rule);
    };
    need(type <= 8, "a type of 0..8");
    const auto is_layer = [&](int32_t layer) { return layer >= 0 && layer < static_cast<int64_t>(layers.size()); };
    need(tensor.producer == -1 || is_layer(tensor.producer), "a producer that exists");
    for (const int32_t reader : tensor.readers) need(is_layer(reader), "readers that exist");
    need(tensor.rewrites < static_cast<int64_t>(tensors.size()), "a rewritten tensor that exists");
    std::set<int32_t> partitions;
    for (const int32_t reader : tensor.readers) partitions.insert(layers[reader].partition);
    if (tensor.producer >= 0) partitions.insert(layers[tensor.producer].partition);

    if (type != 1 && type != 8) {
      need(!tensor.kept && partitions.size() == 1 && !tensor.readers.empty(),
           "all layers that touch it in one partition");
    }
    if (type == 0) need(tensor.producer < 0 && tensor.readers.size() > 1, "no producer on chip, and several readers");
    if (type == 2 || type == 3 || type == 7) need(tensor.producer >= 0, "a producer on chip");
    if (type == 6) need(tensor.producer < 0, "no producer on chip");
    if (type == 6 || type == 7) need(tensor.ring, "a ring buffer");
    if (type == 4 || type == 5 || type == 8) {
      need(tensor.rewrites >= 0, "a tensor that it rewrites");
      need(tensor.producer >= 0, "a producer on chip");
      const int old = static_cast<int>(types[tensor.rewrites]);
      if (type == 4) need(old == 0 || old == 4 || old == 6, "a rewritten tensor that nobody on chip made");
      if (type == 5) need(old == 2 || old == 3 || old == 5 || old == 7, "a rewritten tensor made on chip");
      if (type == 8) need(old == 1 || old == 8, "a rewritten tensor in main memory");
      for (const int32_t reader : tensors[tensor.rewrites].readers)
        need(layers[reader].position <= layers[tensor.producer].position,
             "all readers of what it rewrites to have run");
    }
    if (type != 2) continue;
    need(chaining, "a chip that chains");
    need(!tensor.ring && tensor.rewrites < 0, "memory of its own");
    std::set<int32_t> behind;
    bool stored = false;
    for (const Operand& other : tensors) {
      if (other.producer != tensor.producer) continue;
      behind.insert(other.readers.begin(), other.readers.end());
      stored = stored || other.kept;
    }
    need(behind.size() == 1 && !stored, "one layer that reads it");
    const Place from = layers[tensor.producer], to = layers[*behind.begin()];
    need(from.unit == to.unit && from.engine == to.engine, "both ends on one engine");
    need(to.position - from.position == 1, "the reader directly after the producer");
    need(tensor.made.width == tensor.read.width && tensor.made.height == tensor.read.height &&
             tensor.made.channels == tensor.read.channels,
         "equal tiles at both ends");
    need(tensor.rows_needed <= tensor.rows_made, "rows enough for the reader's first tile");
  }
}

}  // namespace hexane::alloc
