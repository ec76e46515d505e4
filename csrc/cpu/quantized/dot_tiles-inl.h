// The tiles of quantised products with one kind of dot product, and the conversion of their sums to stored results.
// This file has no include guard: dot.cpp includes it once or twice for each Highway target, in a namespace of its own
// each time, after dot().

constexpr int kPanelVectors = static_cast<int>(kPanelLanes / kLanes);
// The number of panels whose sums fit into the registers.
constexpr int kPanelsAtOnce = kPanelVectors == 1 ? static_cast<int>(kTilePanels) : 1;
constexpr int64_t kPitch = kTilePanels * kPanelLanes;  // sums per row in memory

HWY_INLINE V load_values(const float* from, int64_t n) { return n >= kLanes ? load(from) : load_part(from, n); }
HWY_INLINE void store_values(V x, float* to, int64_t n) {
  if (n >= kLanes) return store(x, to);
  store_part(x, to, n);
}

// Stores the first n of kLanes integers as bytes. The values have to fit in a signed or an unsigned byte.
HWY_INLINE void store_bytes(VI x, std::byte* to, int64_t n) {
  const hn::Rebind<uint8_t, DI> d;
  const auto bytes = hn::TruncateTo(d, hn::BitCast(hn::RebindToUnsigned<DI>(), x));
  if (n >= kLanes) return hn::StoreU(bytes, d, reinterpret_cast<uint8_t*>(to));
  uint8_t part[kLanes];
  hn::StoreU(bytes, d, part);
  std::memcpy(to, part, n);
}

// Calls f(i, n) for each vector of n columns.
template <class F>
HWY_INLINE void for_vectors(int64_t n, F&& f) {
  for (int64_t i = 0; i < n; i += kLanes) f(i, n - i);
}

// Applies the epilogue to one row of fp32 values in memory, slot by slot.
HWY_NOINLINE void apply_epilogue(const DotTile& t, int64_t column, int row, int64_t n, float* values) {
  const ResolvedEpilogue& e = t.output->epilogue;
  for (int s = 0; s < e.count; ++s) {
    const ResolvedSlot& slot = e.slots[s];
    const V low = set(slot.alpha), high = set(slot.beta);
    if (slot.kind == ResolvedSlot::kFunction) {
      slot.function(values, n, slot.alpha, slot.beta);
      continue;
    }
    const auto* extra =
        slot.kind == ResolvedSlot::kAdd ? reinterpret_cast<const float*>(t.extra[slot.extra][row]) + column : nullptr;
    for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
      V x = load(values + i);
      if (extra)
        x = hn::Add(x, load_values(extra + i, left));
      else
        x = hn::Max(low, x);
      if (slot.kind == ResolvedSlot::kClamp) x = hn::Min(high, x);
      store(x, values + i);
    });
  }
}

// Rounds x to the nearest integer. x has to be less than 2^31; a number below -2^31 becomes -2^31.
template <class D32, class F>
HWY_INLINE hn::Vec<D32> nearest(D32, F x) {
#if HWY_ARCH_X86
  if constexpr (sizeof(x) == 16) return hn::Vec<D32>{_mm_cvtps_epi32(x.raw)};
#if HEXANE_HAS_AVX2
  if constexpr (sizeof(x) == 32) return hn::Vec<D32>{_mm256_cvtps_epi32(x.raw)};
#endif
#if HEXANE_HAS_AVX512
  if constexpr (sizeof(x) == 64) return hn::Vec<D32>{_mm512_cvtps_epi32(x.raw)};
#endif
#else
  return hn::NearestInt(x);
#endif
}

// Packs two vectors to bytes with saturation. On x86 the packing works within blocks of 128 bits.
template <class D8, class V16>
HWY_INLINE hn::Vec<D8> pack_bytes(D8, V16 low, V16 high) {
#if HWY_ARCH_X86
  if constexpr (sizeof(low) == 16) return hn::Vec<D8>{_mm_packs_epi16(low.raw, high.raw)};
#if HEXANE_HAS_AVX2
  if constexpr (sizeof(low) == 32) return hn::Vec<D8>{_mm256_packs_epi16(low.raw, high.raw)};
#endif
#if HEXANE_HAS_AVX512
  if constexpr (sizeof(low) == 64) return hn::Vec<D8>{_mm512_packs_epi16(low.raw, high.raw)};
#endif
#else
  const hn::Half<D8> half;
  return hn::Combine(D8(), hn::DemoteTo(half, high), hn::DemoteTo(half, low));
#endif
}

