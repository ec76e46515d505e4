// A verified plan. read_plan() and read_sections() check everything that can be checked without knowing the kernels,
// and throw Error (where = "plan") on the first fault. Every index and offset in the result is valid.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/limits.h"
#include "plan/plan.h"

namespace hexane::plan {

static_assert(PLAN_MAX_RANK == kMaxRank);

// The sections in the order of the file; all are required. In a file "dims" follows "tensors".
enum Section {
  kStrings,
  kSpaces,
  kTensors,
  kOperands,
  kNumerics,
  kSteps,
  kLoops,
  kMoves,
  kAttrs,
  kInputs,
  kOutputs,
  kBlocks,
  kWeights,
  kPacked,
  kState,
  kSections
};

struct SectionInfo {
  std::string_view name;
  uint64_t row_bytes;
};
inline constexpr std::array<SectionInfo, kSections> kSectionInfo = {{{"strings", 1},
                                                                     {"spaces", sizeof(PlanSpace)},
                                                                     {"tensors", sizeof(PlanTensor)},
                                                                     {"operands", sizeof(uint32_t)},
                                                                     {"numerics", sizeof(PlanNumerics)},
                                                                     {"steps", sizeof(PlanStep)},
                                                                     {"loops", sizeof(PlanLoop)},
                                                                     {"moves", sizeof(int64_t)},
                                                                     {"attrs", 1},
                                                                     {"inputs", sizeof(PlanPort)},
                                                                     {"outputs", sizeof(PlanPort)},
                                                                     {"blocks", sizeof(PlanBlock)},
                                                                     {"weights", 1},
                                                                     {"packed", 1},
                                                                     {"state", 1}}};

// A part of a section.
struct Piece {
  uint64_t offset;
  Bytes bytes;
};

// The bytes of each section. "state" and "weights" may be in pieces, in order, with zeros between them: then their
// entries of the array are empty.
struct Sections : std::array<Bytes, kSections> {
  std::vector<Piece> state = {};
  std::vector<Piece> weights = {};
};

inline constexpr int kFileSections = kSections + 1;

// The sections of a file. Rows of tensors have their dims in them.
struct Container {
  Sections sections;
  std::shared_ptr<const std::vector<PlanTensor>> tensors;  // the owner of the bytes of sections[kTensors]
};

// Returns the name and the row size of section `number` of a file.
constexpr SectionInfo file_section(int number) {
  if (number == kTensors) return {"tensors", sizeof(PlanTensorRow)};
  if (number == kTensors + 1) return {"dims", sizeof(int64_t)};
  return kSectionInfo[static_cast<size_t>(number < kTensors ? number : number - 1)];
}

struct Plan {
  Bytes strings;
  std::span<const PlanSpace> spaces;
  std::span<const PlanTensor> tensors;
  std::span<const uint32_t> operands;
  std::span<const PlanNumerics> numerics;
  std::span<const PlanStep> steps;
  std::span<const PlanLoop> loops;
  std::span<const int64_t> moves;
  Bytes attrs;
  std::span<const PlanPort> inputs;
  std::span<const PlanPort> outputs;
  std::span<const PlanBlock> blocks;
  std::vector<Piece> weights;  // the weights' bytes: one piece, unless the caller gave several
  Bytes packed;
  std::vector<Piece> state;
  std::shared_ptr<const std::vector<PlanTensor>> held_tensors = {};  // owns `tensors` of a plan from a file

  std::string_view string(uint64_t offset) const { return reinterpret_cast<const char*>(strings.data()) + offset; }
  std::string_view kind(const PlanTensor& tensor) const { return string(spaces[tensor.space].kind); }
  DType dtype(const PlanTensor& tensor) const { return dtype_from_name(string(tensor.dtype)); }
};

// Returns the space of kind "weights", or null.
const PlanSpace* weights_space(const Plan& plan);

// Returns the number of bytes from the first to the last byte of the tensor; 0 if the tensor has no elements.
uint64_t extent_bytes(const PlanTensor& tensor, DType dtype);

// Returns for each space whether a step of another device than the CPU reads or writes it.
std::vector<bool> device_spaces(const Plan& plan);

Sections sections_of(const Plan& plan);

// Returns the pieces of the section "state" or "weights".
std::vector<Piece> pieces_of(const Sections& sections, Section section);

// Returns the end of the last piece: the size of the section.
uint64_t end_of(std::span<const Piece> pieces);

// Fills `to` with the section's bytes from `begin` on: the pieces, and zeros between them.
void copy_pieces(std::span<const Piece> pieces, uint64_t begin, std::span<std::byte> to);

// Throws Error if the first bytes do not begin a plan file of this version, or are fewer than a header.
void check_start(Bytes start);

// Reads a plan file, whose first byte must be aligned to 8 bytes.
Plan read_plan(Bytes file);

// Reads only the container: finds the sections, and checks the header, the section table and the checksum.
Container read_container(Bytes file);

// Verifies and reads only the contents.
Plan read_sections(const Sections& sections);

}  // namespace hexane::plan
