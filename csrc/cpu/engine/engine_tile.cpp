// The engine's multiply-accumulate path: fp16 products in fixed point, exact to the bit.
//
// A product is rounded to a multiple of 2^-16, halves away from zero, and left out where the exponents of its factors
// add up to -17 or less (a subnormal counts as exponent -14; exponent 31 is a number like any other). The accumulator
// holds whole multiples of 2^-16; one that reaches 32768 in size stays infinite. The result is rounded to fp16, halves
// away from zero. This reproduces what M1, M2 Max, M4 Max, M5 Pro and M6 return (docs/numerics.md).
//
// The fast tile lets one fused multiply-add do the rounding. Added to 192, any product below 64 is rounded to 2^-16,
// because that is the last place of numbers from 128 to 256; its bits less those of 192 are the integer to accumulate.
// To turn ties to even into ties away from zero, weights are packed one fp32 place larger in size: that moves a product
// of two 11-bit significands by no more than half of its own last place, so only ties change sides.
//
// A panel ends with what bounds its products: the largest weight, and the largest norm of a column. Where these bounds
// do not rule out a product of 64 or an accumulator of 32768, a tile is computed element by element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engine/engine_tile.cpp"
#include "cpu/engine/engine_tile.h"

#include <cmath>

#include <hwy/foreach_target.h>
// after foreach_target
#include "cpu/simd/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE {
namespace {

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;

// Where multiply-add rounds twice, the exact product is moved instead of the weight.
constexpr bool kFused = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;
constexpr int kRowsAtOnce = 3;

constexpr float kMagic = 192.0f;
constexpr int32_t kMagicBits = 0x43400000;
constexpr int32_t kExponentBits = 0x7f800000;
constexpr int32_t kLeastExponent = (127 - 14) << 23;  // of a subnormal fp16
constexpr int32_t kThresholdBase = (127 + 127 - 16)
                                   << 23;  // less the exponent of x: that of the least weight that counts

// fp16 as numbers: exponent 31 goes on where 30 ends.
void to_numbers(const std::byte* from, DType, int64_t n, float* to) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> dh;
  const auto* p = reinterpret_cast<const uint16_t*>(from);
  const auto convert = [&](hn::Vec<decltype(dh)> half) HWY_ATTR {
    const auto bits = hn::PromoteTo(du, half);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
    const auto value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
    return hn::Or(value, hn::BitCast(d, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)))));
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(convert(hn::LoadU(dh, p + i)), d, to + i);
  if (i < n) {
    uint16_t halves[kLanes] = {};
    std::memcpy(halves, p + i, (n - i) * sizeof(uint16_t));
    float padded[kLanes];
    hn::StoreU(convert(hn::LoadU(dh, halves)), d, padded);
    std::memcpy(to + i, padded, (n - i) * sizeof(float));
  }
}

// The same number one place larger in size, and back.
float larger(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += (bits & 0x7fffffff) != 0;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}
float packed_number(float x) {
  if constexpr (!kFused) return x;
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits -= (bits & 0x7fffffff) != 0;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// ---- bounds ----

struct Bound {
  float largest;  // size of a number
  float norm;     // of a row or column
};

// Behind the k rows of a panel.
struct PanelEnd {
  Bound bound;
  float unused[14];
};
static_assert(sizeof(PanelEnd) == 4 * kPanelLanes);

void end_panels(std::byte* panels, int64_t k, int64_t count, int64_t panel_bytes) {
  for (int64_t p = 0; p < count; ++p, panels += panel_bytes) {
    auto* weights = reinterpret_cast<float*>(panels);
    PanelEnd end{};
    double squares[kPanelLanes] = {};
    for (int64_t i = 0; i < k * kPanelLanes; ++i) {
      end.bound.largest = std::max(end.bound.largest, std::abs(weights[i]));
      squares[i % kPanelLanes] += static_cast<double>(weights[i]) * weights[i];
      if constexpr (kFused) weights[i] = larger(weights[i]);
    }
    for (const double square : squares)
      end.bound.norm = std::max(end.bound.norm, static_cast<float>(std::sqrt(square)));
    std::memcpy(weights + k * kPanelLanes, &end, sizeof end);
  }
}

HWY_INLINE Bound row_bound(const Tile& t, int row) {
  const D d;
  V largest = hn::Zero(d), squares = hn::Zero(d);
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const float* a = t.a[s * kTileRows + row];
    for (int64_t l = 0; l < t.length; l += kLanes) {
      const V x = load_n(a + l, t.length - l);
      largest = hn::Max(largest, hn::Abs(x));
      squares = hn::MulAdd(x, x, squares);
    }
  }
  return {hn::GetLane(hn::MaxOfLanes(d, largest)), std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)))};
}

