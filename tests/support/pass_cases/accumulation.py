"""Cases of the pass that adds products where their sum lies."""

from typing import Any

import hexane as hx
from hexane.passes.fuse.fuse_accumulation import fuse_accumulation
from hexane.passes.legalize.keep_halves import keep_halves
from pass_cases.graphs import Case
from pass_cases.layout import HOST, selected
from pass_cases.rewriting import tap


def summed(product: hx.Tensor, *more: hx.Tensor) -> list[hx.Tensor]:
    s = hx.state("s", product.shape)
    return selected(
        hx.write_state(s, hx.accumulate_step(s, product, hx.input("first", (1,), "bool")), hx.const(0)), *more
    )


def product(**attrs: Any) -> hx.Tensor:
    return hx.matmul(hx.input("x", (7, 3)), hx.input("y", (7, 4)), transpose_x=True, **attrs)


def read_twice() -> list[hx.Tensor]:
    one = product()
    return summed(one, one * 2.0)


def halves() -> list[hx.Tensor]:
    made = summed(hx.matmul(tap("x", 3), tap("y", 4), transpose_x=True))
    graph = fuse_accumulation(hx.graph(made), HOST)
    return [hx.Tensor(port.value) for port in graph.outputs]


FIRES: dict[str, Case] = {
    "fuse_accumulation": (fuse_accumulation, lambda: summed(product())),
    "keep_halves_of_an_accumulation": (keep_halves, halves),
}

LEAVES: dict[str, Case] = {
    "a_sum_of_a_product_that_others_read": (fuse_accumulation, read_twice),
    "a_sum_of_no_product": (fuse_accumulation, lambda: summed(hx.input("x", (3, 4)))),
    "a_sum_of_a_product_with_a_bias": (
        fuse_accumulation,
        lambda: summed(hx.linear(hx.input("x", (7, 3)), hx.input("w", (4, 3)), hx.input("b", (4,)))),
    ),
}
