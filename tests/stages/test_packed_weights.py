"""What weights of a layer take on a chip: bits of a weight, pruned weights, and how they are dealt to the engines."""

import numpy as np
import pytest

import hexane as hx
from hexane.program.layers import Weights

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
RNG = np.random.default_rng(0)


def packed(network: hx.Tensor, target: str) -> Weights:
    program = hx.compile(hx.graph(network), target=target, threads=1).program
    assert program is not None
    (found,) = [layer.weights for layer in program.layers if layer.weights]
    return found


def image(channels: int) -> hx.Tensor:
    return hx.input("x", (1, channels, 8, 8), "fp16")


@pytest.mark.parametrize("target", ["h13", "h14", "h17"])
def test_a_depthwise_kernel_is_packed_without_empty_channels(target: str) -> None:
    """960 channels of 5 x 5 in fp16 are 48,000 bytes: 3,000 for each of 16 engines, in 3,008, a multiple of 64."""
    weights = packed(hx.conv(image(960), np.ones((960, 1, 5, 5), np.float16), pad=2, groups=960), target)
    assert (weights.bytes, weights.group, weights.passes) == (48_000, 1, 60)
    assert weights.packed_bytes == 16 * 3008


def test_a_group_of_an_engine_is_no_larger_than_a_group_of_the_convolution() -> None:
    """Four groups of 3 output channels: a power of two holds them, 4, and not 16."""
    weights = packed(hx.conv(image(16), np.ones((12, 4, 3, 3), np.float16), pad=1, groups=4), "h13")
    assert (weights.group, weights.groups, weights.engines, weights.passes) == (4, 4, 4, 1)
    assert weights.packed_bytes == 4 * (9 * 4 * 4 * 2 + 32)


@pytest.mark.parametrize(
    ("entries", "target", "bits"),
    [
        *((entries, "h13", bits) for entries, bits in ((3, 4), (16, 4), (17, 8), (256, 8))),
        *((entries, "h14", bits) for entries, bits in ((3, 2), (16, 4), (17, 6), (256, 8))),
    ],
)
def test_an_index_of_a_palette_has_the_fewest_bits_that_the_chip_takes(entries: int, target: str, bits: int) -> None:
    table = RNG.standard_normal(entries).astype(np.float16)
    indices = RNG.integers(0, entries, (64, 16, 3, 3)).astype(np.int32)
    weights = packed(hx.conv(image(16), hx.gather(table, indices, axis=0), pad=1), target)
    assert (weights.encoding, weights.bits) == ("palette", bits)
    assert weights.bytes == 64 * 16 * 9 * bits // 8
    assert weights.packed_bytes == weights.bytes  # no padding: 4 groups of 16 channels


@pytest.mark.parametrize("target", ["h13", "h17"])
def test_pruned_weights_count_as_sparse(target: str) -> None:
    """A bit for each weight, and the numbers that are not 0."""
    kept = np.where(RNG.random((64, 16, 3, 3)) < 0.3, 1.5, 0.0).astype(np.float16)
    weights = packed(hx.conv(image(16), kept, pad=1), target)
    count = int(np.count_nonzero(kept))
    assert (weights.encoding, weights.bits) == ("sparse", 16)
    assert weights.bytes == kept.size // 8 + 2 * count
    assert (
        weights.packed_bytes == 4 * 320 + 2 * count
    )  # the mask of 16 channels has 288 bytes, and ends at a multiple of 64


@pytest.mark.parametrize(("keep", "shape"), [(0.6, (64, 16, 3, 3)), (0.3, (2, 16, 3, 3))])
def test_weights_that_are_written_whole_count_whole(keep: float, shape: tuple[int, ...]) -> None:
    kept = np.where(RNG.random(shape) < keep, 1.5, 0.0).astype(np.float16)
    weights = packed(hx.conv(image(16), kept, pad=1), "h13")
    assert (weights.encoding, weights.bytes) == ("fp16", 2 * kept.size)


@pytest.mark.parametrize(("target", "encoding", "bytes_"), [("h13", "fp16", 2), ("h14", "int8", 1)])
def test_integers_count_as_the_chip_streams_them(target: str, encoding: str, bytes_: int) -> None:
    q = hx.dequantize(hx.const(RNG.integers(-9, 9, (64, 16, 3, 3)).astype(np.int8)), np.float32(0.5), dtype="fp16")
    weights = packed(hx.conv(image(16), q, pad=1), target)
    assert (weights.encoding, weights.bytes) == (encoding, bytes_ * 64 * 16 * 9)


@pytest.mark.parametrize("groups", [1, 2])
def test_weights_of_a_transposed_convolution_count(groups: int) -> None:
    weight = np.random.default_rng(0).standard_normal((8, 16 // groups, 2, 2)).astype(np.float32)
    y = hx.conv_transpose(hx.input("x", (1, 8, 9, 9)), weight, strides=(2, 2), groups=groups)
    program = hx.compile(hx.graph({"y": y}), target="h13", device="cpu").program
    assert program is not None
    (found,) = [layer.weights for layer in program.layers if layer.op == "anec.deconvolution"]
    assert found is not None
    assert found.bytes == 2 * weight.size
    assert sum(p.weights for p in program.partitions) == 2 * weight.size
