// Weights as the engines read them: output channels go to the engines group by group, and each engine has a sub-kernel.
//
//    7 output channels, groups of 2, 2 engines        engine 0: channels 0 1 | 4 5
//                                                      engine 1: channels 2 3 | 6 -      - is padding, zero
//                                                      pass          0        1
//
// In a pass the weights of one group follow each other tap by tap, within a tap input channel by input channel, within
// that output channel by output channel: [pass][depth][height][width][input][output]. A sub-kernel begins at a multiple
// of the alignment. Groups never mix the output channels of two groups of a grouped convolution.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hexane::pack {

struct Kernel {
  int64_t outputs = 0;  // of all groups
  int64_t inputs = 0;   // of one group
  int64_t depth = 1, height = 1, width = 1;
  int64_t groups = 1;  // of the convolution
  int64_t bits = 16;   // of one weight, 1..16
};

struct Engines {
  int64_t count = 0;            // a power of two
  int64_t output_channels = 0;  // of a group that an engine computes at once
  int64_t alignment = 0;        // of a sub-kernel, bytes
};

struct Shape {
  int64_t num_groups = 0;  // of output channels
  int64_t active = 0;      // engines that have a group: the power of two from the number of groups on, at most all
  int64_t passes = 0;      // groups of each engine
  int64_t stride = 0;      // bytes from one sub-kernel to the next
};

// The largest power of two up to `accumulators` / taps and `bytes` / taps, at least 1. ANE guide, chapter 20 (decoded).
int64_t output_group_decoded(const Kernel& kernel, int64_t accumulators, int64_t bytes);

// The largest power of two up to `most` whose weights fit the engine's kernel memory, at least 1. M6 study (measured).
int64_t output_group_measured(const Kernel& kernel, int64_t kernel_memory, int64_t most);

// Throws for numbers that make no kernel, or one whose size does not fit.
Shape packed_shape(const Kernel& kernel, const Engines& engines);

// weights: bits after bits, the lowest of a byte first, in the order of `layout`: the axes o (outputs), i (inputs), d,
// h and w, each once, outermost first. The result has stride * active bytes.
std::vector<uint8_t> pack(const Kernel& kernel, const Engines& engines, std::string_view layout,
                          std::span<const uint8_t> weights);

// The inverse.
std::vector<uint8_t> unpack(const Kernel& kernel, const Engines& engines, std::string_view layout,
                            std::span<const uint8_t> packed);

}  // namespace hexane::pack
