// The sections of a plan as Python gives them: a dict of buffers by section name.
#pragma once

#include <vector>

#include "bind/arrays.h"
#include "plan/reader.h"

namespace hexane {

class HeldSections {
 public:
  explicit HeldSections(const pybind11::dict& sections);  // throws Error for a name that is not a section's
  const plan::Sections& sections() const { return sections_; }

 private:
  plan::Sections sections_ = {};
  std::vector<HeldBytes> held_;
};

}  // namespace hexane