// Whether no product can reach 64 and no accumulator 32768, on the way or at the end.
bool is_small(const Tile& t, const Bound& row) {
  const int64_t k = t.num_segments * t.length;
  Bound panels{};
  for (int p = 0; p < t.num_panels; ++p) {
    PanelEnd end;
    std::memcpy(&end, t.panels + p * t.panel_bytes + k * kPanelLanes * sizeof(float), sizeof end);
    panels = {std::max(panels.largest, end.bound.largest), std::max(panels.norm, end.bound.norm)};
  }
  float bias = 0;
  if (t.bias)
    for (int64_t i = 0; i < t.num_panels * kPanelLanes; ++i) bias = std::max(bias, std::abs(t.bias[t.column + i]));
  // A rounded product is larger by 2^-17 at most; the rest is room for the roundings of these bounds themselves.
  return row.largest * panels.largest < 63.9f && row.norm * panels.norm * (1.001f + static_cast<float>(k) * 0x1p-24f) +
                                                         static_cast<float>(k) * 0x1p-17f + bias <
                                                     32760.0f;
}

// ---- results ----

int64_t fixed(double x) { return static_cast<int64_t>(std::round(x * 65536.0)); }

// Of accumulators below 32768: fp16 values, halves away from zero.
HWY_INLINE V round_fixed(VI acc) {
  const D d;
  const DI di;
  const hn::RebindToUnsigned<D> du;
  const VI sign = hn::BroadcastSignBit(acc);
  const VI size = hn::Sub(hn::Xor(acc, sign), sign);
  // What fp32 cannot hold lies below the place that decides.
  const auto wide = hn::Gt(size, hn::Set(di, (1 << 24) - 1));
  const V exact = hn::ConvertTo(d, hn::IfThenElse(wide, hn::And(size, hn::Set(di, ~0xff)), size));
  const auto up = hn::Add(hn::BitCast(du, exact), hn::Set(du, 0x1000u));
  const V half = hn::BitCast(d, hn::And(up, hn::Set(du, ~0x1fffu)));
  return hn::Or(hn::Mul(half, hn::Set(d, 0x1p-16f)),
                hn::BitCast(d, hn::And(sign, hn::BitCast(di, hn::Set(du, 0x80000000u)))));
}

// ---- any numbers ----

// Exponent of a number of fp16.
int exponent(float x) { return x == 0 ? -14 : std::max(std::ilogb(x), -14); }

// One accumulator, whose terms are added in order.
class Accumulator {
 public:
  explicit Accumulator(float bias) : units_(fixed(bias)) {}

  void add(float x, float packed_weight) {
    const float y = packed_number(packed_weight);
    if (!overflows() && exponent(x) + exponent(y) > -17) units_ += fixed(static_cast<double>(x) * y);
  }
  float result() const {
    if (overflows()) return std::copysign(INFINITY, static_cast<float>(units_));
    return hn::GetLane(round_fixed(hn::Set(DI(), static_cast<int32_t>(units_))));
  }

 private:
  bool overflows() const { return std::abs(units_) >= int64_t{1} << 31; }
  int64_t units_;
};

