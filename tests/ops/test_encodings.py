"""What is said of how a constant is stored, and what it decodes to."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Value
from hexane.ops.encodings import encoding_of, fewest_bits, is_encoded, operand_encoding

CODES = np.arange(-96, 96, dtype=np.int8).reshape(12, 16)
SCALES = np.linspace(0.5, 1, 12, dtype=np.float32)


def value_of(tensor: hx.Tensor) -> Value:
    return hx.graph(tensor).outputs[0].value


def picked(entries: int) -> hx.Tensor:
    table = np.arange(entries, dtype=np.float32)
    return hx.gather(table, (np.arange(192).reshape(12, 16) % entries).astype(np.int32), axis=0)


def test_integers_have_the_bits_of_their_dtype_and_decode_to_what_the_op_computes() -> None:
    value = value_of(hx.dequantize(CODES, SCALES, axis=0))
    found = encoding_of(value)
    assert (found.kind, found.bits, found.bytes) == ("integers", 8, 192)
    assert found.stored.dtype.name == "int8"
    np.testing.assert_array_equal(found.decode().node.data, CODES * SCALES[:, None])


@pytest.mark.parametrize(("entries", "bits"), [(1, 1), (2, 1), (3, 2), (16, 4), (17, 5), (256, 8), (300, 9)])
def test_an_index_has_the_fewest_bits_that_name_every_entry(entries: int, bits: int) -> None:
    found = encoding_of(value_of(picked(entries)))
    assert (found.kind, found.bits, found.bytes) == ("palette", bits, 24 * bits)
    np.testing.assert_array_equal(found.decode().node.data, np.arange(192).reshape(12, 16) % entries)


@pytest.mark.parametrize(("largest", "bits"), [(7, 4), (8, 8), (-8, 4), (-9, 8), (127, 8)])
def test_integers_in_blocks_have_four_bits_where_they_fit(largest: int, bits: int) -> None:
    codes = np.clip(CODES, -3, 3)
    codes[0, 0] = largest
    found = encoding_of(value_of(hx.decode_blocks(codes, SCALES[:8].reshape(4, 2))))
    assert (found.kind, found.bits, found.bytes) == ("blocks", bits, 24 * bits)
    want = codes * np.repeat(np.repeat(SCALES[:8].reshape(4, 2), 3, 0), 8, 1)
    np.testing.assert_array_equal(found.decode().node.data, want)


@pytest.mark.parametrize(
    ("integers", "blocks", "said"),
    [
        (CODES, (5, 2), r"got scales of shape \(5, 2\) for integers of shape \(12, 16\), need the number of blocks"),
        (CODES, (12,), "need the number of blocks"),
        (CODES, (0, 1), "need the number of blocks"),
        (CODES.astype(np.int32), (4, 2), "x: got int32, need int8"),
    ],
)
def test_blocks_are_of_one_size(integers: Array, blocks: tuple[int, ...], said: str) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.decode_blocks(integers, np.ones(blocks, np.float32))


@pytest.mark.parametrize(
    ("entries", "bits", "masked"),
    [(2, 1, None), (3, 2, 1), (4, 2, 2), (5, 3, 2), (16, 4, 4), (17, 5, 4), (257, 9, None)],
)
def test_zeros_of_a_palette_have_a_mask_where_that_is_smaller(entries: int, bits: int, masked: int | None) -> None:
    """Of 2048 numbers 512 are not 0."""
    table = np.arange(entries, dtype=np.float16)
    picks = np.where(np.arange(2048) % 4 == 0, np.arange(2048) // 4 % (entries - 1) + 1, 0).reshape(32, 64)
    found = encoding_of(value_of(hx.gather(table, picks.astype(np.int32), axis=0)))
    assert (found.kind, found.bits, found.masked_bits) == ("palette", bits, masked)
    assert found.bytes == (2048 * bits // 8 if masked is None else 2048 // 8 + 512 * masked // 8)
    np.testing.assert_array_equal(found.decode().node.data, picks)


def test_pruned_numbers_have_a_mask() -> None:
    data = np.zeros((32, 64), np.float16)
    data[0] = 1.5
    value = hx.const(data).value
    found = encoding_of(value)
    assert (found.kind, found.bits, found.bytes) == ("pruned", 16, 32 * 64 // 8 + 64 * 2)
    assert found.decode() is value


@pytest.mark.parametrize(
    "data",
    [np.ones((32, 64), np.float16), np.zeros((32, 64), np.float16), np.zeros((32, 64), np.float32), CODES],
    ids=["no zeros", "zeros alone", "fp32", "integers without a scale"],
)
def test_other_constants_are_whole(data: Array) -> None:
    found = encoding_of(hx.const(data).value)
    assert (found.kind, found.bytes) == ("whole", data.nbytes)


def test_what_is_computed_or_may_change_is_whole() -> None:
    x = hx.input("x", (12, 16), "int8")
    for tensor in (
        hx.dequantize(x, SCALES, axis=0),
        hx.param("p", CODES),
        hx.gather(hx.const(CODES), hx.const(1), axis=0),
    ):
        assert encoding_of(value_of(tensor)).kind == "whole"
        assert not is_encoded(value_of(tensor).node)


def test_an_operand_is_what_the_layer_reads() -> None:
    decoded = value_of(hx.dequantize(CODES, SCALES, axis=0, dtype="fp16"))
    assert (operand_encoding(decoded).kind, operand_encoding(decoded).bits) == ("whole", 16)
    indices, table = hx.const(CODES.astype(np.uint8)).value, hx.const(np.arange(16, dtype=np.float16)).value
    assert (operand_encoding(indices, table).kind, operand_encoding(indices, table).bytes) == ("palette", 96)


@pytest.mark.parametrize(("numbers", "bits"), [([], 1), ([0], 1), ([7, -8], 4), ([8], 5), ([-9], 5), ([127, -128], 8)])
def test_signed_integers_need_a_bit_for_the_sign(numbers: list[int], bits: int) -> None:
    assert fewest_bits(hx.const(np.array(numbers, np.int8)).value) == bits


@pytest.mark.parametrize(("numbers", "bits"), [([], 1), ([0], 1), ([15], 4), ([16], 5), ([255], 8)])
def test_unsigned_integers_need_none(numbers: list[int], bits: int) -> None:
    assert fewest_bits(hx.const(np.array(numbers, np.uint8)).value) == bits
    assert fewest_bits(hx.const(np.array([3], np.uint8)).value, hx.const(np.array(numbers, np.uint8)).value) >= bits
