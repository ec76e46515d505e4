"""Converts palettes of integers with a scale to palettes of floats."""

import numpy as np

from hexane.graph import Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import encoding_of, is_encoded


def with_float_tables(value: Value) -> Value:
    """decode_scaled_palette(const, const : int8[2, 1, 16], const)  ->  decode_palette(const, const : fp16[2, 1, 16])
    decode_scaled_palette(const, const : int8[1, 1, 16], const)  ->  gather(const : fp16[16], const : int32)

    The numbers are equal, bit for bit. A value of another op is returned unchanged.
    """
    node = value.node
    if node.op != "decode_scaled_palette" or not is_encoded(node):
        return value
    indices, integers, scales = node.inputs
    assert indices is not None
    assert integers is not None
    tables = encoding_of(apply(OPS["decode_blocks"], [integers, scales], {}, node.sources)[0]).decode()
    if tables.type.size > tables.shape[-1] or indices.type.rank < 2:
        return apply(OPS["decode_palette"], [indices, tables], {}, node.sources)[0]
    assert tables.node.data is not None
    assert indices.node.data is not None
    # An index after the last entry reads the last entry.
    picks = np.minimum(indices.node.data, tables.shape[-1] - 1).astype(np.int32)
    operands = [constant(tables.node.data.reshape(-1), node.sources), constant(picks, node.sources)]
    return apply(OPS["gather"], operands, {"axis": 0}, node.sources)[0]