// Stores up to four vectors of integers per row as `n` bytes per row. The integers saturate to 16 bits first.
template <int kRows, int kVectors, class D32>
HWY_INLINE void store_rows(const DotTile& t, int64_t column, D32 d32, hn::Vec<D32> (&steps)[kRows][kVectors]) {
  const hn::Repartition<int16_t, D32> d16;
  const hn::Repartition<int8_t, D32> d8;
  constexpr int kLanes32 = static_cast<int>(hn::MaxLanes(D32())), kBlocks = kLanes32 / 4;
  const DotOutput& o = *t.output;
  // Unsigned bytes are computed as signed bytes with a zero point 128 lower, and flipped when stored.
  const int base = o.dtype == DType::kUint8 ? 128 : 0;
  const auto zero = hn::Set(d16, static_cast<int16_t>(static_cast<int>(o.zero) - base));
  const auto low = hn::Set(d8, static_cast<int8_t>(static_cast<int>(o.low) - base)),
             high = hn::Set(d8, static_cast<int8_t>(static_cast<int>(o.high) - base)),
             flip = hn::Set(d8, static_cast<int8_t>(base));
  const int64_t n = HWY_MIN(kVectors * kLanes32, t.num_columns - column);
  const auto vector = [&](int m, int v) HWY_ATTR { return v < kVectors ? steps[m][v % kVectors] : hn::Zero(d32); };
  const auto moved = [&](int m, int v) HWY_ATTR {
    return hn::SaturatedAdd(hn::ReorderDemote2To(d16, vector(m, v), vector(m, v + 1)), zero);
  };
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    auto bytes = pack_bytes(d8, moved(m, 0), kVectors > 2 ? moved(m, 2) : hn::Zero(d16));
    bytes = hn::Xor(hn::Min(high, hn::Max(low, bytes)), flip);
    if constexpr (kBlocks > 1) {  // packing works within blocks of 128 bits
      alignas(64) int32_t order[kLanes32];
      for (int v = 0; v < 4; ++v)
        for (int block = 0; block < kBlocks; ++block) order[v * kBlocks + block] = block * 4 + v;
      bytes = hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, bytes), hn::SetTableIndices(d32, order)));
    }
    auto* to = reinterpret_cast<int8_t*>(t.out[m] + column);
    if (n == 4 * kLanes32) {
      hn::StoreU(bytes, d8, to);
#if HEXANE_HAS_AVX512
    } else {
      hn::BlendedStore(bytes, hn::FirstN(d8, static_cast<size_t>(n)), d8, to);
    }
#else
    } else {
      int8_t part[4 * kLanes32];
      hn::StoreU(bytes, d8, part);
      if (n == kVectors * kLanes32)
        std::memcpy(to, part, kVectors * kLanes32);
      else
        std::memcpy(to, part, static_cast<size_t>(n));
    }
#endif
  }
}

// Converts sums in registers to bytes, by the first formula of DotOutput, and stores them.
template <int kRows, int kVectors, class D32>
HWY_INLINE void finish_in_steps(const DotTile& t, int64_t column, D32 d32, hn::Vec<D32> (&sums)[kRows][kVectors]) {
  const hn::Rebind<float, D32> df;
  constexpr int64_t kLanes32 = hn::MaxLanes(D32());
  const auto most = hn::Set(df, 65536.0f);
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = column + v * kLanes32;
    const auto scale = hn::LoadU(df, t.scale + at), rest = hn::LoadU(df, t.scale_rest + at),
               bias = hn::LoadU(df, t.bias + at);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const auto sum = hn::ConvertTo(df, sums[m][v]);
      sums[m][v] = nearest(d32, hn::Min(hn::MulAdd(sum, scale, hn::MulAdd(sum, rest, bias)), most));
    }
  }
  store_rows<kRows, kVectors>(t, column, d32, sums);
}

