"""What has to hold of the layers of every chip's program."""

import itertools

from hexane.program import Program


def check_layers_add_up(p: Program) -> None:
    """What has to hold of every program; the solvers' answers are checked by HEXANE_VERIFY=1 when it is compiled."""
    assert [layer.index for layer in p.layers] == list(range(len(p.layers)))
    ends = [layer.steps for layer in p.layers]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    for layer in p.layers:
        first, last = p.segments[layer.segment].steps
        assert first <= layer.steps[0] <= layer.steps[1] <= last
        part = p.partitions[layer.partition]
        assert part.first <= layer.index < part.end
        assert part.segment == layer.segment
    for part in p.partitions:
        mine = p.layers[part.first : part.end]
        assert sum(layer.loaded + layer.stored for layer in mine) == part.loaded + part.stored + part.spilled
        assert part.height <= part.capacity
    for t in p.tensors:
        assert t.bytes == t.rows * t.stride
        assert t.stride >= t.row_bytes
        assert all(t.index in p.layers[reader].reads for reader in t.readers)
        assert t.producer is None or t.index in p.layers[t.producer].makes
    rows = p.occupancy()
    assert [row.layer for row in rows] == list(range(len(p.layers)))
    assert all(row.bytes <= row.capacity for row in rows)
    by_hand = [0] * len(rows)
    for t in p.tensors:
        for stay in t.stays:
            for i in stay.touches if stay.spilled else range(stay.first, stay.last + 1):
                by_hand[i] += stay.bytes
    assert [row.bytes for row in rows] == by_hand
