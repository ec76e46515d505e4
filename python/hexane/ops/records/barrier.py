"""The op of a lowered graph that lets a value be read a second time, for rematerialisation."""

from hexane.ops.spec import Op

BARRIER = "cpu.barrier"

OPS = (
    Op(
        name=BARRIER, doc="x, as another value than x, which is not read before `after` is there: a view.", level="kernel",
        inputs=("x", "after"), shape=lambda x, after: x, dtype=lambda x, after: x, kernel="copy", view=True, moves=("x",),
        ref=lambda x, after=None: x, cases=(),
    ),
)  # fmt: skip
