// Whether a loop reads only rows that are there: written by an earlier run, and not overwritten since.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cpu/kernel.h"
#include "plan/reader.h"

namespace hexane::cpu {

// Follows the runs of one loop, row by row. Tensors that the loop writes and reads lie row behind row along the axis
// that is cut; rings keep the last rows of axis 1.
class RowOrder {
 public:
  // Follows the steps [first, end) of the plan.
  RowOrder(const plan::Plan& plan, size_t first, size_t end);

  // The next run: these rows of the first output, along the step's cut axis. Throws Error for a row that it reads and
  // that is not there.
  void run(const std::string& where, const PlanStep& step, const Kernel& kernel, const Call& call, Range rows);

 private:
  struct Row {
    uint64_t end;
    uint32_t tensor;
    int64_t index;
  };
  struct Written {
    std::map<uint64_t, uint64_t> bytes;  // what the loop writes in all, by its begin
    std::map<uint64_t, Row> rows;        // those that are there
  };

  void count(const std::string& where, Range rows);
  bool touches(const PlanTensor& tensor) const;

  const plan::Plan& plan_;
  std::vector<Written> spaces_;
  int64_t rows_left_ = int64_t{1} << 24;  // a hostile plan does not take longer than well under a minute
};

}  // namespace hexane::cpu
