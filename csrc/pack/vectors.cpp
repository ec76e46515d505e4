#include "pack/vectors.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "pack/clusters.h"
#include "pack/nearest_vectors.h"

namespace hexane::pack {
namespace {

constexpr size_t kLeastSample = 8192, kSampleOfEntry = 128;  // Size of the sample on which starts are compared.
constexpr size_t kMostParts = 256, kLeastPart = 4096;        // Parts of the vectors, divided among threads.
constexpr int kSampleSteps = 60, kSteps = 12;
constexpr double kGain = 1e-4;  // Steps end when a step reduces the error by no more than this fraction.
constexpr int kDraws = 3;       // Candidates for each entry of a start; the best is kept.

template <size_t V>
using Entry = std::array<float, V>;
static_assert(sizeof(Entry<2>) == 2 * sizeof(float) && sizeof(Entry<4>) == 4 * sizeof(float));

// Number n of vector i is planes[n][i].
template <size_t V>
struct Points {
  std::array<std::vector<float>, V> planes;
  std::vector<double> weights;  // the weight of each vector; empty: all weights are 1

  size_t size() const { return planes[0].size(); }
  double weight(size_t i) const { return weights.empty() ? 1.0 : weights[i]; }
  Entry<V> at(size_t i) const {
    Entry<V> found;
    for (size_t n = 0; n < V; ++n) found[n] = planes[n][i];
    return found;
  }
};

// Computes the squared distances of `count` vectors from one entry.
template <size_t V>
void distances(const Points<V>& points, size_t from, size_t count, const Entry<V>& entry, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = 0;
  for (size_t n = 0; n < V; ++n) {
    const float* plane = points.planes[n].data() + from;
    for (size_t i = 0; i < count; ++i) out[i] += (plane[i] - entry[n]) * (plane[i] - entry[n]);
  }
}

// Finds the nearest entries of at most kNearestLanes vectors.
template <size_t V>
void find_nearest(const Points<V>& points, size_t from, size_t count, const std::vector<Entry<V>>& entries,
                  Nearest& out) {
  std::array<float, V * kNearestLanes> x{};
  for (size_t n = 0; n < V; ++n) std::copy_n(points.planes[n].data() + from, count, x.data() + n * kNearestLanes);
  find_nearest(x.data(), V, {entries.data()->data(), entries.size() * V}, out);
}

// For each entry: the sum and the count of its nearest vectors. For all entries together: the sum of squared distances.
template <size_t V>
struct Sums {
  explicit Sums(size_t entries) : sum(entries), count(entries) {}

  void add(const Points<V>& points, size_t from, size_t to, const std::vector<Entry<V>>& entries) {
    Nearest found;
    for (size_t at = from; at < to; at += kNearestLanes) {
      const size_t many = std::min(kNearestLanes, to - at);
      find_nearest(points, at, many, entries, found);
      for (size_t i = 0; i < many; ++i) {
        const auto e = static_cast<size_t>(found.entry[i]);
        const double weight = points.weight(at + i), distance = found.distance[i];
        for (size_t n = 0; n < V; ++n) sum[e][n] += weight * points.planes[n][at + i];
        count[e] += weight;
        error += weight * distance;
        if (weight * distance > most) {
          most = weight * distance;
          farthest = at + i;
        }
      }
    }
  }

  void add(const Sums& other) {
    for (size_t e = 0; e < sum.size(); ++e) {
      for (size_t n = 0; n < V; ++n) sum[e][n] += other.sum[e][n];
      count[e] += other.count[e];
    }
    error += other.error;
    if (other.most > most) {
      most = other.most;
      farthest = other.farthest;
    }
  }

  // Moves entries to the means of their vectors. The first entry without vectors moves to where the error is largest.
  void move(const Points<V>& points, std::vector<Entry<V>>& entries) const {
    bool free = most > 0;
    for (size_t e = 0; e < entries.size(); ++e) {
      if (count[e] > 0) {
        for (size_t n = 0; n < V; ++n) entries[e][n] = static_cast<float>(sum[e][n] / count[e]);
      } else if (free) {
        entries[e] = points.at(farthest);
        free = false;
      }
    }
  }