// Returns rescale() of q31.h for shifts to the right, plus the zero point, clamped.
HWY_INLINE VI stored_q31(VI sum, VI multiplier, VI right, VI zero, VI least, VI most) {
  const hn::Repartition<int64_t, DI> d64;
  const hn::Repartition<uint64_t, DI> du64;
  const hn::RebindToUnsigned<DI> du;
  const auto odd = [&](VI x) HWY_ATTR { return hn::BitCast(DI(), hn::ShiftRight<32>(hn::BitCast(du64, x))); };
  const auto nudge = hn::Set(d64, int64_t{1} << 30);
  const auto low = hn::Add(hn::MulEven(sum, multiplier), nudge),
             high = hn::Add(hn::MulEven(odd(sum), odd(multiplier)), nudge);
  const VI even = hn::BitCast(DI(), hn::ShiftRight<31>(hn::BitCast(du64, low))),
           upper = hn::BitCast(DI(), hn::ShiftLeft<1>(hn::BitCast(du64, high)));
  const VI product = hn::OddEven(upper, even);
  const auto bits = hn::BitCast(du, right);
  const auto half = hn::ShiftRight<1>(hn::Shl(hn::Set(du, 1), bits));
  const VI size = hn::BitCast(DI(), hn::Shr(hn::Add(hn::BitCast(du, hn::Abs(product)), half), bits));
  const VI result = hn::IfThenElse(hn::Lt(product, hn::Zero(DI())), hn::Neg(size), size);
  return hn::Add(hn::Min(most, hn::Max(least, result)), zero);
}

// Stores sum * factor, rounded, plus the zero point, clamped.
HWY_NOINLINE void finish_doubles(const DotTile& t, int64_t column, int rows, int64_t n, const int32_t* sums) {
  const DotOutput& o = *t.output;
  const double least = o.low - o.zero, most = o.high - o.zero;
  const auto zero = static_cast<int32_t>(o.zero);
  const double* factor = t.factor + column;
  for (int m = 0; m < rows; ++m) {
    const int32_t* from = sums + m * kPitch;
    auto* to = reinterpret_cast<uint8_t*>(t.out[m] + column);
    for (int64_t i = 0; i < n; ++i) {
      // Clamped to one step beyond the range: the cast cannot overflow, and the final clamp still sees the excess.
      const double product = HWY_MIN(most + 1, HWY_MAX(least - 1, from[i] * factor[i]));
      const auto whole = static_cast<int32_t>(product);
      const double rest = product - whole;  // exact, unlike product + 0.5
      const int32_t steps = whole + (rest >= 0.5) - (rest <= -0.5);
      to[i] =
          static_cast<uint8_t>(HWY_MIN(static_cast<int32_t>(most), HWY_MAX(static_cast<int32_t>(least), steps)) + zero);
    }
  }
}

HWY_NOINLINE void finish_q31(const DotTile& t, int64_t column, int rows, int64_t n, const int32_t* sums) {
  const DotOutput& o = *t.output;
  const auto offset = static_cast<int32_t>(o.zero);
  const VI zero = hn::Set(DI(), offset), least = hn::Set(DI(), static_cast<int32_t>(o.low) - offset),
           most = hn::Set(DI(), static_cast<int32_t>(o.high) - offset);
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    const VI multiplier = hn::LoadU(DI(), t.multiplier + column + i), shift = hn::LoadU(DI(), t.shift + column + i);
    const VI right = hn::Max(hn::Neg(shift), hn::Zero(DI()));
    const bool moves_left = !hn::AllFalse(DI(), hn::Gt(shift, hn::Zero(DI())));
    for (int m = 0; m < rows; ++m) {
      VI sum = hn::Load(DI(), sums + m * kPitch + i);
      if (moves_left) {
        alignas(64) int32_t each[kLanes];
        hn::Store(sum, DI(), each);
        for (int64_t lane = 0; lane < kLanes; ++lane)
          if (const int32_t by = t.shift[column + i + lane]; by > 0)
            each[lane] = saturated(static_cast<int64_t>(each[lane]) << by);
        sum = hn::Load(DI(), each);
      }
      store_bytes(stored_q31(sum, multiplier, right, zero, least, most), t.out[m] + column + i, left);
    }
  });
}

