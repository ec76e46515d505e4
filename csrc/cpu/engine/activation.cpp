// Unary ops that the engine computes from tables, and ops composed of several unary steps: each step is computed
// exactly and rounded to fp16, halves away from zero.
#include "cpu/engine/activation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "core/fork_mutex.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/engine/engine_numerics.h"
#include "cpu/loop.h"
#include "cpu/tables.h"

namespace hexane::cpu {
namespace {

constexpr double kLargest = 131008;          // The largest number of the engine's fp16.
constexpr double kMostQuarters = 1LL << 40;  // Most quarter periods up to kLargest; a double counts them exactly.

double rounded(double x) { return to_float(to_engine_half(x)); }

// ---- tables ----

void check_table(const char* op, const ActivationTable& t) {
  constexpr int kLast = ActivationTable::kQuarters;
  if (!(t.reduction >= 0 && t.reduction <= kLast))
    fail(op, "activation table: got the reduction ", t.reduction, ", need 0 to ", kLast);
  if (!(t.segments >= 1 && t.segments <= kMaxKnots - 1))
    fail(op, "activation table: got ", t.segments, " segments, need 1 to ", kMaxKnots - 1);
  if (!(t.domain[0] < t.domain[1] && std::isfinite(t.domain[1] - t.domain[0])))
    fail(op, "activation table: got a domain from ", t.domain[0], " to ", t.domain[1], ", need one that is not empty");
  const double scale = t.segments / (t.domain[1] - t.domain[0]);
  if (!(scale > 0 && std::isfinite(scale)))
    fail(op, "activation table: got ", t.segments, " segments from ", t.domain[0], " to ", t.domain[1],
         ", need a number of segments per unit that a double holds");
  if (t.reduction == double{ActivationTable::kQuarters} &&
      !(t.domain[0] == 0 && kLargest / t.domain[1] < kMostQuarters))
    fail(op, "activation table: got the quarter of a period from ", t.domain[0], " to ", t.domain[1],
         ", need one that begins at 0 and is ", kLargest / kMostQuarters, " at least");
}

// Returns the index of the last knot at or before `place` that has a successor; 0 for NaN.
int segment_of(const ActivationTable& t, double place) {
  const int last = static_cast<int>(t.segments) - 1;
  return place > 0 ? static_cast<int>(std::min(std::floor(place), static_cast<double>(last))) : 0;
}

double between_knots(const ActivationTable& t, double x) {
  const double place = (x - t.domain[0]) * (t.segments / (t.domain[1] - t.domain[0]));
  const int segment = segment_of(t, place);
  const double* knot = t.knots + segment;
  return knot[0] + (place - segment) * (knot[1] - knot[0]);
}

double with_tails(const ActivationTable& t, double x) {
  x = std::min(std::max(x, t.clamp[0]), t.clamp[1]);
  if (x < t.domain[0]) return t.left[0] * x + t.left[1];
  if (x >= t.domain[1]) return t.right[0] * x + t.right[1];
  return between_knots(t, x);
}

// Evaluates the function of x > 0 from x = m * 2^e, m from 0.5 to 1. For roots e is even and m may be up to 2.
double with_mantissa(const ActivationTable& t, ActivationTable::Reduction reduction, double x) {
  int e;
  double m = std::frexp(x, &e);
  const bool by_pairs = reduction == ActivationTable::kSqrt || reduction == ActivationTable::kRsqrt;
  if (by_pairs && e % 2) m *= 2, --e;
  const double of_m = rounded(between_knots(t, m));
  if (reduction == ActivationTable::kLog2) return rounded(of_m + e);
  return std::ldexp(of_m, reduction == ActivationTable::kSqrt ? e / 2 : by_pairs ? -e / 2 : -e);
}

// Evaluates a sine or cosine. The table covers a quarter of the period; the other quarters mirror it. `ahead`: 0 for
// sine, 1 for cosine.
double by_quarters(const ActivationTable& t, double x, int64_t ahead) {
  if (std::isinf(x)) return 0;
  const double size = std::abs(x), quarter = t.domain[1], whole = std::floor(size / quarter);
  const double rest = std::clamp(size - whole * quarter, 0.0, quarter);
  const int64_t place = (static_cast<int64_t>(std::min(whole, kMostQuarters)) + ahead) % 4;
  const double y = between_knots(t, place % 2 ? quarter - rest : rest);
  return (place >= 2) != (std::signbit(x) && !ahead) ? -y : y;
}

// Evaluates a table. The result is not rounded to fp16 unless the last operation is outside of the table.
double evaluate(const ActivationTable& t, double x) {
  switch (const auto reduction = static_cast<ActivationTable::Reduction>(t.reduction)) {
    case ActivationTable::kNone:
      return with_tails(t, x);
    case ActivationTable::kOdd:
      return std::copysign(with_tails(t, std::abs(x)), x);
    case ActivationTable::kExp2: {
      x = std::min(std::max(x, t.clamp[0]), t.clamp[1]);
      const double whole = std::isnan(x) ? 0 : std::clamp(std::floor(x), -1024.0, 1024.0);
      return std::ldexp(rounded(between_knots(t, x - whole)), static_cast<int>(whole));
    }
    case ActivationTable::kQuarters:
      return by_quarters(t, x, 0);
    default:
      if (x == 0) return t.at_zero;
      if (reduction == ActivationTable::kInverse && x < 0) return -evaluate(t, -x);
      if (x < 0) return 0;
      return std::isinf(x) ? t.at_infinity : with_mantissa(t, reduction, x);
  }
}

// ---- ops ----

struct Inputs {
  const EngineNumerics& tables;
  double alpha, beta;
};

using Function = double (*)(const Inputs& in, double x);

double exp_of(const Inputs& in, double x) { return evaluate(in.tables.exp2, rounded(x * as_fp16(1.44269504))); }
double log_of(const Inputs& in, double x) { return evaluate(in.tables.log2, x) * as_fp16(0.69314718); }

double linear(const Inputs& in, double x) { return rounded(as_fp16(in.alpha) * x + as_fp16(in.beta)); }

double hard_swish(const Inputs&, double x) {
  return x * rounded(std::clamp(rounded(x + 3), 0.0, 6.0) * as_fp16(1 / 6.0));
}

double elu(const Inputs& in, double x) { return x < 0 ? as_fp16(in.alpha) * rounded(rounded(exp_of(in, x)) - 1) : x; }

double selu(const Inputs& in, double x) { return as_fp16(in.beta) * rounded(elu(in, x)); }

double celu(const Inputs& in, double x) {
  if (!(x < 0)) return x;
  const double power = rounded(exp_of(in, rounded(x * as_fp16(1 / in.alpha))));
  return std::min(as_fp16(in.alpha) * rounded(power - 1), 0.0);
}

double scaled_tanh(const Inputs& in, double x) {
  return as_fp16(in.alpha) * rounded(evaluate(in.tables.tanh, rounded(as_fp16(in.beta) * x)));
}

double softsign(const Inputs& in, double x) {
  return x * rounded(evaluate(in.tables.inverse, rounded(1 + std::abs(x))));
}

// Returns 0 for x above 10.394, else the function itself (coremltools#2687, measured on M3 Max and M4; M1 returns 0 for
// infinity).
double softplus(const Inputs&, double x) {
  return x > 10.394 ? 0 : std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

struct TableOp {
  const char* name;
  int num_attributes;
  Function function;
};

#define HEXANE_TABLE(table) [](const Inputs& in, double x) { return evaluate(in.tables.table, x); }
constexpr TableOp kOps[] = {
    {"sigmoid", 0, HEXANE_TABLE(sigmoid)},
    {"tanh", 0, HEXANE_TABLE(tanh)},
    {"erf", 0, HEXANE_TABLE(erf)},
    {"exp", 0, exp_of},
    {"exp2", 0, HEXANE_TABLE(exp2)},
    {"log", 0, log_of},
    {"sqrt", 0, HEXANE_TABLE(sqrt)},
    {"rsqrt", 0, HEXANE_TABLE(rsqrt)},
    {"inverse", 0, HEXANE_TABLE(inverse)},
    {"gelu", 0, HEXANE_TABLE(gelu)},
    {"gelu_tanh", 0, HEXANE_TABLE(gelu)},
    {"silu", 0, HEXANE_TABLE(silu)},
    {"linear_activation", 2, linear},
    {"sigmoid_hard", 2, [](const Inputs& in, double x) { return std::clamp(linear(in, x), 0.0, 1.0); }},
    {"hard_swish", 0, hard_swish},
    {"elu", 1, elu},
    {"selu", 2, selu},
    {"celu", 1, celu},
    {"scaled_tanh", 2, scaled_tanh},
    {"sin", 0, HEXANE_TABLE(sin)},
    {"cos", 0, [](const Inputs& in, double x) { return by_quarters(in.tables.sin, x, 1); }},
    {"atan", 0, [](const Inputs&, double x) { return std::atan(x); }},
    {"softplus", 0, softplus},
    {"softsign", 0, softsign},
};
#undef HEXANE_TABLE

// ---- kernels ----

struct State {
  Loop whole;
  std::shared_ptr<const HalfMap> map;
};

HalfMap every_half() {
  HalfMap every;
  for (uint32_t bits = 0; bits < every.of.size(); ++bits) every.of[bits] = {static_cast<uint16_t>(bits)};
  return every;
}

// Returns the map of a kernel that is not in kOps; null if the kernel has no map, or needs more than two attributes.
std::shared_ptr<HalfMap> map_of_kernel(std::string_view op, double alpha, double beta, const void* numerics) {
  HalfMap every = every_half();
  auto result = std::make_shared<HalfMap>();
  const int64_t shape = static_cast<int64_t>(every.of.size()), stride = sizeof(engine_half);
  const auto tensor = [&](HalfMap& values) {
    return Tensor{reinterpret_cast<std::byte*>(values.of.data()), DType::kFp16, 1, false, 0, &shape, &stride};
  };
  const Tensor in = tensor(every), out = tensor(*result);
  const double attributes[] = {alpha, beta};
  Call call{{&in, 1}, {&out, 1}, attributes, "", nullptr, numerics};
  if (!has_kernel(op, "engine", call.inputs, call.outputs)) return nullptr;
  const Kernel& kernel = find_kernel(op, "engine", call);
  if (kernel.attrs_bytes > static_cast<int64_t>(sizeof attributes)) return nullptr;
  const Prepared prepared = kernel.prepare ? kernel.prepare(call) : nullptr;
  call.prepared = prepared.get();
  kernel.run(call, 0, {0, shape}, nullptr, nullptr);
  return result;
}

std::shared_ptr<HalfMap> make_map(std::string_view op, double alpha, double beta, const void* numerics) {
  const auto* found = std::find_if(std::begin(kOps), std::end(kOps), [&](const TableOp& t) { return t.name == op; });
  if (found == std::end(kOps)) return map_of_kernel(op, alpha, beta, numerics);
  if (!numerics) fail(found->name, "numerics: got none, need the activation tables of a chip");
  const auto& tables = *static_cast<const EngineNumerics*>(numerics);
  for (const ActivationTable* t = &tables.sigmoid; t <= &tables.sin; ++t) check_table(found->name, *t);
  auto result = std::make_shared<HalfMap>(every_half());
  for (engine_half& x : result->of) x = to_engine_half(found->function({tables, alpha, beta}, to_float(x)));
  return result;
}

template <int kOp>
Prepared prepare_map(const Call& call) {
  constexpr TableOp op = kOps[kOp];
  check_broadcast(op.name, call, 1, 1);
  const double* attributes = static_cast<const double*>(call.attrs);
  auto state = std::make_shared<State>();
  state->whole = make_loop(call, 1, -1, {});
  state->map = half_map(op.name, op.num_attributes > 0 ? attributes[0] : 0, op.num_attributes > 1 ? attributes[1] : 0,
                        call.numerics);
  return state;
}

void map_halves(std::byte* const* p, const int64_t* strides, int64_t n, const void* opaque) {
  const HalfMap& map = *static_cast<const State*>(opaque)->map;
  const auto loop = [&, n, in = p[0], out = p[1]](int64_t from, int64_t to) {
    for (int64_t i = 0; i < n; ++i)
      *reinterpret_cast<engine_half*>(out + i * to) = map(*reinterpret_cast<const engine_half*>(in + i * from));
  };
  if (strides[0] == sizeof(engine_half) && strides[1] == sizeof(engine_half))
    loop(sizeof(engine_half), sizeof(engine_half));
  else
    loop(strides[0], strides[1]);
}

void run_map(const Call& call, int axis, Range range, std::byte*, const std::byte*) {
  const State& state = call.state<State>();
  walk(covers(call, axis, range) ? state.whole : make_loop(call, 1, axis, range), call, map_halves, &state);
}

template <int kOp>
constexpr Kernel map_kernel() {
  constexpr const char* kLayouts[] = {"", "alpha:f", "alpha:f beta:f"};
  return {
      .name = kOps[kOp].name,
      .dtypes = "fp16->fp16",
      .family = "engine",
      .attrs = kLayouts[kOps[kOp].num_attributes],
      .attrs_bytes = 8 * kOps[kOp].num_attributes,
      .accepts = "strided",
      .prepare = prepare_map<kOp>,
      .cuts = cut_every_axis,
      .needs = broadcast_needs,
      .cost = elementwise_cost<350>,
      .run = run_map,
  };
}

template <int... kIndices>
constexpr std::array<Kernel, sizeof...(kIndices)> kernels_of(std::integer_sequence<int, kIndices...>) {
  return {map_kernel<kIndices>()...};
}
constexpr auto kTable = kernels_of(std::make_integer_sequence<int, std::size(kOps)>());

}  // namespace

std::span<const Kernel> activation_table() { return kTable; }

// Programs share maps. A map lives as long as a step uses it.
std::shared_ptr<const HalfMap> half_map(std::string_view op, double alpha, double beta, const void* numerics) {
  static ForkMutex mutex;
  static std::map<std::string, std::weak_ptr<const HalfMap>, std::less<>> maps;  // the key has every argument
  const double attributes[] = {alpha, beta};
  std::string key(op);
  key.push_back('\0');
  key.append(reinterpret_cast<const char*>(attributes), sizeof attributes);
  if (numerics) key.append(static_cast<const char*>(numerics), sizeof(EngineNumerics));
  {
    const std::lock_guard lock(mutex);
    if (const auto found = maps.find(key); found != maps.end())
      if (auto map = found->second.lock()) return map;
  }
  std::shared_ptr<const HalfMap> map = make_map(op, alpha, beta, numerics);
  const std::lock_guard lock(mutex);
  std::erase_if(maps, [](const auto& item) { return item.second.expired(); });
  if (map) maps.insert_or_assign(std::move(key), map);
  return map;
}

SoftmaxMaps softmax_maps(const void* numerics) {
  return {half_map("exp", 0, 0, numerics), half_map("inverse", 0, 0, numerics)};
}

}  // namespace hexane::cpu