  std::vector<std::array<double, V>> sum;
  std::vector<double> count;
  double error = 0, most = 0;
  size_t farthest = 0;
};

// Lloyd's steps. sums(entries) gives the sums over all vectors. Returns the error before the last step. The error after
// the last step is not larger.
template <size_t V, typename Find>
double lloyd(const Points<V>& points, std::vector<Entry<V>>& entries, int most_steps, const Find& sums) {
  double before = std::numeric_limits<double>::infinity();
  for (int step = 0; step < most_steps; ++step) {
    const Sums<V> found = sums(entries);
    if (found.error == 0) return 0;
    found.move(points, entries);
    const bool settled = before - found.error <= kGain * found.error;
    before = found.error;
    if (settled && std::ranges::find(found.count, 0.0) == found.count.end()) break;
  }
  return before;
}

// Samples vectors. Half of a vector's probability is uniform; the other half is its share of the squared distances from
// the mean. The sample thus includes vectors far from the mean, which cause much of the error. Vectors with a small
// probability get a larger weight. The choice is not random: the probabilities are summed in the order of the vectors,
// and a vector is chosen whenever the sum passes an integer.
template <size_t V>
Points<V> sample_of(const Points<V>& points, size_t wanted) {
  const size_t count = points.size();
  if (count <= wanted) return points;
  Entry<V> mean;
  for (size_t n = 0; n < V; ++n)
    mean[n] = static_cast<float>(std::accumulate(points.planes[n].begin(), points.planes[n].end(), 0.0) /
                                 static_cast<double>(count));
  std::vector<float> far(count);
  distances(points, 0, count, mean, far.data());
  const double total = std::accumulate(far.begin(), far.end(), 0.0);
  const double each = static_cast<double>(wanted) / (total > 0 ? 2 : 1);
  Points<V> made;
  double chances = 0.5;
  for (size_t i = 0; i < count; ++i) {
    const double chance = each / static_cast<double>(count) + (total > 0 ? each * far[i] / total : 0);
    const double before = std::floor(chances);
    chances += chance;
    const double times = std::floor(chances) - before;
    if (times == 0) continue;
    for (size_t n = 0; n < V; ++n) made.planes[n].push_back(points.planes[n][i]);
    made.weights.push_back(times / chance);
  }
  return made;
}

// k-means++: each entry is one of the vectors, drawn with its share of the error under earlier entries as probability.
// The best of kDraws drawn vectors is kept.
template <size_t V>
std::vector<Entry<V>> drawn(const Points<V>& points, size_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t count = points.size();
  std::vector<float> least(count, 1.0f), tried(count), best(count);
  std::vector<double> sums(count);
  std::vector<Entry<V>> entries;
  while (entries.size() < most) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sums[i] = sum += points.weight(i) * least[i];
    if (sum == 0) break;
    double best_left = std::numeric_limits<double>::infinity();
    Entry<V> entry{};
    for (int draw = 0; draw < kDraws; ++draw) {
      const double at = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
      const auto place = static_cast<size_t>(std::ranges::upper_bound(sums, at) - sums.begin());
      const Entry<V> candidate = points.at(std::min(place, count - 1));
      distances(points, 0, count, candidate, tried.data());
      if (!entries.empty())
        for (size_t i = 0; i < count; ++i) tried[i] = std::min(tried[i], least[i]);
      double left = 0;
      for (size_t i = 0; i < count; ++i) left += points.weight(i) * tried[i];
      if (left >= best_left) continue;
      best_left = left;
      entry = candidate;
      best.swap(tried);
    }
    least.swap(best);
    entries.push_back(entry);
  }
  return entries;
}

// Returns all vectors whose numbers are entries of the palette of single numbers with the same bits per number.
template <size_t V>
std::vector<Entry<V>> of_numbers(const Points<V>& points, int bits) {
  std::vector<uint32_t> counts(kHalves);
  for (const auto& plane : points.planes)
    for (const float x : plane) ++counts[to_fp16(x).bits];
  std::vector<uint16_t> order;
  for (size_t h = 0; h < kHalves; ++h)
    if (counts[h] != 0) order.push_back(static_cast<uint16_t>(h));
  std::ranges::sort(order, {}, [](uint16_t h) { return to_float({h}); });
  const Histogram found(order, counts);
  const size_t each = size_t{1} << (static_cast<size_t>(bits) / V);
  const std::vector<fp16> numbers =
      entries_of(found, order.size() <= each ? one_each(order.size()) : near_bounds(found, each));
  std::vector<Entry<V>> made{Entry<V>{}};
  for (size_t n = 0; n < V; ++n) {
    std::vector<Entry<V>> longer;
    for (const Entry<V>& entry : made)
      for (const fp16 number : numbers) {
        longer.push_back(entry);
        longer.back()[n] = to_float(number);
      }
    made = std::move(longer);
  }
  return made;
}

// Returns the distinct vectors, if there are at most `most`.
template <size_t V>
std::vector<Entry<V>> all_of(const Points<V>& points, size_t most) {
  std::set<Entry<V>> found;
  Entry<V> last{};
  for (size_t i = 0; i < points.size() && found.size() <= most; ++i) {
    const Entry<V> entry = points.at(i);
    if (i == 0 || entry != last) found.insert(entry);
    last = entry;
  }
  if (found.size() > most) return {};
  return {found.begin(), found.end()};
}

void shared(int threads, size_t jobs, const auto& job) {
  std::atomic<size_t> next{0};
  auto body = [&](int) {
    for (size_t i = next++; i < jobs; i = next++) job(i);
  };
  const auto lease = threads > 1 && jobs > 1 ? ThreadPool::of_process().try_lease(threads) : ThreadPool::Lease();
  if (lease)
    lease.run(body);
  else
    body(0);
}

template <size_t V>
class Solver {
 public:
  // `points` outlives the solver.
  Solver(const Points<V>& points, int bits, int threads)
      : points_(points),
        bits_(bits),
        threads_(threads),
        most_(size_t{1} << bits),
        part_(std::max(kLeastPart, (points.size() + kMostParts - 1) / kMostParts)),
        parts_((points.size() + part_ - 1) / part_) {}

