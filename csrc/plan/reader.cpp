// The container of a plan file: header, section table, checksum. The contents are verified in verify.cpp.
#include "plan/reader.h"

#include <algorithm>
#include <cstring>

#include "core/hash.h"

namespace hexane::plan {
namespace {

void check_header(Bytes file, const PlanHeader& header) {
  if (header.num_sections != kFileSections)
    fail("plan", "header: sections: got ", header.num_sections, ", need ", kFileSections);
  if (header.file_bytes != file.size())
    fail("plan", "header: got a file of ", file.size(), " bytes, need ", header.file_bytes, "; is it truncated?");
  constexpr size_t kStart = offsetof(PlanHeader, checksum) + sizeof(header.checksum);
  const uint64_t sum = xxh64(file.subspan(kStart));
  if (sum != header.checksum)
    fail("plan", "header: checksum: got ", std::hex, sum, ", need ", header.checksum, "; the file is damaged");
}

bool has_name(const PlanSection& section, std::string_view name) {
  char padded[sizeof(section.name)] = {};
  std::copy(name.begin(), name.end(), padded);
  return std::memcmp(padded, section.name, sizeof(padded)) == 0;
}

std::vector<PlanTensor> with_dims(std::span<const PlanTensorRow> rows, std::span<const int64_t> dims) {
  std::vector<PlanTensor> result;
  result.reserve(rows.size());
  for (const PlanTensorRow& row : rows) {
    const std::string where = "plan: tensors[" + std::to_string(result.size()) + "]";
    check_range(where, "dims", row.dims, 1, dims.size());
    const int64_t rank = dims[row.dims];
    if (rank < 0 || rank > int64_t{PLAN_MAX_RANK}) fail(where, "rank: got ", rank, ", need at most ", PLAN_MAX_RANK);
    const auto count = static_cast<size_t>(rank);
    check_range(where, "dims", uint64_t{row.dims} + 1, 2 * count, dims.size());
    PlanTensor tensor{row.name, row.dtype, row.layout, row.space, row.offset, static_cast<uint32_t>(rank),
                      row.ring, {},        {}};
    const auto record = dims.subspan(row.dims + size_t{1}, 2 * count);
    std::copy_n(record.begin(), count, tensor.shape);
    std::copy_n(record.begin() + rank, count, tensor.strides);
    result.push_back(tensor);
  }
  return result;
}

}  // namespace

void check_start(Bytes start) {
  if (start.size() < sizeof(PlanHeader))
    fail("plan", "header: got ", start.size(), " bytes, need at least ", sizeof(PlanHeader));
  const auto header = read<PlanHeader>("plan", start, 0);
  if (std::memcmp(header.magic, PLAN_MAGIC, sizeof(header.magic)) != 0)
    fail("plan", "header: got other first bytes, need those of a plan; an ONNX model has to be compiled");
  if (header.version != PLAN_VERSION)
    fail("plan", "header: version: got ", header.version, ", need ", PLAN_VERSION, "; compile the model again");
}

Sections sections_of(const Plan& plan) {
  const auto bytes = [](auto rows) {
    const auto view = std::as_bytes(rows);
    return Bytes(view.data(), view.size());
  };
  return {{plan.strings,
           bytes(plan.spaces),
           bytes(plan.tensors),
           bytes(plan.operands),
           bytes(plan.numerics),
           bytes(plan.steps),
           bytes(plan.loops),
           bytes(plan.moves),
           plan.attrs,
           bytes(plan.inputs),
           bytes(plan.outputs),
           bytes(plan.blocks),
           {},
           plan.packed,
           {}},
          plan.state,
          plan.weights};
}

std::vector<Piece> pieces_of(const Sections& sections, Section section) {
  if (!sections[section].empty()) return {{0, sections[section]}};
  return section == kState ? sections.state : sections.weights;
}

uint64_t end_of(std::span<const Piece> pieces) {
  return pieces.empty() ? 0 : pieces.back().offset + pieces.back().bytes.size();
}

void copy_pieces(std::span<const Piece> pieces, uint64_t begin, std::span<std::byte> to) {
  const uint64_t end = begin + to.size();
  uint64_t done = begin;
  for (const Piece& piece : pieces) {
    const uint64_t first = std::max(begin, piece.offset);
    const uint64_t last = std::min(end, piece.offset + piece.bytes.size());
    if (first >= last) continue;
    std::memset(to.data() + (done - begin), 0, first - done);
    std::memcpy(to.data() + (first - begin), piece.bytes.data() + (first - piece.offset), last - first);
    done = last;
  }
  if (done < end) std::memset(to.data() + (done - begin), 0, end - done);
}

Container read_container(Bytes file) {
  check_start(file);
  check_header(file, read<PlanHeader>("plan", file, 0));
  std::array<Bytes, kFileSections> sections;
  uint64_t end = sizeof(PlanHeader) + kFileSections * sizeof(PlanSection);
  for (size_t i = 0; i < kFileSections; ++i) {
    const SectionInfo info = file_section(static_cast<int>(i));
    const std::string where = "plan: section " + std::to_string(i);
    const auto section = read<PlanSection>(where, file, sizeof(PlanHeader) + i * sizeof(PlanSection));
    if (!has_name(section, info.name)) fail(where, "name: got another one, need '", info.name, "'");
    if (section.row_bytes != info.row_bytes)
      fail(where, info.name, ": row_bytes: got ", section.row_bytes, ", need ", info.row_bytes);
    const uint64_t need = (end + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    if (section.offset != need) fail(where, info.name, ": offset: got ", section.offset, ", need ", need);
    sections[i] = slice(where, file, section.offset, section.bytes);
    const Bytes gap = slice(where, file, end, need - end);
    if (std::any_of(gap.begin(), gap.end(), [](std::byte b) { return b != std::byte{}; }))
      fail(where, info.name, ": the gap before it is not zero");
    end = section.offset + section.bytes;
  }
  if (end != file.size()) fail("plan", "got ", file.size() - end, " bytes after the last section, need none");
  Container result;
  for (size_t i = 0; i < kSections; ++i) result.sections[i] = sections[i + (i > kTensors)];
  result.tensors = std::make_shared<const std::vector<PlanTensor>>(with_dims(
      rows<PlanTensorRow>("plan: tensors", sections[kTensors]), rows<int64_t>("plan: dims", sections[kTensors + 1])));
  const auto bytes = std::as_bytes(std::span(*result.tensors));
  result.sections[kTensors] = {bytes.data(), bytes.size()};
  return result;
}

Plan read_plan(Bytes file) {
  Container container = read_container(file);
  Plan plan = read_sections(container.sections);
  plan.held_tensors = std::move(container.tensors);
  return plan;
}

}  // namespace hexane::plan
