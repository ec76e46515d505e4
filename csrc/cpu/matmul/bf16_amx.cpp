// The tile registers of AMX. Four of them are sums, of one panel each.
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

constexpr int kSums = 4;        // tiles 0 to 3
constexpr int kTileBytes = 64;  // of a row

struct alignas(64) TileConfig {
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

constexpr TileConfig whole_tiles() {
  TileConfig config{};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = kAmxRows;
    config.row_bytes[tile] = kTileBytes;
  }
  return config;
}

// In memory of its own: GCC 12 does not see that the instruction reads more than 8 bytes.
constinit const TileConfig kWholeTiles = whole_tiles();

// Linux has a register set of 8 KB saved for a thread only if its process asks for it.
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

HEXANE_AMX void begin_amx() { _tile_loadconfig(&kWholeTiles); }

HEXANE_AMX void end_amx() { _tile_release(); }

HEXANE_AMX void clear_amx() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

HEXANE_AMX void add_amx(const AmxBlocks& b) {
  constexpr int64_t kPanelBytes = kAmxPairs * kTileBytes;
  const std::byte* panels = b.panels;
  const int64_t next = b.panel_bytes;
  switch (b.num_panels) {
    case 1:
      for (int64_t i = 0; i < b.count; ++i, panels += kPanelBytes) {
        _tile_loadd(4, b.rows[i], b.strides[i]);
        _tile_loadd(5, panels, kTileBytes);
        _tile_dpbf16ps(0, 4, 5);
      }
      return;
    case 2:
      for (int64_t i = 0; i < b.count; ++i, panels += kPanelBytes) {
        _tile_loadd(4, b.rows[i], b.strides[i]);
        _tile_loadd(5, panels, kTileBytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, panels + next, kTileBytes);
        _tile_dpbf16ps(1, 4, 6);
      }
      return;
    case 3:
      for (int64_t i = 0; i < b.count; ++i, panels += kPanelBytes) {
        _tile_loadd(4, b.rows[i], b.strides[i]);
        _tile_loadd(5, panels, kTileBytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, panels + next, kTileBytes);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, panels + 2 * next, kTileBytes);
        _tile_dpbf16ps(2, 4, 5);
      }
      return;
    default:
      for (int64_t i = 0; i < b.count; ++i, panels += kPanelBytes) {
        _tile_loadd(4, b.rows[i], b.strides[i]);
        _tile_loadd(5, panels, kTileBytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, panels + next, kTileBytes);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, panels + 2 * next, kTileBytes);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, panels + 3 * next, kTileBytes);
        _tile_dpbf16ps(3, 4, 6);
      }
  }
}

HEXANE_AMX void store_amx(int num_panels, float* sums) {
  constexpr int64_t kPitch = kSums * kTileBytes;
  _tile_stored(0, sums, kPitch);
  if (num_panels > 1) _tile_stored(1, sums + kPanelLanes, kPitch);
  if (num_panels > 2) _tile_stored(2, sums + 2 * kPanelLanes, kPitch);
  if (num_panels > 3) _tile_stored(3, sums + 3 * kPanelLanes, kPitch);
}

#else

bool has_amx() { return false; }
void begin_amx() {}
void end_amx() {}
void clear_amx() {}
void add_amx(const AmxBlocks&) {}
void store_amx(int, float*) {}

#endif

}  // namespace hexane::cpu
