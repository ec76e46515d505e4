// The tile registers of AMX. Four tile registers hold sums: two blocks of rows by two panels if there are 32 rows. Two
// blocks by two panels take four loads for four products; one block by four panels takes five. With one block of rows,
// two registers are left for a tail: a block with fewer pairs. A tail is read in place, because loading a copy that has
// just been written takes long.
#include "cpu/matmul/bf16.h"

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HEXANE_AMX __attribute__((target("amx-tile,amx-bf16")))
#endif

namespace hexane::cpu {

#ifdef HEXANE_AMX

namespace {

constexpr int kTileBytes = 64;  // bytes of a row of a tile register

struct alignas(64) TileConfig {
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

constexpr int kTailRows = 5, kTailPanel = 7;  // registers of tails; intrinsics take no names

// Configures whole tiles, and tails of this many pairs.
constexpr TileConfig tiles_with_tails(int pairs) {
  TileConfig config{};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = kAmxRows;
    config.row_bytes[tile] = kTileBytes;
  }
  config.row_bytes[kTailRows] = static_cast<uint16_t>(4 * pairs);
  config.rows[kTailPanel] = static_cast<uint8_t>(pairs);
  return config;
}

struct TileConfigs {
  TileConfig tails[kAmxPairs + 1];
};
constexpr TileConfigs all_configs() {
  TileConfigs configs{};
  for (int pairs = 1; pairs <= kAmxPairs; ++pairs) configs.tails[pairs] = tiles_with_tails(pairs);
  return configs;
}

// Constants in static memory: GCC 12 assumes that the instruction that loads a configuration reads only 8 bytes.
constinit const TileConfigs kConfigs = all_configs();

thread_local int64_t tail_pairs = 0;  // pairs of tails in the configuration of this thread

// Asks Linux for the tile registers: Linux saves these 8 KB of a thread only for processes that asked.
bool is_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool detect() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kTiles = 1u << 24, kBf16 = 1u << 22;
  return (d & kTiles) && (d & kBf16) && is_permitted();
}

}  // namespace

bool has_amx() {
  static const bool found = detect();
  return found;
}

HEXANE_AMX void begin_amx_tails(int64_t pairs) {
  if (pairs == tail_pairs) return;
  tail_pairs = pairs;
  _tile_loadconfig(&kConfigs.tails[pairs]);
}

HEXANE_AMX void begin_amx() {
  tail_pairs = 0;
  begin_amx_tails(kAmxPairs);
}

HEXANE_AMX void end_amx() { _tile_release(); }

namespace {

// Computes the sums of kRowBlocks * 16 rows and kPanels panels. Each pair of block and panel has one tile register: at
// most two by two, or one by four.
template <int kRowBlocks, int kPanels>
HEXANE_AMX void add_products(const AmxBlocks& b, int first_panel, bool is_first, bool is_last, float* sums) {
  static_assert(kRowBlocks == 1 || kPanels <= 2);
  constexpr int64_t kPanelBytes = kAmxPairs * kTileBytes, kPitch = kAmxPitch * 4;
  const std::byte* panels = b.panels + first_panel * b.panel_bytes;
  const int64_t next = b.panel_bytes;
  float* upper = sums + first_panel * kPanelLanes;
  [[maybe_unused]] float* lower = upper + kAmxRows * kAmxPitch;
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else if constexpr (kRowBlocks == 2) {
    _tile_loadd(0, upper, kPitch);
    _tile_loadd(2, lower, kPitch);
    if constexpr (kPanels > 1) {
      _tile_loadd(1, upper + kPanelLanes, kPitch);
      _tile_loadd(3, lower + kPanelLanes, kPitch);
    }
  }
  for (int64_t i = 0; i < b.count; ++i, panels += kPanelBytes) {
    if constexpr (kRowBlocks == 1) {
      if (b.is_tail[i]) {
        _tile_loadd(5, b.rows[0][i], b.strides[0][i]);
        _tile_loadd(7, panels, kTileBytes);
        _tile_dpbf16ps(0, 5, 7);
        if constexpr (kPanels > 1) {
          _tile_loadd(7, panels + next, kTileBytes);
          _tile_dpbf16ps(1, 5, 7);
        }
        if constexpr (kPanels > 2) {
          _tile_loadd(7, panels + 2 * next, kTileBytes);
          _tile_dpbf16ps(2, 5, 7);
        }
        if constexpr (kPanels > 3) {
          _tile_loadd(7, panels + 3 * next, kTileBytes);
          _tile_dpbf16ps(3, 5, 7);
        }
        continue;
      }
    }
    _tile_loadd(4, b.rows[0][i], b.strides[0][i]);
    _tile_loadd(6, panels, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRowBlocks == 2) {
      _tile_loadd(5, b.rows[1][i], b.strides[1][i]);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels > 1) {
        _tile_loadd(7, panels + next, kTileBytes);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    } else {
      if constexpr (kPanels > 1) {
        _tile_loadd(6, panels + next, kTileBytes);
        _tile_dpbf16ps(1, 4, 6);
      }
      if constexpr (kPanels > 2) {
        _tile_loadd(6, panels + 2 * next, kTileBytes);
        _tile_dpbf16ps(2, 4, 6);
      }
      if constexpr (kPanels > 3) {
        _tile_loadd(6, panels + 3 * next, kTileBytes);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
  }
  if (kRowBlocks == 1 && !is_last) return;
  _tile_stored(0, upper, kPitch);
  if constexpr (kPanels > 1) _tile_stored(1, upper + kPanelLanes, kPitch);
  if constexpr (kRowBlocks == 2) {
    _tile_stored(2, lower, kPitch);
    if constexpr (kPanels > 1) _tile_stored(3, lower + kPanelLanes, kPitch);
  } else {
    if constexpr (kPanels > 2) _tile_stored(2, upper + 2 * kPanelLanes, kPitch);
    if constexpr (kPanels > 3) _tile_stored(3, upper + 3 * kPanelLanes, kPitch);
  }
}

}  // namespace

void add_amx(const AmxBlocks& b, bool is_first, bool is_last, float* sums) {
  if (b.row_blocks == 2) {
    for (int panel = 0; panel < b.num_panels; panel += 2)
      b.num_panels - panel > 1 ? add_products<2, 2>(b, panel, is_first, is_last, sums)
                               : add_products<2, 1>(b, panel, is_first, is_last, sums);
    return;
  }
  switch (b.num_panels) {
    case 1:
      return add_products<1, 1>(b, 0, is_first, is_last, sums);
    case 2:
      return add_products<1, 2>(b, 0, is_first, is_last, sums);
    case 3:
      return add_products<1, 3>(b, 0, is_first, is_last, sums);
    default:
      return add_products<1, 4>(b, 0, is_first, is_last, sums);
  }
}

#else

bool has_amx() { return false; }
void begin_amx() {}
void end_amx() {}
void begin_amx_tails(int64_t) {}
void add_amx(const AmxBlocks&, bool, bool, float*) {}

#endif

}  // namespace hexane::cpu
