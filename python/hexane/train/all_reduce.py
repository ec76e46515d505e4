"""Sums of gradients over the ranks (processes) of a training, computed inside of a training step.

    g1 g2 ..  ->  one bucket  ->  ane.program: the sum over the ranks  ->  g1 g2 ..
                                  while the backward pass goes on

The program calls back into this process. Each rank receives one part of the bucket from all ranks, adds what it
receives in the order of the ranks, and sends the sum to all. So all ranks get the same bits in every run, which MPI's
own sums do not promise.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hexane import _core
from hexane import build as hx
from hexane.build import Tensor
from hexane.dtypes import FP32
from hexane.graph import Array
from hexane.ops import OPS, apply
from hexane.ops.records.program import PROGRAM, Layout, layout_text, type_text
from hexane.runtime.call_trace import ALL_REDUCE
from hexane.train.ranks import Ranks

BUCKET = 1 << 20  # elements of a bucket, unless one gradient has more
ITEM = FP32.bits // 8


class AllReduce:
    """Adds the sums to a step. programs: for `compile_with_programs`; failed: the exception of the last failed call."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.programs: list[_core.MadeProgram] = []
        self.failed: Exception | None = None

    @property
    def count(self) -> int:
        return self.ranks.count

    def __call__(self, gradients: Sequence[Tensor], last: Tensor | None) -> list[Tensor]:
        """Returns the fp32 gradients summed over the ranks. In calls where `last` is false, returns the gradients
        unchanged."""
        results: dict[int, Tensor] = {}
        for bucket in buckets_of([g.type.size for g in gradients]):
            parts = [hx.reshape(gradients[i], shape=(-1,)) for i in bucket]
            if last is not None:
                parts.append(hx.reshape(hx.cast(last, dtype="fp32"), shape=(1,)))
            summed = self._summed(hx.concat(*parts, axis=0), last is not None)
            begin = 0
            for i in bucket:
                size = gradients[i].type.size
                results[i] = hx.reshape(summed[begin : begin + size], shape=gradients[i].shape)
                begin += size
        return [results[i] for i in range(len(gradients))]

    def _summed(self, bucket: Tensor, is_marked: bool) -> Tensor:
        """Returns the sum of a bucket. is_marked: the bucket's last element says whether to sum."""
        (size,) = bucket.shape
        part = -(-size // self.count)  # elements that each rank adds up
        whole = part * self.count * ITEM

        def bind(given: Array, results: Array) -> Callable[[], None]:
            mine, total = (one[:whole].view(np.float32) for one in (given, results))
            parts = np.empty((self.count, part), np.float32)
            return self._guarded(lambda: self.sum(mine, total, parts, size - 1 if is_marked else None))

        port: _core.DevicePort = {
            "name": "x", "dtype": FP32.name, "shape": (1, 1, 1, size), "strides": (size * ITEM,) * 3 + (ITEM,),
            "bytes": size * ITEM,
        }  # fmt: skip
        program = _core.callback_program([port], [{**port, "name": "y"}], bind)
        layout = layout_text(Layout((ITEM,), whole))
        attrs = {
            "index": len(self.programs),
            "types": [type_text(bucket.type)],
            "layouts": [layout, layout],
            "late": True,
        }
        self.programs.append((program, ["x"], ["y"], 0))
        return Tensor(apply(OPS[PROGRAM], [bucket.value], attrs, (ALL_REDUCE,))[0])

    def sum(self, mine: Array, total: Array, parts: Array, mark: int | None) -> None:
        """Writes into `total` the sum of `mine` over the ranks, or a copy of `mine` if its element `mark` is 0. parts:
        scratch memory, (ranks, elements of each part)."""
        if mark is not None and not mine[mark]:
            np.copyto(total, mine)
            return
        communicator = self.ranks.communicator
        assert communicator is not None
        communicator.Alltoall(mine, parts)  # receives this rank's part from every rank
        for one in parts[1:]:
            np.add(parts[0], one, out=parts[0])
        communicator.Allgather(parts[0], total)

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Exception as error:
                self.failed = error
                raise

        return run


def buckets_of(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yields the indices of gradients that are summed together, from the last to the first: the order of a backward
    pass. sizes: elements of each gradient."""
    bucket: list[int] = []
    size = 0
    for i in reversed(range(len(sizes))):
        if bucket and size + sizes[i] > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(i)
        size += sizes[i]
    yield bucket
