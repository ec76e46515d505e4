// Weights in the layout that the engines read. Groups of output channels are dealt to the engines in turn, and the
// weights of an engine form its sub-kernel.
//
//    7 output channels, groups of 2, 2 engines        engine 0: channels 0 1 | 4 5
//                                                      engine 1: channels 2 3 | 6 -      - is padding, zero
//                                                      pass          0        1
//
// The weights of an engine have the layout [pass][depth][height][width][input][output]. A sub-kernel begins at a
// multiple of the alignment. In a grouped convolution, such a group never has output channels of two groups of the
// convolution.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hexane::pack {

struct Kernel {
  int64_t outputs = 0;  // Output channels of all groups.
  int64_t inputs = 0;   // Input channels of one group.
  int64_t depth = 1, height = 1, width = 1;
  int64_t groups = 1;  // Groups of the convolution.
  int64_t bits = 16;   // Bits of one weight, 1 to 16.
};

struct Engines {
  int64_t count = 0;            // Number of engines, a power of two.
  int64_t output_channels = 0;  // Output channels of a group. An engine computes a group at once.
  int64_t alignment = 0;        // Alignment of a sub-kernel in bytes.
};

struct Shape {
  int64_t num_groups = 0;  // Groups of output channels.
  int64_t active = 0;      // Engines in use: num_groups rounded up to a power of two, at most Engines::count.
  int64_t passes = 0;      // Groups of each engine.
  int64_t stride = 0;      // Bytes from one sub-kernel to the next.
};

// Returns the output channels of a group: the largest power of two up to `accumulators` / taps and `bytes` / taps, at
// least 1. ANE guide, chapter 20 (decoded).
int64_t output_group_decoded(const Kernel& kernel, int64_t accumulators, int64_t bytes);

// Returns the output channels of a group: the largest power of two up to `most` whose weights fit the engine's kernel
// memory, at least 1. M6 study (measured).
int64_t output_group_measured(const Kernel& kernel, int64_t kernel_memory, int64_t most);

// Returns the shape of a packed kernel. Throws Error if the numbers describe no valid kernel, or its size overflows.
Shape packed_shape(const Kernel& kernel, const Engines& engines);

// Packs weights. weights: a bit stream, lowest bits of a byte first, in the order of `layout`. layout: the axes o
// (outputs), i (inputs), d, h and w, each once, outermost first. The result has stride * active bytes.
std::vector<uint8_t> pack(const Kernel& kernel, const Engines& engines, std::string_view layout,
                          std::span<const uint8_t> weights);

// The inverse of pack().
std::vector<uint8_t> unpack(const Kernel& kernel, const Engines& engines, std::string_view layout,
                            std::span<const uint8_t> packed);

}  // namespace hexane::pack