// Converts sums in memory, kPitch apart, to results and stores them.
HWY_NOINLINE void finish(const DotTile& t, int64_t column, int rows, int64_t num_lanes, const int32_t* sums) {
  const DotOutput& o = *t.output;
  const int64_t n = HWY_MIN(num_lanes, t.num_columns - column);
  if (o.dtype == DType::kInt32) {
    for (int m = 0; m < rows; ++m) std::memcpy(t.out[m] + column * 4, sums + m * kPitch, n * 4);
    return;
  }
  if (o.doubles) return finish_doubles(t, column, rows, n, sums);
  if (o.q31) return finish_q31(t, column, rows, n, sums);
  const V low = set(o.low), high = set(o.high), inverse = set(o.inverse_scale), zero = set(o.zero);
  const bool to_fp32 = o.dtype == DType::kFp32;
  const auto stored = [&](V f, std::byte* out, int64_t i, int64_t left) HWY_ATTR {
    if (to_fp32) return store_values(hn::Min(high, hn::Max(low, f)), reinterpret_cast<float*>(out) + column + i, left);
    const V moved = hn::Add(hn::Round(hn::Mul(f, inverse)), zero);
    store_bytes(rounded(hn::Min(high, hn::Max(low, moved))), out + column + i, left);
  };
  alignas(64) float values[kMaxTileRows][kPitch];
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    const V scale = load(t.scale + column + i);
    const V bias = load(t.bias + column + i);
    for (int m = 0; m < rows; ++m) {
      const V f = hn::Add(hn::Mul(hn::ConvertTo(D(), hn::Load(DI(), sums + m * kPitch + i)), scale), bias);
      if (o.in_bounds)
        stored(f, t.out[m], i, left);
      else
        store(f, values[m] + i);
    }
  });
  if (o.in_bounds) return;
  for (int m = 0; m < rows; ++m) {
    apply_epilogue(t, column, m, n, values[m]);
    for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR { stored(load(values[m] + i), t.out[m], i, left); });
  }
}

HWY_INLINE VI broadcast(const uint8_t* four) {
  int32_t bits;
  std::memcpy(&bits, four, 4);
  return hn::Set(DI(), bits);
}

HWY_INLINE VI broadcast_part(const uint8_t* from, int64_t n) {
  int32_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(n));
  return hn::Set(DI(), bits);
}

// Returns the sum of n bytes of the left-hand side.
int32_t sum_bytes(const uint8_t* from, int64_t n) {
  constexpr int64_t kBytes = 4 * kLanes;
  const hn::Repartition<uint8_t, DI> d8;
  const VI ones = hn::Set(DI(), 0x01010101);
  VI sums = hn::Zero(DI());
  int64_t i = 0;
  for (; i + kBytes <= n; i += kBytes) sums = dot(sums, hn::BitCast(DI(), hn::LoadU(d8, from + i)), ones);
  if (i < n) {
    uint8_t part[kBytes] = {};
    std::memcpy(part, from + i, n - i);
    sums = dot(sums, hn::BitCast(DI(), hn::LoadU(d8, part)), ones);
  }
  return hn::GetLane(hn::SumOfLanes(DI(), sums));
}

template <int kRows, int kPanels>
void tile(const DotTile& t, int first_panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  const hn::Repartition<uint8_t, DI> d8;
  const int64_t column = t.column + first_panel * kPanelLanes;
  const std::byte* panels = t.panels + first_panel * t.panel_bytes;
  VI acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const VI start = hn::LoadU(DI(), t.start + column + v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m][v] = start;
  }
  const auto step = [&](auto&& left) HWY_ATTR {
    // A single row needs the next panels soon, and hardware fetches ahead only within a page of memory.
    if constexpr (kRows == 1)
#pragma GCC unroll 16
      for (int p = kPanels; p < 2 * kPanels; ++p) __builtin_prefetch(panels + p * t.panel_bytes, 0, 2);
    VI right[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* from = panels + v / kPanelVectors * t.panel_bytes + v % kPanelVectors * 4 * kLanes;
      right[v] = hn::BitCast(DI(), hn::LoadU(d8, reinterpret_cast<const uint8_t*>(from)));
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const VI a = left(m);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[m][v] = dot(acc[m][v], a, right[v]);
    }
    panels += kDotBytes;
  };
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const uint8_t* a[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) a[m] = t.a[s * kTileRows + m];
    const int64_t whole = (t.has_slack ? t.length + 3 : t.length) & ~int64_t{3};
    for (int64_t l = 0; l < whole; l += 4) step([&](int m) HWY_ATTR { return broadcast(a[m] + l); });
    if (whole < t.length) step([&](int m) HWY_ATTR { return broadcast_part(a[m] + whole, t.length - whole); });
  }
  if (t.row_factor) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      int32_t row_sum = 0;
      for (int64_t s = 0; s < t.num_segments; ++s) row_sum += sum_bytes(t.a[s * kTileRows + m], t.length);
      const VI sum = hn::Set(DI(), row_sum);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        acc[m][v] = hn::Sub(acc[m][v], hn::Mul(sum, hn::LoadU(DI(), t.row_factor + column + v * kLanes)));
    }
  }
  if (t.output->in_steps) return finish_in_steps<kRows, kVectors>(t, column, DI(), acc);
  alignas(64) int32_t sums[kRows][kPitch];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) hn::Store(acc[m][v], DI(), sums[m] + v * kLanes);
  finish(t, column, kRows, kPanels * kPanelLanes, sums[0]);
}

