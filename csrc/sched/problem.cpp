#include "sched/problem.h"

#include <limits>

#include "core/error.h"

namespace hexane::sched {
namespace {

void validate_layer(const char* what, size_t id, int32_t layer, int32_t lowest, size_t num_layers) {
  if (layer < lowest || layer >= static_cast<int64_t>(num_layers))
    fail("sched", what, " ", id, ": got layer ", layer, ", need one of ", lowest, "..",
         static_cast<int64_t>(num_layers) - 1);
}

void take(int64_t bytes, int64_t& room, const char* what, size_t id) {
  if (bytes < 0) fail("sched", what, " ", id, ": got ", bytes, " bytes, need >= 0");
  if (bytes > room) fail("sched", what, " ", id, ": got ", bytes, " bytes, need a sum of all that fits 63 bits");
  room -= bytes;
}

}  // namespace

void validate(const Problem& problem) {
  const size_t num_layers = problem.layers.size();
  constexpr size_t kMost = std::numeric_limits<int32_t>::max() / 4;
  for (const size_t size : {num_layers, problem.tensors.size(), problem.edges.size()})
    if (size > kMost) fail("sched", "got ", size, " layers, tensors or edges, need at most ", kMost);

  int64_t room = std::numeric_limits<int64_t>::max() / 4;
  for (size_t id = 0; id < num_layers; id++) take(problem.layers[id].scratch, room, "layer", id);
  std::vector<size_t> last_read(num_layers, 0);  // for each layer: 1 + the number of the last tensor that it reads
  for (size_t id = 0; id < problem.tensors.size(); id++) {
    const Tensor& tensor = problem.tensors[id];
    take(tensor.bytes, room, "tensor", id);
    validate_layer("producer of tensor", id, tensor.producer, kOutside, num_layers);
    for (const int32_t reader : tensor.readers) {
      validate_layer("reader of tensor", id, reader, 0, num_layers);
      if (reader == tensor.producer) fail("sched", "tensor ", id, ": got layer ", reader, " as producer and reader");
      if (last_read[reader] == id + 1) fail("sched", "tensor ", id, ": got reader ", reader, " twice, need it once");
      last_read[reader] = id + 1;
    }
  }
  for (size_t id = 0; id < problem.edges.size(); id++) {
    validate_layer("edge", id, problem.edges[id].before, 0, num_layers);
    validate_layer("edge", id, problem.edges[id].after, 0, num_layers);
  }
}

}  // namespace hexane::sched