float exact_element(const Tile& t, int row, int panel, int lane) {
  const float* w = reinterpret_cast<const float*>(t.panels + panel * t.panel_bytes) + lane;
  Accumulator acc(t.bias ? t.bias[t.column + panel * kPanelLanes + lane] : 0);
  for (int64_t s = 0; s < t.num_segments; ++s)
    for (int64_t l = 0; l < t.length; ++l, w += kPanelLanes) acc.add(t.a[s * kTileRows + row][l], *w);
  return acc.result();
}

template <int kVectors>
void exact_row(const Tile& t, int row, int first_panel, V (&acc)[kVectors]) {
  HWY_ALIGN float results[kVectors * kLanes];
  for (int i = 0; i < kVectors * kLanes; ++i)
    results[i] =
        exact_element(t, row, first_panel + i / static_cast<int>(kPanelLanes), i % static_cast<int>(kPanelLanes));
  for (int v = 0; v < kVectors; ++v) acc[v] = hn::Load(D(), results + v * kLanes);
}

// ---- small numbers ----

HWY_INLINE V weight_size(V weight) { return hn::Max(hn::Abs(weight), hn::Set(D(), 0x1p-14f)); }

// The size of the least weight whose product with x counts.
HWY_INLINE V least_weight(V x) {
  const DI di;
  const VI power = hn::Max(hn::And(hn::BitCast(di, x), hn::Set(di, kExponentBits)), hn::Set(di, kLeastExponent));
  return hn::BitCast(D(), hn::Sub(hn::Set(di, kThresholdBase), power));
}

// A product in units, and the bits of 192.
HWY_INLINE VI product(V x, V weight, V size, V least) {
  const D d;
  const DI di;
  const V magic = hn::Set(d, kMagic);
  V sum;
  if constexpr (kFused)
    sum = hn::MulAdd(x, weight, magic);
  else
    sum = hn::Add(hn::BitCast(d, hn::Add(hn::BitCast(di, hn::Mul(x, weight)), hn::Set(di, 1))), magic);
  return hn::BitCast(di, hn::IfThenElse(hn::Ge(size, least), sum, magic));
}

// What so many products start from: the bias of a vector of columns, less the bits of 192 that come with each.
HWY_INLINE VI start(const float* bias, int64_t num_products) {
  HWY_ALIGN int32_t units[kLanes];
  const uint32_t magic = static_cast<uint32_t>(num_products) * static_cast<uint32_t>(kMagicBits);
  for (int i = 0; i < kLanes; ++i)
    units[i] = static_cast<int32_t>((bias ? static_cast<uint32_t>(fixed(bias[i])) : 0) - magic);
  return hn::Load(DI(), units);
}

template <int kRows, int kVectors>
HWY_INLINE void small_rows(const Tile& t, int first_row, int first_panel, V (&results)[kRows][kVectors]) {
  VI acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = t.column + first_panel * kPanelLanes + v * kLanes;
    const VI first = start(t.bias ? t.bias + column : nullptr, t.num_segments * t.length);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m][v] = first;
  }
  const float* b = reinterpret_cast<const float*>(t.panels + first_panel * t.panel_bytes);
  const int64_t panel_items = t.panel_bytes / static_cast<int64_t>(sizeof(float));
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const float* a[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) a[m] = t.a[s * kTileRows + first_row + m];
    for (int64_t l = 0; l < t.length; ++l, b += kPanelLanes) {
      V right[kVectors], size[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        right[v] = load(b + v / kPanelVectors * panel_items + v % kPanelVectors * kLanes);
        size[v] = weight_size(right[v]);
      }
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const V left = hn::Set(D(), a[m][l]), least = least_weight(left);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Add(acc[m][v], product(left, right[v], size[v], least));
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) results[m][v] = round_fixed(acc[m][v]);
}

