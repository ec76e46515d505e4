// A scheduling problem: layers, the tensors between them, and edges (one layer must run before another).
//
//        +--- b ---+        tensor   bytes   producer   readers
//    a --+         +-- d    a -> b c    8        a        b c
//        +--- c ---+        b -> d      4        b        d
//                           c -> d      2        c        d
//
// A tensor takes memory from the step of its producer to the step of its last reader, both included. The bytes of an
// order are the most bytes live at one step: a b c d needs 8 + 4 + 2 at step c, a c b d the same at step b.
#pragma once

#include <cstdint>
#include <vector>

namespace hexane::sched {

inline constexpr int32_t kOutside = -1;  // the producer of tensors that exist before the first step

struct Layer {
  int64_t scratch = 0;  // Bytes that the layer needs while it runs.
  bool ring = false;    // The layer writes or reads a ring buffer.
  bool operator==(const Layer&) const = default;
};

struct Tensor {
  int64_t bytes = 0;               // Bytes that the tensor takes on chip.
  int32_t producer = kOutside;     // The layer that makes the tensor.
  bool kept = false;               // Whether the tensor is needed after the last step.
  std::vector<int32_t> readers{};  // Layers that read the tensor, each once.
  bool operator==(const Tensor&) const = default;
};

struct Edge {
  int32_t before = 0;
  int32_t after = 0;
  bool operator==(const Edge&) const = default;
};

struct Problem {
  std::vector<Layer> layers;
  std::vector<Tensor> tensors;
  std::vector<Edge> edges;  // an order that does not come from a tensor: the readers of a state run before the layer
                            // that overwrites it
};

// Throws Error if a producer, reader or edge is no layer of the problem; if a tensor is read by its producer, or twice
// by one layer; if a size is negative; or if the sum of all bytes overflows int64. make_graph() detects cycles.
void validate(const Problem& problem);

}  // namespace hexane::sched
