"""The op of a lowered graph that lets a value be read a second time, for rematerialisation."""

from hexane.ops.spec import Op

BARRIER = "cpu.barrier"

OPS = (
    Op(
        name=BARRIER, doc="A view of x, which the graph treats as another value, and which is not read before `after` "
                          "is computed.", level="kernel",
        inputs=("x", "after"), shape=lambda x, after: x, dtype=lambda x, after: x, kernel="copy", view=True, moves=("x",),
        ref=lambda x, after=None: x, cases=(),
    ),
)  # fmt: skip