template <int kRows, int kPanels>
void tile_part(const Tile& t, const Bound* bounds, int first_row, int first_panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  V acc[kRows][kVectors];
  Bound bound{};
  for (int m = 0; m < kRows; ++m)
    bound = {std::max(bound.largest, bounds[first_row + m].largest), std::max(bound.norm, bounds[first_row + m].norm)};
  if (HWY_LIKELY(is_small(t, bound)))
    small_rows<kRows, kVectors>(t, first_row, first_panel, acc);
  else
    for (int m = 0; m < kRows; ++m) exact_row<kVectors>(t, first_row + m, first_panel, acc[m]);
  Tile rest = t;
  rest.bias = nullptr;
  for (int m = 0; m < kRows; ++m) {
    rest.out[m] = t.out[first_row + m];
    for (int e = 0; e < t.epilogue->num_extra; ++e) rest.extra[e][m] = t.extra[e][first_row + m];
  }
  finish<kRows, kVectors>(rest, t.column + first_panel * kPanelLanes, acc);
}

template <int kPanels>
void tile_panels(const Tile& t, const Bound* bounds, int first_panel) {
  int m = 0;
  for (; m + kRowsAtOnce <= t.rows; m += kRowsAtOnce) tile_part<kRowsAtOnce, kPanels>(t, bounds, m, first_panel);
  if (t.rows - m == 2) return tile_part<2, kPanels>(t, bounds, m, first_panel);
  if (t.rows - m == 1) return tile_part<1, kPanels>(t, bounds, m, first_panel);
}

void tile(const Tile& t) {
  Bound bounds[kTileRows];
  for (int m = 0; m < t.rows; ++m) bounds[m] = row_bound(t, m);
  if constexpr (kPanelsAtOnce == 1) {
    for (int p = 0; p < t.num_panels; ++p) tile_panels<1>(t, bounds, p);
  } else {
    switch (t.num_panels) {
      case 1:
        return tile_panels<1>(t, bounds, 0);
      case 2:
        return tile_panels<2>(t, bounds, 0);
      case 3:
        return tile_panels<3>(t, bounds, 0);
      default:
        return tile_panels<4>(t, bounds, 0);
    }
  }
}

// ---- depthwise ----

template <int kRows>
void depthwise_rows(const DepthwiseTile& w, const Tile& t) {
  const int64_t taps = w.kernel_h * w.kernel_w;
  Tile rest = t;
  rest.bias = nullptr;
  for (int64_t i = 0; i < t.num_panels * kPanelVectors; ++i) {
    const int64_t column = t.column + i * kLanes, left = t.num_columns - column;
    if (left <= 0) return;
    const std::byte* panel = t.panels + i / kPanelVectors * t.panel_bytes;
    const float* weights = reinterpret_cast<const float*>(panel) + i % kPanelVectors * kLanes;
    const float* bias = t.bias ? t.bias + column : nullptr;
    PanelEnd end;
    std::memcpy(&end, panel + taps * kPanelLanes * sizeof(float), sizeof end);
    V largest = hn::Zero(D());
    for (int64_t j = 0; j < w.kernel_h * w.window; ++j)
      largest = hn::Max(largest, hn::Abs(load_n(t.a[j] + column, left)));
    const float most = hn::GetLane(hn::MaxOfLanes(D(), largest)) * end.bound.largest;
    const float offset = bias ? hn::GetLane(hn::MaxOfLanes(D(), hn::Abs(load(bias)))) : 0;
    const auto input = [&](int64_t kh, int64_t kw, int m) {
      return t.a[kh * w.window + m * w.stride_w + kw * w.dilation_w] + column;
    };
    V results[kRows][1];
    if (HWY_LIKELY(most < 63.9f && (most + 0x1p-17f) * static_cast<float>(taps) + offset < 32760.0f)) {
      VI acc[kRows];
      for (int m = 0; m < kRows; ++m) acc[m] = start(bias, taps);
      for (int64_t kh = 0; kh < w.kernel_h; ++kh)
        for (int64_t kw = 0; kw < w.kernel_w; ++kw) {
          const V weight = load(weights + (kh * w.kernel_w + kw) * kPanelLanes), size = weight_size(weight);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            const V x = load_n(input(kh, kw, m), left);
            acc[m] = hn::Add(acc[m], product(x, weight, size, least_weight(x)));
          }
        }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) results[m][0] = round_fixed(acc[m]);
    } else {
      for (int m = 0; m < kRows; ++m) {
        HWY_ALIGN float row[kLanes] = {};
        for (int64_t lane = 0; lane < HWY_MIN(left, int64_t{kLanes}); ++lane) {
          Accumulator acc(bias ? bias[lane] : 0);
          for (int64_t tap = 0; tap < taps; ++tap)
            acc.add(input(tap / w.kernel_w, tap % w.kernel_w, m)[lane], weights[tap * kPanelLanes + lane]);
          row[lane] = acc.result();
        }
        results[m][0] = hn::Load(D(), row);
      }
    }
    finish<kRows, 1>(rest, column, results);
  }
}

