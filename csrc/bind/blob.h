// The class WeightFile for Python: a weight file that is not written yet. The class holds the arrays and copies none.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/arrays.h"
#include "pack/blob.h"

namespace hexane {

class WeightFile {
 public:
  // Throws Error for a dtype that weight files cannot hold, and for a value outside of its dtype, such as 100 in int4.
  explicit WeightFile(const std::vector<std::pair<std::string, pybind11::object>>& arrays);
  const std::vector<uint64_t>& offsets() const { return layout_.offsets; }
  uint64_t size() const { return layout_.bytes; }
  std::span<const Bytes> pieces() const { return pieces_->bytes(); }
  pybind11::bytes to_bytes() const;

 private:
  std::vector<HeldBytes> held_;
  blob::Layout layout_;
  std::optional<blob::Pieces> pieces_;
};

}  // namespace hexane
