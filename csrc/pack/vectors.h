// Palettes of vectors: an index names the numbers of several neighbouring channels.
//
//    4 channels of 3 weights, vectors of 2, 1 bit:  channels 0 and 1 have 3 indices, channels 2 and 3 another 3;
//    the table has 2 entries of 2 numbers
#pragma once

#include <cstdint>
#include <span>

#include "core/fp16.h"

namespace hexane::pack {

// A weight as [outer][vectors][size][inner]: the numbers of a vector lie `inner` apart.
struct Vectors {
  int64_t outer = 1, vectors = 1, size = 2, inner = 1;
};

// entries: [2^bits][size], in order of their numbers, the last repeated where the weight has fewer vectors that differ;
// indices: [outer][vectors][inner], each the nearest entry. Entries are k-means clusters' means, rounded to fp16:
// Lloyd's steps from several starts on a sample, then on all vectors from the best; never worse than the palette of
// numbers with as many bits for each. A weight of few vectors that differ loses nothing. The same for any number of
// threads. bits: 1 to 8; size: 2 or 4. Throws for a weight that is not finite. Returns the sum of squared distances.
double palette_vectors(std::span<const fp16> weights, const Vectors& shape, int bits, int threads,
                       std::span<fp16> entries, std::span<uint8_t> indices);

}  // namespace hexane::pack