void depthwise(const DepthwiseTile& w, const Tile& t) {
  if (t.rows == 7) return depthwise_rows<7>(w, t);
  if (t.rows == 4) return depthwise_rows<4>(w, t);
  depthwise_rows<1>(w, t);
}

// ---- Winograd ----

// To fp16, halves away from zero. A sum of two fp16 numbers that fp32 cannot hold is nowhere near a half.
HWY_INLINE V round_half(V x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto up = hn::Add(hn::BitCast(du, hn::Abs(x)), hn::Set(du, 0x1000u));
  const V size = hn::Min(hn::BitCast(d, hn::And(up, hn::Set(du, ~0x1fffu))), hn::Set(d, 65536.0f));
  return hn::CopySign(size, x);
}

void factors(const float* row, int64_t channels, int64_t outputs, float* even, float* odd) {
  for (int64_t x = 0; x < outputs; ++x, row += channels) {
    const bool second = x % 2;
    const float* d = row - (second ? channels : 0);  // of this pair
    float* to = second ? odd : even;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t n = channels - c;
      const auto pixel = [&](int i) HWY_ATTR { return load_n(d + i * channels + c, n); };
      const V sum = round_half(hn::Add(pixel(1), pixel(2))), rest = hn::Sub(pixel(2), pixel(1));
      store_n(second ? sum : round_half(hn::Sub(pixel(0), pixel(2))), to + c, n);
      store_n(second ? hn::Neg(round_half(rest)) : sum, to + channels + c, n);
      store_n(round_half(second ? hn::Sub(pixel(3), pixel(1)) : rest), to + 2 * channels + c, n);
    }
    (second ? odd : even) += 3 * channels;
  }
}

}  // namespace

const EngineOps kEngineOps = {factors, depthwise};
const EngineOps* ops_of_engine() { return &kEngineOps; }

const Arithmetic kEngineArithmetic = {
    .to_floats = to_numbers,
    .tile = tile,
    .end_panels = end_panels,
    .end_bytes = sizeof(PanelEnd),
};
const Arithmetic* arithmetic_of_target() { return &kEngineArithmetic; }

}  // namespace hexane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(arithmetic_of_target);
HWY_EXPORT(ops_of_engine);

const Arithmetic& engine_arithmetic() {
  static const Arithmetic& arithmetic = *HWY_DYNAMIC_DISPATCH(arithmetic_of_target)();
  return arithmetic;
}

const EngineOps& engine_ops() {
  static const EngineOps& ops = *HWY_DYNAMIC_DISPATCH(ops_of_engine)();
  return ops;
}

// x as fp16, halves away from zero; what is larger than any goes on as exponent 31.
static uint16_t half_away(double x) {
  const double size = std::abs(x);
  const int exponent = size > 0 ? std::max(std::ilogb(size), -14) : -14;
  const auto units = static_cast<uint32_t>(std::round(std::ldexp(size, 10 - exponent)));  // at most 2048, which carries
  const uint32_t bits = (static_cast<uint32_t>(exponent + 14) << 10) + units;
  return static_cast<uint16_t>(std::min(bits, 0x7fffu) | (std::signbit(x) ? 0x8000u : 0u));
}

void winograd_weights(const float taps[3], uint16_t factors[4]) {
  const double g0 = taps[0], g1 = taps[1], g2 = taps[2];
  const double values[4] = {g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2};
  for (int i = 0; i < 4; ++i) factors[i] = half_away(values[i]);
}

}  // namespace hexane::cpu
#endif
