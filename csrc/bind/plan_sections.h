// The sections of a plan as Python gives them: a dict of buffers by section name. "state" and "weights" may be lists of
// pieces: an offset and a buffer.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "bind/arrays.h"
#include "plan/reader.h"

namespace hexane {

class HeldSections {
 public:
  explicit HeldSections(const pybind11::dict& sections);  // throws Error for a name that no section has
  const plan::Sections& sections() const { return sections_; }
  void let_go_weights();
  // Moves the owner of the state's pieces to the caller.
  std::vector<HeldBytes> take_state_pieces() { return std::exchange(held_state_, {}); }

 private:
  plan::Sections sections_ = {};
  std::array<std::optional<HeldBytes>, plan::kSections> held_;
  std::vector<HeldBytes> held_state_, held_weights_;
};

}  // namespace hexane
