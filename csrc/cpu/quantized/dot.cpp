// dot(sums, left, right) for each instruction set: adds to each int32 lane the four products of its bytes in left and
// right. The tiles that use dot() are also compiled for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantized/dot.cpp"
#include "cpu/quantized/dot.h"
#include "core/instruction_sets.h"
#include "cpu/quantized/q31.h"

#include <hwy/foreach_target.h>
// after foreach_target
#include <cstring>
#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "cpu/quantized/quantize-inl.h"

// Instruction sets for dot products that a CPU may have in addition to its Highway target.
#undef HEXANE_DOT_EXTENSION
#if HEXANE_HAS_AVX512
#define HEXANE_DOT_EXTENSION ",avx512vnni"
#elif HEXANE_HAS_AVX2 && !HWY_COMPILER_CLANG
#define HEXANE_DOT_EXTENSION ",avxvnni"
#elif HEXANE_HAS_NEON && !HWY_COMPILER_CLANG && !defined(__ARM_FEATURE_DOTPROD)
#define HEXANE_DOT_EXTENSION "arch=armv8.2-a+crypto+dotprod"
#endif

HWY_BEFORE_NAMESPACE();
namespace hexane::cpu::HWY_NAMESPACE::plain {
namespace {

#if HWY_ARCH_ARM_A64

constexpr bool kSignedLeft = true;
HWY_INLINE VI dot(VI sums, VI left, VI right) {
  const int8x16_t a = vreinterpretq_s8_s32(left.raw), b = vreinterpretq_s8_s32(right.raw);
#if defined(__ARM_FEATURE_DOTPROD)
  return VI(vdotq_s32(sums.raw, a, b));
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
  return VI(vaddq_s32(sums.raw, vpaddq_s32(low, high)));
#endif
}

#elif HWY_ARCH_X86

// The instruction for products of bytes saturates, so bytes are widened to 16 bits.
constexpr bool kSignedLeft = false;
template <class Sums>
HWY_INLINE Sums dot(Sums sums, Sums left, Sums right) {
  const hn::DFromV<Sums> d;
  const hn::Repartition<int16_t, decltype(d)> d16;
  const auto a = hn::BitCast(d16, left), b = hn::BitCast(d16, right);
  const auto a_even = hn::And(a, hn::Set(d16, 0xff));
  const auto a_odd = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(hn::RebindToUnsigned<decltype(d16)>(), a)));
  const auto b_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(b)), b_odd = hn::ShiftRight<8>(b);
  Sums unused = hn::Zero(d);
  const Sums even = hn::ReorderWidenMulAccumulate(d, a_even, b_even, sums, unused);
  return hn::ReorderWidenMulAccumulate(d, a_odd, b_odd, even, unused);
}

#else

constexpr bool kSignedLeft = false;
template <class Sums>
HWY_INLINE Sums dot(Sums sums, Sums left, Sums right) {
  const hn::RebindToUnsigned<hn::DFromV<Sums> > du;
  const auto a = hn::BitCast(du, left);
  const auto term = [&](auto a_byte, auto b_byte) HWY_ATTR {
    return hn::Mul(hn::BitCast(hn::DFromV<Sums>(), hn::ShiftRight<24>(a_byte)), hn::ShiftRight<24>(b_byte));
  };
  sums = hn::Add(sums, term(hn::ShiftLeft<24>(a), hn::ShiftLeft<24>(right)));
  sums = hn::Add(sums, term(hn::ShiftLeft<16>(a), hn::ShiftLeft<16>(right)));
  sums = hn::Add(sums, term(hn::ShiftLeft<8>(a), hn::ShiftLeft<8>(right)));
  return hn::Add(sums, term(a, right));
}

#endif

#define HEXANE_DOT_NAME "plain"
#include "cpu/quantized/dot_tiles-inl.h"
#undef HEXANE_DOT_NAME

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE::plain
HWY_AFTER_NAMESPACE();

#ifdef HEXANE_DOT_EXTENSION
#if HEXANE_HAS_AVX512
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 HEXANE_DOT_EXTENSION
#elif HEXANE_HAS_AVX2
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX2 HEXANE_DOT_EXTENSION
#else
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HEXANE_DOT_EXTENSION
#endif

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
namespace hexane::cpu::HWY_NAMESPACE::extended {
namespace {

#if HEXANE_HAS_NEON

constexpr bool kSignedLeft = true;
HWY_INLINE VI dot(VI sums, VI left, VI right) {
  return VI(vdotq_s32(sums.raw, vreinterpretq_s8_s32(left.raw), vreinterpretq_s8_s32(right.raw)));
}
bool is_supported() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }

#else

constexpr bool kSignedLeft = false;
#if HEXANE_HAS_AVX512
HWY_INLINE hn::Vec128<int32_t> dot(hn::Vec128<int32_t> sums, hn::Vec128<int32_t> left, hn::Vec128<int32_t> right) {
  return hn::Vec128<int32_t>{_mm_dpbusd_epi32(sums.raw, left.raw, right.raw)};
}
HWY_INLINE hn::Vec256<int32_t> dot(hn::Vec256<int32_t> sums, hn::Vec256<int32_t> left, hn::Vec256<int32_t> right) {
  return hn::Vec256<int32_t>{_mm256_dpbusd_epi32(sums.raw, left.raw, right.raw)};
}
HWY_INLINE hn::Vec512<int32_t> dot(hn::Vec512<int32_t> sums, hn::Vec512<int32_t> left, hn::Vec512<int32_t> right) {
  return hn::Vec512<int32_t>{_mm512_dpbusd_epi32(sums.raw, left.raw, right.raw)};
}
bool is_supported() { return __builtin_cpu_supports("avx512vnni"); }
#else
HWY_INLINE hn::Vec128<int32_t> dot(hn::Vec128<int32_t> sums, hn::Vec128<int32_t> left, hn::Vec128<int32_t> right) {
  return hn::Vec128<int32_t>{_mm_dpbusd_avx_epi32(sums.raw, left.raw, right.raw)};
}
HWY_INLINE hn::Vec256<int32_t> dot(hn::Vec256<int32_t> sums, hn::Vec256<int32_t> left, hn::Vec256<int32_t> right) {
  return hn::Vec256<int32_t>{_mm256_dpbusd_avx_epi32(sums.raw, left.raw, right.raw)};
}
bool is_supported() { return __builtin_cpu_supports("avxvnni"); }
#endif

#endif

#define HEXANE_DOT_NAME "extended"
#include "cpu/quantized/dot_tiles-inl.h"
#undef HEXANE_DOT_NAME

}  // namespace
}  // namespace hexane::cpu::HWY_NAMESPACE::extended
HWY_POP_ATTRIBUTES
#endif

namespace hexane::cpu::HWY_NAMESPACE {

const DotOps* dot_ops_of_target([[maybe_unused]] bool extensions) {
#ifdef HEXANE_DOT_EXTENSION
  if (extensions && extended::is_supported()) return &extended::kOps;
#endif
  return &plain::kOps;
}

}  // namespace hexane::cpu::HWY_NAMESPACE

#if HWY_ONCE
namespace hexane::cpu {
HWY_EXPORT(dot_ops_of_target);

const DotOps& dot_ops(bool extensions) { return *HWY_DYNAMIC_DISPATCH(dot_ops_of_target)(extensions); }

}  // namespace hexane::cpu
#endif
