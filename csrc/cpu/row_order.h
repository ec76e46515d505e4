// Checks that a loop reads only valid rows: written by an earlier run, and not overwritten since.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cpu/kernel.h"
#include "plan/reader.h"

namespace hexane::cpu {

// Follows the runs of one loop, row by row. Tensors that the loop writes and reads have their rows in sequence along
// the cut axis; rings keep the last rows of axis 1. A row may be written in pieces, as by a concatenation, and read in
// other pieces.
class RowOrder {
 public:
  // Follows the steps [first, end) of the plan. A tensor that overlaps bytes written by these steps is valid at their
  // begin if an earlier step wrote it as it is read, and no step wrote there since.
  RowOrder(const plan::Plan& plan, size_t first, size_t end);

  // The next run: these rows of the first output, along the step's cut axis. Throws Error for a row that it reads and
  // that is not there.
  void run(const std::string& where, const PlanStep& step, const Kernel& kernel, const Call& call, Range rows);

 private:
  struct Row {
    uint64_t end;
    uint32_t tensor;
    uint32_t axis;
    int64_t index;
  };
  struct SpaceRows {
    std::map<uint64_t, uint64_t> bytes;  // all bytes that the loop writes, by their begin
    std::map<uint64_t, Row> rows;        // the valid rows
    uint64_t interleaved = 0;            // the most bytes of a row that has elements of another between its own

    // The first row there that may have bytes from `begin` on.
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
  std::map<std::vector<uint32_t>, bool> covered_;  // a tensor, then others: whether one row of it is in rows of theirs
  int64_t rows_left_ = int64_t{1} << 24;           // a hostile plan does not take longer than well under a minute
};

}  // namespace hexane::cpu
