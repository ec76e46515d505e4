// The tiles of bf16 products with one way to add a pair. This file has no include guard: bf16.cpp includes it once or
// twice for each Highway target, in a namespace of its own each time, after Left, Right and add_pair().

// The total of all blocks of a long sum except the last block.
template <int kRows, int kVectors>
struct BlockSums {
  HWY_ALIGN float sums[kRows][kVectors * kLanes];
  bool any = false;

  // Adds a full block to the total and resets the block to zero.
  HWY_INLINE void add(V (&acc)[kRows][kVectors]) {
    add_to(acc);
    any = true;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(acc[m][v], D(), sums[m] + v * kLanes);
        acc[m][v] = hn::Zero(D());
      }
  }
  HWY_INLINE void add_to(V (&acc)[kRows][kVectors]) const {
    if (!any) return;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Add(hn::Load(D(), sums[m] + v * kLanes), acc[m][v]);
  }
};

template <int kRows, int kPanels>
void tile_part(const Tile& t, int first_panel) {
  constexpr int kVectors = kPanels * kPanelVectors;
  V acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) acc[m][v] = hn::Zero(D());
  const float* b = reinterpret_cast<const float*>(t.panels + first_panel * t.panel_bytes);
  const int64_t panel_items = t.panel_bytes / 4, block = sum_block(2 * t.num_segments * t.length) / 2;
  int64_t room = block;
  BlockSums<kRows, kVectors> blocks;
  for (int64_t s = 0; s < t.num_segments; ++s) {
    const float* a[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) a[m] = t.a[s * kTileRows + m];
    for (int64_t l = 0; l < t.length;) {
      if (HWY_UNLIKELY(room == 0)) {
        blocks.add(acc);
        room = block;
      }
      const int64_t end = HWY_MIN(t.length, l + room);
      room -= end - l;
      for (; l < end; ++l, b += kPanelLanes) {
        Right right[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
          right[v] = Right(load(b + v / kPanelVectors * panel_items + v % kPanelVectors * kLanes));
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const Left left(hn::Set(D(), a[m][l]));
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) acc[m][v] = add_pair(acc[m][v], left, right[v]);
        }
      }
    }
  }
  blocks.add_to(acc);
  finish_part<kRows, kPanels>(t, first_panel, acc);
}

template <int kPanels>
void tile_rows(const Tile& t, int first_panel) {
  switch (t.rows) {
    case 1:
      return tile_part<1, kPanels>(t, first_panel);
    case 2:
      return tile_part<2, kPanels>(t, first_panel);
    case 3:
      return tile_part<3, kPanels>(t, first_panel);
    case 4:
      return tile_part<4, kPanels>(t, first_panel);
    case 5:
      return tile_part<5, kPanels>(t, first_panel);
    default:
      return tile_part<6, kPanels>(t, first_panel);
  }
}

void tile(const Tile& t) {
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

}  // namespace
