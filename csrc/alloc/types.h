// The allocation type of every tensor on chip: where it is stored between its producer and its readers. Apple's
// compiler has these nine values (ANE guide, table 22.2).
//
//   0 resident           loaded once, read by several layers of one partition
//   1 streamed           in main memory: it crosses partitions, is a port, or is read once
//   2 chained            produced and consumed alternately, tile by tile: takes two tiles of memory
//   3 dependent          produced on chip, consumed on chip
//   4 in place           a rewrite of a resident tensor
//   5 in place, dep.     a rewrite of a tensor produced on chip
//   6 ring               in a ring buffer
//   7 ring, dependent    in a ring buffer, produced on chip
//   8 in place, main     a rewrite in main memory
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hexane::alloc {

enum class Type : uint8_t {
  kResident = 0,
  kStreamed = 1,
  kChained = 2,
  kDependent = 3,
  kInPlace = 4,
  kInPlaceDependent = 5,
  kRing = 6,
  kRingDependent = 7,
  kInPlaceStreamed = 8,
};

constexpr bool in(Type type, unsigned set) { return (set >> static_cast<unsigned>(type)) & 1; }
constexpr bool is_on_chip(Type type) { return in(type, 0b0'1111'1101); }
constexpr bool is_in_place(Type type) { return in(type, 0b1'0011'0000); }
constexpr bool is_ring(Type type) { return in(type, 0b0'1100'0000); }
constexpr bool is_dependent(Type type) { return in(type, 0b0'1010'1000); }  // the tensor waits for a producer on chip

// Where a layer runs.
struct Place {
  int32_t unit = 0;      // Index of the engine class.
  int32_t engine = 0;    // Index of the engine in its class.
  int32_t position = 0;  // Position in the order of layers.
  int32_t partition = 0;
};

struct Tile {
  int64_t width = 0, height = 0, channels = 0;
  bool operator==(const Tile&) const = default;
};

struct Operand {
  int32_t producer = -1;  // The layer that produces the tensor; -1: none, the tensor starts in main memory.
  bool kept = false;      // The tensor has to be in main memory at the end.
  bool ring = false;
  int32_t rewrites = -1;         // The tensor that this tensor overwrites; -1: none.
  Tile made;                     // The producer's tiles.
  Tile read;                     // The first reader's tiles.
  int64_t rows_made = 0;         // Rows that the producer has emitted when the reader may begin.
  int64_t rows_needed = 0;       // Rows of the reader's first tile, with its halo.
  std::vector<int32_t> readers;  // Layers that read the tensor.
};

// The first condition of chaining that fails; kChained if none fails.
enum class ChainBreak : uint8_t {
  kChained,
  kNoEdge,    // No producer on chip, no reader, or the tensor is in a ring or in place.
  kDisabled,  // The chip does not chain.
  kFanOut,    // The producer has more than one consumer, or must also store its result in main memory.
  kOtherClass,
  kOtherEngine,
  kGeometry,    // The tiles of producer and reader differ.
  kNotNext,     // Another layer runs between producer and reader, or a partition ends.
  kTooFewRows,  // The reader's first tile needs more rows than the producer has emitted.
};

struct Allocation {
  std::vector<Type> types;         // Type of each tensor.
  std::vector<ChainBreak> breaks;  // Chain break of each tensor.
};

// `chaining`: whether the chip's compiler enables chaining.
Allocation choose_types(std::span<const Place> layers, std::span<const Operand> tensors, bool chaining);

// Throws Error for the first tensor that breaks a condition of its type. The check shares no code with `choose_types`.
void check_types(std::span<const Place> layers, std::span<const Operand> tensors, std::span<const Type> types,
                 bool chaining);

}  // namespace hexane::alloc