template <int kPanels>
void tile_rows(const DotTile& t, int first_panel) {
  switch (t.rows) {
    case 1:
      return tile<1, kPanels>(t, first_panel);
    case 2:
      return tile<2, kPanels>(t, first_panel);
    case 3:
      return tile<3, kPanels>(t, first_panel);
    case 4:
      return tile<4, kPanels>(t, first_panel);
    case 5:
      return tile<5, kPanels>(t, first_panel);
    default:
      return tile<6, kPanels>(t, first_panel);
  }
}

void tile_any(const DotTile& t) {
  if constexpr (kPanelsAtOnce == 1) {
    for (int p = 0; p < t.num_panels; ++p) tile_rows<1>(t, p);
  } else {
    switch (t.num_panels) {
      case 1:
        return tile_rows<1>(t, 0);
      case 2:
        return tile_rows<2>(t, 0);
      case 3:
        return tile_rows<3>(t, 0);
      default:
        return tile_rows<4>(t, 0);
    }
  }
}

// ---- depthwise ----

constexpr int kPixels = kPanelVectors == 1 ? 4 : 2;

// Loads bytes of adjacent channels and reorders them in pieces of 4 bytes. Interleaving four loaded vectors within
// 128-bit lanes gives vectors of channels in order.
template <class D8>
HWY_INLINE hn::Vec<D8> load_channels(D8 d, const uint8_t* from, int64_t n, hn::Vec<D8> flip) {
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(D8()));
  constexpr int kBlocks = kBytes / 16;
  hn::Vec<D8> bytes;
  if (n >= kBytes) {
    bytes = hn::LoadU(d, from);
  } else {
    uint8_t part[kBytes] = {};
    std::memcpy(part, from, static_cast<size_t>(n));
    bytes = hn::LoadU(d, part);
  }
  bytes = hn::Xor(bytes, flip);
  if constexpr (kBlocks > 1) {
    const hn::Repartition<uint32_t, D8> d32;
    alignas(64) int32_t order[kBytes / 4];
    for (int lane = 0; lane < kBlocks; ++lane)
      for (int q = 0; q < 4; ++q) order[lane * 4 + q] = kBlocks * q + lane;
    bytes = hn::BitCast(d, hn::TableLookupLanes(hn::BitCast(d32, bytes), hn::SetTableIndices(d32, order)));
  }
  return bytes;
}

// Four pixels, interleaved: each 32-bit lane of a vector has the four bytes of one channel.
template <class D8>
struct Quads {
  using D32 = hn::Repartition<int32_t, D8>;
  hn::Vec<D32> vectors[4];

  HWY_INLINE Quads(const uint8_t* const* pixels, int64_t channel, int64_t n, hn::Vec<D8> flip) {
    const D8 d8;
    const D32 d32;
    const hn::Repartition<uint16_t, D8> d16;
    const auto a = load_channels(d8, pixels[0] + channel, n, flip), b = load_channels(d8, pixels[1] + channel, n, flip),
               c = load_channels(d8, pixels[2] + channel, n, flip), d = load_channels(d8, pixels[3] + channel, n, flip);
    const auto ab_low = hn::BitCast(d16, hn::InterleaveLower(d8, a, b)),
               ab_high = hn::BitCast(d16, hn::InterleaveUpper(d8, a, b)),
               cd_low = hn::BitCast(d16, hn::InterleaveLower(d8, c, d)),
               cd_high = hn::BitCast(d16, hn::InterleaveUpper(d8, c, d));
    vectors[0] = hn::BitCast(d32, hn::InterleaveLower(d16, ab_low, cd_low));
    vectors[1] = hn::BitCast(d32, hn::InterleaveUpper(d16, ab_low, cd_low));
    vectors[2] = hn::BitCast(d32, hn::InterleaveLower(d16, ab_high, cd_high));
    vectors[3] = hn::BitCast(d32, hn::InterleaveUpper(d16, ab_high, cd_high));
  }
};

