// Checks that a loop reads only valid rows. A row is valid if an earlier run wrote it and no run has overwritten it
// since.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cpu/kernel.h"
#include "plan/reader.h"

namespace hexane::cpu {

// Simulates the runs of one loop row by row. Rows are indices of the cut axis. A ring keeps the last rows of axis 1. A
// row may be written in pieces, for example by a concatenation, and read in other pieces.
class RowOrder {
 public:
  // Simulates steps [first, end) of the plan. Before step `first`, a tensor that overlaps bytes written in the loop is
  // valid if an earlier step wrote exactly this view and no later step wrote to its bytes.
  RowOrder(const plan::Plan& plan, size_t first, size_t end);

  // Simulates the next run, which computes these rows of the first output along the step's cut axis. Throws Error if
  // the run reads an invalid row.
  void run(const std::string& where, const PlanStep& step, const Kernel& kernel, const Call& call, Range rows);

 private:
  struct Row {
    uint64_t end;
    uint32_t tensor;
    uint32_t axis;
    int64_t index;
  };
  struct SpaceRows {
    std::map<uint64_t, uint64_t> bytes;  // Byte ranges that the loop writes: begin -> end.
    std::map<uint64_t, Row> rows;        // The valid rows by their first byte.
    uint64_t interleaved = 0;            // Size of the largest row that interleaves with another row.

    // Returns the first row that may have bytes at or after `begin`.
    std::map<uint64_t, Row>::iterator from(uint64_t begin);
  };

  void add_from_before(size_t first, size_t end);
  bool is_from_before(uint32_t id, size_t first);
  void count(int64_t rows);
  bool touches(const PlanTensor& tensor) const;
  bool is_there(uint32_t id, uint32_t axis, int64_t row);
  void write(uint32_t id, uint32_t axis, int64_t row);

  const plan::Plan& plan_;
  std::vector<SpaceRows> spaces_;
  std::map<std::vector<uint32_t>, bool>
      covered_;  // Tensor id, then ids of pieces -> whether these pieces cover a row of the tensor.
  int64_t rows_left_ = int64_t{1} << 24;  // Limits the time for a hostile plan to less than a minute.
};

}  // namespace hexane::cpu
