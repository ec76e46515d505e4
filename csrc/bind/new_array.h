// Arrays for weights that a pool keeps without a copy.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <utility>

#include "core/memory_pool.h"

namespace hexane {

// Returns a writable array of zeros over a writable_block().
template <typename T>
pybind11::array_t<T> new_array(uint64_t size) {
  auto [block, data] = writable_block(size * sizeof(T), "weights");
  const pybind11::capsule owner(new Block(std::move(block)), [](void* held) { delete static_cast<Block*>(held); });
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(size), reinterpret_cast<T*>(data), owner);
}

}  // namespace hexane
