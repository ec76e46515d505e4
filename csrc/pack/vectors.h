// Palettes of vectors: one index selects the numbers of several adjacent channels.
//
//    4 channels of 3 weights, vectors of 2, 1 bit:  channels 0 and 1 have 3 indices, channels 2 and 3 another 3;
//    the table has 2 entries of 2 numbers
#pragma once

#include <cstdint>
#include <span>

#include "core/fp16.h"

namespace hexane::pack {

// A weight as [outer][vectors][size][inner]: the numbers of a vector are `inner` elements apart.
struct Vectors {
  int64_t outer = 1, vectors = 1, size = 2, inner = 1;
};

// entries: [2^bits][size], in lexicographic order; if the weight has fewer distinct vectors, the last entry is
// repeated. indices: [outer][vectors][inner], each the nearest entry. Entries are the means of k-means clusters,
// rounded to fp16. Lloyd's steps run from several starts on a sample, then from the best on all vectors. The result is
// never worse than a palette of single numbers with the same bits per number. A weight with at most 2^bits distinct
// vectors is exact. The result does not depend on the number of threads. bits: 1 to 8; size: 2 or 4. Throws Error if a
// weight is not finite. Returns the sum of squared distances.
double palette_vectors(std::span<const fp16> weights, const Vectors& shape, int bits, int threads,
                       std::span<fp16> entries, std::span<uint8_t> indices);

}  // namespace hexane::pack