  std::vector<Entry<V>> entries() const {
    std::vector<Entry<V>> found = all_of(points_, most_);
    if (found.empty()) {
      found = best_start();
      lloyd(points_, found, kSteps, [&](const auto& entries) { return sums(entries); });
      for (Entry<V>& entry : found)
        for (float& number : entry) number = to_float(to_fp16(number));
      if (has_numbers())
        if (const auto numbers = of_numbers(points_, bits_); sums(numbers).error < sums(found).error) found = numbers;
    }
    std::ranges::sort(found);
    found.resize(most_, found.back());
    return found;
  }

  double indices(const std::vector<Entry<V>>& entries, std::span<uint8_t> to) const {
    std::vector<double> errors(parts_);
    shared(threads_, parts_, [&](size_t part) {
      Nearest found;
      const size_t end = std::min((part + 1) * part_, points_.size());
      for (size_t at = part * part_; at < end; at += kNearestLanes) {
        const size_t many = std::min(kNearestLanes, end - at);
        find_nearest(points_, at, many, entries, found);
        for (size_t i = 0; i < many; ++i) {
          to[at + i] = static_cast<uint8_t>(found.entry[i]);
          errors[part] += found.distance[i];
        }
      }
    });
    return std::accumulate(errors.begin(), errors.end(), 0.0);
  }

 private:
  bool has_numbers() const { return static_cast<size_t>(bits_) % V == 0; }

