// Lays a plan file out: the head (header and section table), the sections in place, and the zeros between them.
#pragma once

#include <string>
#include <vector>

#include "plan/reader.h"

namespace hexane::plan {

// The pieces of a plan file, in order. `head` and the sections have to live as long as the PlanFile is used.
class PlanFile {
 public:
  // Verifies only that each section is a whole number of rows, that pieces are in order, and that the dims fit their
  // section.
  explicit PlanFile(const Sections& sections);
  PlanFile(const PlanFile&) = delete;
  PlanFile& operator=(const PlanFile&) = delete;

  std::span<const Bytes> pieces() const { return pieces_; }
  uint64_t size() const { return size_; }

 private:
  std::vector<std::byte> head_;
  std::vector<PlanTensorRow> tensors_;
  std::vector<int64_t> dims_;
  std::vector<Bytes> pieces_;
  uint64_t size_;
};

}  // namespace hexane::plan