// Computes `kBlock` channels of adjacent pixels. kTaps and kStride are constants for the usual windows of three or four
// rows.
template <int kBlock, int kRows, int kTaps, int kStride>
void depthwise_block(const DepthwiseDot& w, const DotTile& t, int64_t column) {
  using D8 = hn::CappedTag<uint8_t, kBlock>;
  using D32 = hn::Repartition<int32_t, D8>;
  constexpr int kVectorLanes = kBlock / 4;
  const D8 d8;
  const D32 d32;
  const int64_t left = t.num_columns - column;
  const auto flip = hn::Set(d8, static_cast<uint8_t>(w.flip ? 0x80 : 0));
  hn::Vec<D32> acc[kRows][4];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const auto start = hn::LoadU(d32, t.start + column + q * kVectorLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) acc[m][q] = start;
  }
  const std::byte* panels = t.panels + (column - t.column) / kPanelLanes * t.panel_bytes;
  const auto add = [&](const Quads<D8>& x, int64_t tap, hn::Vec<D32>(&to)[4]) HWY_ATTR {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      constexpr int kPerPanel = static_cast<int>(kPanelLanes) / kVectorLanes;
      const std::byte* from = panels + q / kPerPanel * t.panel_bytes + q % kPerPanel * kBlock + tap * kDotBytes;
      to[q] = dot(to[q], x.vectors[q], hn::BitCast(d32, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(from))));
    }
  };
  if constexpr (kTaps > 0) {
#pragma GCC unroll 16
    for (int j = 0; j < (kRows - 1) * kStride + kTaps; ++j) {
      const Quads<D8> x(t.a + j * 4, column, left, flip);
#pragma GCC unroll 8
      for (int tap = 0; tap < kTaps; ++tap) {
        const int m = (j - tap) / kStride;
        if (j >= tap && (j - tap) % kStride == 0 && m < kRows) add(x, tap, acc[m]);
      }
    }
  } else {
    for (int m = 0; m < kRows; ++m)
      for (int64_t tap = 0; tap < w.kernel_w; ++tap)
        for (int64_t quad = 0; quad < w.quads; ++quad) {
          const int64_t pixel = m * w.stride_w + tap * w.dilation_w;
          const Quads<D8> x(t.a + (pixel * w.quads + quad) * 4, column, left, flip);
          for (int64_t plane = 0; plane < w.planes; ++plane) add(x, (tap * w.quads + quad) * w.planes + plane, acc[m]);
        }
  }
  if (t.output->in_steps) return finish_in_steps<kRows, 4>(t, column, d32, acc);
  alignas(64) int32_t sums[kRows][kPitch];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) hn::Store(acc[m][q], d32, sums[m] + q * kVectorLanes);
  finish(t, column, kRows, kBlock, sums[0]);
}

template <int kRows, int kTaps, int kStride>
void depthwise_channels(const DepthwiseDot& w, const DotTile& t) {
  constexpr int64_t kWidest = 4 * kLanes;
  int64_t column = t.column;
  for (; t.num_columns - column > kWidest / 2; column += kWidest)
    depthwise_block<kWidest, kRows, kTaps, kStride>(w, t, column);
  if constexpr (kWidest >= 64)
    for (; t.num_columns - column > 16; column += 32) depthwise_block<32, kRows, kTaps, kStride>(w, t, column);
  for (; t.num_columns > column; column += 16) depthwise_block<16, kRows, kTaps, kStride>(w, t, column);
}

void depthwise(const DepthwiseDot& w, const DotTile& t) {
  if (t.rows == 1) return depthwise_channels<1, 0, 0>(w, t);
  const bool simple = w.quads == 1 && w.planes == 1 && w.dilation_w == 1 && w.kernel_w == 3;
  if (simple && w.stride_w == 1) return depthwise_channels<kPixels, 3, 1>(w, t);
  if (simple && w.stride_w == 2) return depthwise_channels<kPixels, 3, 2>(w, t);
  depthwise_channels<kPixels, 0, 0>(w, t);
}

void flip(const uint8_t* from, int64_t n, uint8_t* to) {
  const hn::ScalableTag<uint8_t> d;
  const auto sign = hn::Set(d, 0x80);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Xor(hn::LoadU(d, from + i), sign), d, to + i);
  for (; i + 8 <= n; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, from + i, 8);
    eight ^= 0x8080808080808080;
    std::memcpy(to + i, &eight, 8);
  }
  for (; i < n; ++i) to[i] = from[i] ^ 0x80;
}

constexpr DotOps kOps = {HEXANE_DOT_NAME, kSignedLeft, kPixels, tile_any, depthwise, flip};