  // Returns the sums over all vectors. Parts are added in a fixed order, independent of the threads.
  Sums<V> sums(const std::vector<Entry<V>>& entries) const {
    std::vector<Sums<V>> found(parts_, Sums<V>(entries.size()));
    shared(threads_, parts_, [&](size_t part) {
      found[part].add(points_, part * part_, std::min((part + 1) * part_, points_.size()), entries);
    });
    for (size_t part = 1; part < parts_; ++part) found[0].add(found[part]);
    return found[0];
  }

  // Returns the best of several starts, compared by their final errors on the sample.
  std::vector<Entry<V>> best_start() const {
    const Points<V> sample = sample_of(points_, std::max(kLeastSample, kSampleOfEntry * most_));
    const size_t random = most_ <= 16 ? 4 : most_ <= 64 ? 2 : 1;
    const size_t starts = random + (has_numbers() ? 1 : 0);
    std::vector<std::vector<Entry<V>>> found(starts);
    std::vector<double> errors(starts);
    shared(threads_, starts, [&](size_t i) {
      found[i] = i < random ? drawn(sample, most_, i) : of_numbers(points_, bits_);
      found[i].resize(most_, found[i].back());
      errors[i] = lloyd(sample, found[i], kSampleSteps, [&](const auto& entries) {
        Sums<V> made(entries.size());
        made.add(sample, 0, sample.size(), entries);
        return made;
      });
    });
    return found[static_cast<size_t>(std::ranges::min_element(errors) - errors.begin())];
  }

  const Points<V>& points_;
  int bits_, threads_;
  size_t most_, part_, parts_;
};

template <size_t V>
Points<V> planes_of(std::span<const fp16> weights, const Vectors& shape) {
  const auto rows = static_cast<size_t>(shape.outer * shape.vectors), inner = static_cast<size_t>(shape.inner);
  Points<V> made;
  for (auto& plane : made.planes) plane.resize(rows * inner);
  for (size_t row = 0; row < rows; ++row)
    for (size_t n = 0; n < V; ++n) {
      const fp16* from = weights.data() + (row * V + n) * inner;
      for (size_t i = 0; i < inner; ++i) {
        if (!is_finite(from[i].bits)) fail("quantise", "weights: got one that is not finite");
        made.planes[n][row * inner + i] = to_float(from[i]) + 0.0f;  // the sum turns -0 into 0
      }
    }
  return made;
}

template <size_t V>
double solve(std::span<const fp16> weights, const Vectors& shape, int bits, int threads, std::span<fp16> entries,
             std::span<uint8_t> indices) {
  const Points<V> points = planes_of<V>(weights, shape);
  const Solver<V> solver(points, bits, threads);
  const std::vector<Entry<V>> found = solver.entries();
  for (size_t e = 0; e < found.size(); ++e)
    for (size_t n = 0; n < V; ++n) entries[e * V + n] = to_fp16(found[e][n]);
  return solver.indices(found, indices);
}

}  // namespace

double palette_vectors(std::span<const fp16> weights, const Vectors& shape, int bits, int threads,
                       std::span<fp16> entries, std::span<uint8_t> indices) {
  if (bits < 1 || bits > 8) fail("quantise", "bits: got ", bits, ", need 1 to 8");
  if (shape.size != 2 && shape.size != 4) fail("quantise", "size: got ", shape.size, ", need 2 or 4");
  const auto count = static_cast<size_t>(shape.outer * shape.vectors * shape.inner);
  const auto size = static_cast<size_t>(shape.size);
  if (weights.empty() || count * size != weights.size() || indices.size() != count || entries.size() != size << bits)
    fail("quantise", "got ", weights.size(), " weights, need ", shape.outer, " x ", shape.vectors, " x ", shape.size,
         " x ", shape.inner, ", and some");
  return size == 2 ? solve<2>(weights, shape, bits, threads, entries, indices)
                   : solve<4>(weights, shape, bits, threads, entries, indices);
}

}  // namespace hexane::pack
