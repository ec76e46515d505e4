"""Cases of the pass that recognises what losses read of softmax."""

import hexane as hx
from hexane.passes.fuse.fuse_cross_entropy import fuse_cross_entropy
from pass_cases.graphs import Case


def logits() -> hx.Tensor:
    return hx.input("x", (2, 3, 5))


def at(axis: int = 2) -> hx.Tensor:
    return hx.input("at", tuple(1 if i == axis else d for i, d in enumerate((2, 3, 5))), "int32")


def share() -> hx.Tensor:
    return hx.input("share", (2, 3, 1))


def gradient(of: hx.Tensor, column: hx.Tensor, mode: str = "add") -> hx.Tensor:
    return hx.scatter_along_axis(of * column, at(), -column, axis=2, mode=mode)


FIRES: dict[str, Case] = {
    "fuse_cross_entropy": (fuse_cross_entropy, lambda: hx.gather_along_axis(hx.log_softmax(logits()), at(), axis=2)),
    "fuse_cross_entropy_gradient": (fuse_cross_entropy, lambda: gradient(hx.softmax(logits(), axis=-1), share())),
    "fuse_cross_entropy_of_a_row": (
        fuse_cross_entropy,
        lambda: hx.gather_along_axis(hx.log_softmax(hx.input("x", (5,))), hx.input("at", (1,), "int32"), axis=0),
    ),
}

LEAVES: dict[str, Case] = {
    "log_softmax_at_several_places": (
        fuse_cross_entropy,
        lambda: hx.gather_along_axis(hx.log_softmax(logits()), hx.input("at", (2, 3, 2), "int32"), axis=2),
    ),
    "log_softmax_along_another_axis": (
        fuse_cross_entropy,
        lambda: hx.gather_along_axis(hx.log_softmax(logits(), axis=1), at(), axis=2),
    ),
    "log_softmax_of_fewer_rows": (
        fuse_cross_entropy,
        lambda: hx.gather_along_axis(hx.log_softmax(logits()), hx.input("at", (2, 2, 1), "int32"), axis=2),
    ),
    "log_softmax_that_is_read_again": (
        fuse_cross_entropy,
        lambda: (lambda y: [hx.gather_along_axis(y, at(), axis=2), hx.exp(y)])(hx.log_softmax(logits())),
    ),
    "softmax_with_replaced_places": (
        fuse_cross_entropy,
        lambda: gradient(hx.softmax(logits(), axis=-1), share(), mode="update"),
    ),
    "softmax_with_two_shares": (
        fuse_cross_entropy,
        lambda: hx.scatter_along_axis(
            hx.softmax(logits(), axis=-1) * share(), at(), -hx.input("other", (2, 3, 1)), axis=2, mode="add"
        ),
    ),
}
