"""Sums of products over named axes."""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.ops.attributes import text
from hexane.ops.compose import Builder
from hexane.ops.dtype_rules import numeric
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any
Term = tuple[Value, str]  # A tensor, and a letter for each of its axes.
DIGITS = "01234567"  # Letters of the axes that "..." stands for, from the last axis.


def parsed(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str, dict[str, int]]:
    """Returns the letters of every operand and of the output, with "..." expanded, and the extent of each letter."""
    left, arrow, out = equation.partition("->")
    names = left.split(",")
    if len(names) != len(shapes):
        raise Error(f"equation: got {equation!r} for {len(shapes)} inputs, need a term for each")
    terms = []
    for term, shape in zip(names, shapes, strict=True):
        letters = term.replace("...", "", 1)
        spare = len(shape) - len(letters)
        if not all(c.isascii() and c.isalpha() for c in letters) or spare < 0 or (spare and letters == term):
            raise Error(f"equation: got {term!r} for the shape {shape}, need a letter for each axis, or ...")
        terms.append(term.replace("...", DIGITS[:spare][::-1]))
    dots = max((t for t in ("".join(c for c in term if c in DIGITS) for term in terms)), key=len)
    out = out.replace("...", dots, 1) if arrow else dots + _implied(terms)
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, extent in zip(term, shape, strict=True):
            known = extents.setdefault(letter, extent)
            if known != extent and not (letter in DIGITS and 1 in (known, extent)):
                raise Error(f"equation: got the extents {known} and {extent} for {letter!r}, need one")
            extents[letter] = extent if known == 1 else known
    if len(set(out)) != len(out) or any(c not in extents for c in out) or not set(dots) <= set(out):
        raise Error(
            f"equation: got {equation!r}, need an output with distinct letters of the inputs, and with ... if an input has it"
        )
    return terms, out, extents


def _implied(terms: Sequence[str]) -> str:
    """Returns the output's letters for an equation without an arrow: the letters that occur once, in alphabetical
    order."""
    letters = [c for c in "".join(terms) if c not in DIGITS]
    return "".join(sorted(c for c in letters if letters.count(c) == 1))


def _shape(*shapes: Shape, equation: str) -> Shape:
    _, out, extents = parsed(equation, shapes)
    return tuple(extents[c] for c in out)


def _plain(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"equation": attrs["equation"].replace(" ", "")}


def _expand(b: Builder, *values: Value, equation: str) -> Value:
    """Multiplies two operands at a time, each first summed over axes that neither another term nor the output has."""
    names, out, extents = parsed(equation, [x.shape for x in values])
    terms = [_diagonal(b, (x, letters)) for x, letters in zip(values, names, strict=True)]
    terms = [_widened(b, term, extents) for term in terms]
    rest = [letters for _, letters in terms]
    terms = [_summed(b, t, out + "".join(rest[:i] + rest[i + 1 :])) for i, t in enumerate(terms)]
    rest = [letters for _, letters in terms]
    x, letters = reduce(
        lambda a, c: _product(b, a, c[1], out + "".join(rest[c[0] + 1 :])), list(enumerate(terms))[1:], terms[0]
    )
    return _arranged(b, (x, letters), out)


def _diagonal(b: Builder, term: Term) -> Term:
    """Returns the diagonal for a letter that occurs twice: its two axes are merged, and every (extent + 1)th element is
    kept."""
    x, letters = term
    while len(set(letters)) < len(letters):
        twice = next(c for c in letters if letters.count(c) > 1)
        first, second = letters.index(twice), letters.rindex(twice)
        others = [i for i in range(len(letters)) if i not in (first, second)]
        lead, extent = tuple(x.shape[i] for i in others), x.shape[first]
        x = b.reshape(b.transpose(x, perm=(*others, first, second)), shape=(*lead, extent * extent))
        begin, stride = (0,) * len(x.shape), (*[1] * len(lead), extent + 1)
        x = b.slice_by_index(x, begin=begin, end=x.shape, stride=stride)
        letters = "".join(letters[i] for i in others) + twice
    return x, letters


def _widened(b: Builder, term: Term, extents: Mapping[str, int]) -> Term:
    """Broadcasts axes of "..." whose extent is 1 in this operand but not in others."""
    x, letters = term
    shape = tuple(extents[c] for c in letters)
    return (x if x.shape == shape else b.broadcast_to(x, shape=shape)), letters


def _summed(b: Builder, term: Term, needed: str) -> Term:
    x, letters = term
    axes = tuple(i for i, c in enumerate(letters) if c not in needed)
    if not axes:
        return term
    return b.reduce_sum(x, axes=axes, keep_dims=False), "".join(c for c in letters if c in needed)


def _arranged(b: Builder, term: Term, order: str) -> Value:
    x, letters = term
    return x if letters == order else b.transpose(x, perm=[letters.index(c) for c in order])


def _product(b: Builder, first: Term, second: Term, needed: str) -> Term:
    """Multiplies (batch, rows, summed) @ (batch, summed, columns). Batch axes are in both operands and in the
    result."""
    (x, p), (y, q) = first, second
    shared = [c for c in p if c in q]
    batch = "".join(c for c in shared if c in needed)
    summed = "".join(c for c in shared if c not in needed)
    rows, columns = "".join(c for c in p if c not in q), "".join(c for c in q if c not in p)
    extent = {**dict(zip(p, x.shape, strict=True)), **dict(zip(q, y.shape, strict=True))}

    def sizes(*groups: str) -> tuple[int, ...]:
        return (*(extent[c] for c in batch), *(prod(extent[c] for c in group) for group in groups))

    x, y = _arranged(b, first, batch + rows + summed), _arranged(b, second, batch + summed + columns)
    letters = batch + rows + columns
    if x.dtype.kind == "float":
        y = b.matmul(b.reshape(x, shape=sizes(rows, summed)), b.reshape(y, shape=sizes(summed, columns)))
    else:  # the matrix product supports only floats
        y = b.mul(b.reshape(x, shape=(*sizes(rows, summed), 1)), b.reshape(y, shape=(*sizes("", summed, columns),)))
        y = b.reduce_sum(y, axes=(len(batch) + 1,), keep_dims=False)
    return b.reshape(y, shape=tuple(extent[c] for c in letters)), letters


def _einsum(*values: Array, equation: str) -> Array:
    return np.einsum(equation, *values, optimize=True)


OPS = (
    Op(
        name="einsum",
        doc="Products of tensors, summed over the axes that the output lacks, in the notation of `numpy.einsum`. For "
            "example, 'bij,bjk->bik' is a batched matrix product. The ellipsis '...' stands for axes that broadcast; a "
            "repeated letter in a term selects the diagonal.",
        inputs=("values*",), attrs={"equation": text()}, canonical=_plain, shape=_shape, dtype=numeric, expand=_expand,
        ref=_einsum, onnx=("Einsum",),
        cases=(
            Case(((2, 3, 4), (2, 4, 5)), {"equation": "bij,bjk->bik"}),
            Case(((2, 5, 3, 4), (2, 6, 3, 4)), {"equation": "bqhd,bkhd->bhqk"}),
            Case(((3, 4), (4, 5), (5, 2)), {"equation": "ij, jk, kl"}),
            Case(((2, 3, 4, 4),), {"equation": "...ii->...i"}),
            Case(((2, 1, 3, 4), (5, 4, 3)), {"equation": "...ij,...jk->k..."}),
            Case(((3, 4), (4,)), {"equation": "ij,j->i"}, dtypes=("int32",), low=-9, high=9),
            Case(((3, 4, 5),), {"equation": "ijk->j"}),
        ),
    ),
)  # fmt: skip
