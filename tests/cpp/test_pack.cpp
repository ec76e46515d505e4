// Packing and unpacking are inverses for every layout, width of weights and grouping, and lose no weight on the way.
#include <algorithm>
#include <set>
#include <string>

#include "check.h"
#include "pack/kernel_data.h"

namespace pack = hexane::pack;

namespace {

std::vector<uint8_t> numbered(const pack::Kernel& kernel) {
  const int64_t bits = kernel.outputs * kernel.inputs * kernel.depth * kernel.height * kernel.width * kernel.bits;
  std::vector<uint8_t> bytes((bits + 7) / 8);
  uint32_t state = 1;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  if (bits % 8) bytes.back() &= static_cast<uint8_t>((1 << bits % 8) - 1);
  return bytes;
}

void test_pack_and_unpack_are_inverses() {
  int num_cases = 0;
  std::string layout = "dhiow";
  do {
    for (int64_t bits = 1; bits <= 16; bits++) {
      for (const int64_t groups : {1, 2, 3, 6}) {
        for (const int64_t channels : {1, 2, 4, 16}) {
          for (const int64_t engines : {1, 4, 16}) {
            const pack::Kernel kernel{12, 3, 1, 2, 3, groups, bits};
            const pack::Engines target{engines, channels, 64};
            const std::vector<uint8_t> weights = numbered(kernel);
            const std::vector<uint8_t> packed = pack::pack(kernel, target, layout, weights);
            num_cases++;
            if (pack::unpack(kernel, target, layout, packed) != weights) CHECK(false);
          }
        }
      }
    }
  } while (std::next_permutation(layout.begin(), layout.end()));
  std::printf("%d cases\n", num_cases);
}

// Odd numbers of everything: the last group of each group of the convolution is padded.
void test_odd_extents_are_padded_with_zeros() {
  for (const int64_t groups : {1, 3, 5, 15}) {
    const pack::Kernel kernel{15, 7, 3, 1, 5, groups, 3};
    const pack::Engines target{16, 4, 64};
    const std::vector<uint8_t> weights = numbered(kernel);
    const std::vector<uint8_t> packed = pack::pack(kernel, target, "oidhw", weights);
    CHECK(pack::unpack(kernel, target, "oidhw", packed) == weights);
    int ones = 0, ones_packed = 0;
    for (const uint8_t byte : weights) ones += __builtin_popcount(byte);
    for (const uint8_t byte : packed) ones_packed += __builtin_popcount(byte);
    CHECK(ones == ones_packed);
  }
}

// The published bank of a 64 x 64 fp16 identity: sub-kernels 512 bytes apart, channel c on engine c / 4 mod 16.
void test_identity_has_sub_kernels_of_512_bytes() {
  const pack::Kernel kernel{64, 64, 1, 1, 1, 1, 16};
  const pack::Engines target{16, 4, 64};
  const pack::Shape shape = pack::packed_shape(kernel, target);
  CHECK(shape.stride == 512 && shape.active == 16 && shape.passes == 1);
  std::vector<uint8_t> weights(64 * 64 * 2);
  for (int c = 0; c < 64; c++) weights[2 * (64 * c + c) + 1] = 0x3c;
  const std::vector<uint8_t> packed = pack::pack(kernel, target, "oidhw", weights);
  for (int c = 0; c < 64; c++) CHECK(packed[512 * (c / 4) + 2 * (4 * c + c % 4) + 1] == 0x3c);
}

void test_output_groups() {
  // 64 KiB hold 16 output channels of 1 x 1 over up to 2048 inputs, 8 over 4096; of 3 x 3 over 512 inputs 4 fit.
  CHECK(pack::output_group_measured({256, 2048, 1, 1, 1, 1, 16}, 65536, 16) == 16);
  CHECK(pack::output_group_measured({256, 4096, 1, 1, 1, 1, 16}, 65536, 16) == 8);
  CHECK(pack::output_group_measured({256, 512, 1, 3, 3, 1, 16}, 65536, 16) == 4);
  CHECK(pack::output_group_measured({256, 65536, 1, 3, 3, 1, 16}, 65536, 16) == 1);
  CHECK(pack::output_group_decoded({256, 64, 1, 1, 1, 1, 16}, 8, 32) == 8);
  CHECK(pack::output_group_decoded({256, 64, 1, 1, 3, 1, 16}, 8, 32) == 2);
  CHECK(pack::output_group_decoded({256, 64, 1, 3, 3, 1, 16}, 8, 32) == 1);
}

}  // namespace

int main() {
  test_pack_and_unpack_are_inverses();
  test_odd_extents_are_padded_with_zeros();
  test_identity_has_sub_kernels_of_512_bytes();
  test_output_groups();
  return checks_failed();
}
