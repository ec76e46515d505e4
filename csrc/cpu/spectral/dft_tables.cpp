#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "cpu/spectral/dft.h"

namespace hexane::cpu {
namespace {

// Returns exp(-2 pi i turns / length). Multiples of a quarter turn are exact.
std::complex<double> root(int64_t turns, int64_t length) {
  turns %= length;
  if (turns * 4 % length == 0) {
    constexpr double kRe[] = {1, 0, -1, 0}, kIm[] = {0, -1, 0, 1};
    return {kRe[turns * 4 / length], kIm[turns * 4 / length]};
  }
  const double angle = -2 * std::numbers::pi * static_cast<double>(turns) / static_cast<double>(length);
  return {std::cos(angle), std::sin(angle)};
}

void add(std::vector<float>& numbers, std::complex<double> x) {
  numbers.push_back(static_cast<float>(x.real()));
  numbers.push_back(static_cast<float>(x.imag()));
}

int64_t largest_prime_factor(int64_t n) {
  int64_t largest = 1;
  for (int64_t p = 2; p * p <= n; ++p)
    for (; n % p == 0; n /= p) largest = p;
  return std::max(largest, n);
}

DftPlan make_plan(int64_t size) {
  DftPlan plan;
  plan.size = size;
  int64_t s = 1;
  for (int64_t n = size; n > 1;) {
    int64_t radix = n % 4 == 0 ? 4 : 2;
    while (n % radix) ++radix;
    const int64_t m = n / radix;
    DftStage stage = {radix, m, s, static_cast<int64_t>(plan.numbers.size()), 0};
    for (int64_t j = 0; j < m; ++j)
      for (int64_t t = 1; t < radix; ++t) add(plan.numbers, root(j * t, n));
    stage.roots = static_cast<int64_t>(plan.numbers.size());
    if (radix % 2)
      for (int64_t i = 0; i < radix; ++i) add(plan.numbers, std::conj(root(i, radix)));
    plan.stages.push_back(stage);
    n = m, s *= radix;
  }
  return plan;
}

// Transforms a power of two of elements in place.
void transform(std::vector<std::complex<double>>& x) {
  const auto size = static_cast<int64_t>(x.size());
  for (int64_t i = 1, j = 0; i < size; ++i) {
    int64_t bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[static_cast<size_t>(i)], x[static_cast<size_t>(j)]);
  }
  for (int64_t n = 2; n <= size; n *= 2)
    for (int64_t k = 0; k < n / 2; ++k) {
      const auto w = root(k, n);
      for (int64_t i = k; i < size; i += n) {
        auto &a = x[static_cast<size_t>(i)], &b = x[static_cast<size_t>(i + n / 2)];
        const auto product = w * b;
        b = a - product;
        a += product;
      }
    }
}

}  // namespace

Dft make_dft(int64_t length, int64_t read, int64_t outputs, int64_t parts, int64_t results, bool inverse) {
  Dft dft = {.length = length,
             .read = read,
             .outputs = outputs,
             .parts = parts,
             .results = results,
             .inverse = inverse,
             .halves = !inverse && parts == 1 && length % 2 == 0,
             .plan = {},
             .split = {},
             .chirp = {},
             .filter = {},
             .rows = 0};
  const int64_t size = dft.halves ? length / 2 : length;
  if (largest_prime_factor(size) <= kMostRadix) {
    dft.plan = make_plan(size);
  } else {
    int64_t wide = 1;
    while (wide < 2 * size - 1) wide *= 2;
    dft.plan = make_plan(wide);
    std::vector<std::complex<double>> filter(static_cast<size_t>(wide));
    for (int64_t n = 0; n < size; ++n) {
      const auto c = root(n * n % (2 * size), 2 * size);
      add(dft.chirp, c);
      filter[static_cast<size_t>(n)] = filter[static_cast<size_t>((wide - n) % wide)] =
          std::conj(c) / static_cast<double>(wide);
    }
    transform(filter);
    for (const auto& x : filter) add(dft.filter, x);
  }
  if (dft.halves)
    for (int64_t k = 0; k <= length / 2; ++k) add(dft.split, root(k, length));
  dft.rows = std::max({dft.plan.size, length, outputs});
  return dft;
}

}  // namespace hexane::cpu
