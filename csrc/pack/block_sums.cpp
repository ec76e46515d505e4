#include "pack/block_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pack/block_sums.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hexane::pack::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::CappedTag<float, kBlocks>;
using VF = hn::Vec<DF>;

// The integers of a register of blocks. No multiply-add is fused: it would round differently on some CPUs.
struct Rounding {
  Rounding(const Steps& steps, size_t lane)
      : scale(hn::LoadU(DF(), steps.scale + lane)),
        low(hn::LoadU(DF(), steps.low + lane)),
        high(hn::Set(DF(), steps.high)) {}

  VF integers(VF weights) const {
    const VF held = hn::Min(hn::Max(hn::Div(weights, scale), low), high);
    const VF magic = hn::Set(DF(), kRoundsToInteger);
    return hn::Sub(hn::Add(held, magic), magic);
  }

  VF scale, low, high;
};

template <bool kWeighted>
void sum(const float* weights, const float* importance, size_t size, const Steps& steps, BlockSums& out) {
  const DF df;
  for (size_t lane = 0; lane < kBlocks; lane += hn::Lanes(df)) {
    const Rounding rounding(steps, lane);
    VF error = hn::Zero(df), products = error, squares = error;
    for (size_t part = 0; part < kPartialSums; ++part) {
      VF own_error = hn::Zero(df), own_products = own_error, own_squares = own_error;
      for (size_t i = part; i < size; i += kPartialSums) {
        const VF w = hn::LoadU(df, weights + i * kBlocks + lane), q = rounding.integers(w);
        const VF apart = hn::Sub(w, hn::Mul(q, rounding.scale));
        VF of_error = hn::Mul(apart, apart), of_product = hn::Mul(w, q), of_square = hn::Mul(q, q);
        if constexpr (kWeighted) {
          const VF counts = hn::Set(df, importance[i]);
          of_error = hn::Mul(counts, of_error);
          of_product = hn::Mul(counts, of_product);
          of_square = hn::Mul(counts, of_square);
        }
        own_error = hn::Add(own_error, of_error);
        own_products = hn::Add(own_products, of_product);
        own_squares = hn::Add(own_squares, of_square);
      }
      error = hn::Add(error, own_error);
      products = hn::Add(products, own_products);
      squares = hn::Add(squares, own_squares);
    }
    hn::StoreU(error, df, out.error + lane);
    hn::StoreU(products, df, out.products + lane);
    hn::StoreU(squares, df, out.squares + lane);
  }
}

void sums(const float* weights, const float* importance, size_t size, const Steps& steps, BlockSums& out) {
  importance ? sum<true>(weights, importance, size, steps, out) : sum<false>(weights, nullptr, size, steps, out);
}

void without_errors(const float* weights, size_t size, const Steps& steps, float penalty, BlockSums& out) {
  const DF df;
  const VF stiff = hn::Set(df, penalty), one = hn::Set(df, 1.0f), tiny = hn::Set(df, 1e-12f);
  for (size_t lane = 0; lane < kBlocks; lane += hn::Lanes(df)) {
    const Rounding rounding(steps, lane);
    VF products = hn::Zero(df), squares = products;
    for (size_t part = 0; part < kPartialSums; ++part) {
      VF own_products = hn::Zero(df), own_squares = own_products;
      for (size_t i = part; i < size; i += kPartialSums) {
        const VF w = hn::LoadU(df, weights + i * kBlocks + lane), q = rounding.integers(w);
        const VF apart = hn::Sub(w, hn::Mul(q, rounding.scale));
        const VF away = hn::Add(hn::Div(hn::Abs(apart), rounding.scale), tiny);
        const VF less = hn::Sub(away, hn::Div(one, hn::Mul(stiff, hn::Sqrt(away))));
        const VF kept = hn::Mul(hn::Max(less, hn::Zero(df)), rounding.scale);
        own_products = hn::Add(own_products, hn::Mul(hn::Sub(w, hn::CopySign(kept, apart)), q));
        own_squares = hn::Add(own_squares, hn::Mul(q, q));
      }
      products = hn::Add(products, own_products);
      squares = hn::Add(squares, own_squares);
    }
    hn::StoreU(products, df, out.products + lane);
    hn::StoreU(squares, df, out.squares + lane);
  }
}

}  // namespace
}  // namespace hexane::pack::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hexane::pack {
HWY_EXPORT(sums);
HWY_EXPORT(without_errors);

void sum_blocks(const float* weights, const float* importance, size_t size, const Steps& steps, BlockSums& out) {
  HWY_DYNAMIC_DISPATCH(sums)(weights, importance, size, steps, out);
}

void sum_without_errors(const float* weights, size_t size, const Steps& steps, float penalty, BlockSums& out) {
  HWY_DYNAMIC_DISPATCH(without_errors)(weights, size, steps, penalty, out);
}
}  // namespace hexane::pack
#endif
