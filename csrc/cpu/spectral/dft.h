// The tables of a fast Fourier transform, which prepare() computes once.
#pragma once

#include <cstdint>
#include <vector>

namespace hexane::cpu {

// A stage of Stockham's algorithm: m * s butterflies of `radix` elements. The transforms that it leaves have m elements
// and are s * radix apart.
struct DftStage {
  int64_t radix, m, s;
  int64_t factors;  // Index of its factors: for each j < m the real and imaginary parts of w^jt, 0 < t < radix.
  int64_t roots;    // Index of its roots: cos and sin of 2 pi i / radix, 0 <= i < radix; for radix 2 and 4 unused.
};

// A transform of `size` complex elements.
struct DftPlan {
  int64_t size = 0;
  std::vector<DftStage> stages;
  std::vector<float> numbers;  // of all stages
};

// The largest prime factor of a length that a butterfly computes. Other lengths become a convolution (Bluestein) of a
// length that is a power of two.
inline constexpr int64_t kMostRadix = 31;

struct Dft {
  int64_t length;   // The signal is cropped or zero-padded to it.
  int64_t read;     // elements of the input that are read
  int64_t outputs;  // elements of the result
  int64_t parts;    // 1 for a real input, 2 for a complex one
  int64_t results;  // 1 for a real result, 2 for a complex one
  bool inverse;
  bool halves;  // A real signal of even length: a complex transform of half the length computes it.
  DftPlan plan;
  // Tables of complex numbers, each as its real and its imaginary part. N is length, or length / 2 for halves.
  std::vector<float> split;   // For halves: exp(-2 pi i k / length), k <= N.
  std::vector<float> chirp;   // For Bluestein: exp(-pi i n^2 / N), n < N. Empty for others.
  std::vector<float> filter;  // For Bluestein: the transform of the conjugate chirp, divided by plan.size.
  int64_t rows;               // rows of kLanes complex elements that a buffer has room for
};

// Returns the tables. halves: see Dft; parts and so on are given.
Dft make_dft(int64_t length, int64_t read, int64_t outputs, int64_t parts, int64_t results, bool inverse);

}  // namespace hexane::cpu
