"""Einsum as transposes, sums and matrix products, two operands at a time."""

from functools import reduce

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.node import Builder, Handler, OnnxNode, Result

Term = tuple[Value, str]  # a tensor and a letter for each of its axes


def einsum(b: Builder, n: OnnxNode) -> Result:
    equation = n.attrs["equation"].replace(" ", "")
    left, arrow, out = equation.partition("->")
    names = left.split(",")
    if "." in equation or len(names) != len(n.inputs):
        raise Error(f"equation: got {equation!r} for {len(n.inputs)} inputs, need plain letters for each")
    if not arrow:
        letters = left.replace(",", "")
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    extents: dict[str, int] = {}
    terms: list[Term] = []
    for i, letters in enumerate(names):
        x = n.value(i)
        if len(set(letters)) != len(letters) or len(letters) != len(x.shape) or not all(map(str.isalpha, letters)):
            raise Error(f"equation: got {letters!r} for the shape {x.shape}, need distinct letters for its axes")
        for letter, extent in zip(letters, x.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise Error(f"equation: got the extents {extents[letter]} and {extent} for {letter!r}, need one")
        terms.append((x, letters))
    if len(set(out)) != len(out) or any(c not in extents for c in out):
        raise Error(f"equation: got the output {out!r}, need distinct letters of the inputs")
    terms = [_summed(b, t, out + "".join(o for j, (_, o) in enumerate(terms) if j != i)) for i, t in enumerate(terms)]
    rest = [letters for _, letters in terms]
    x, letters = reduce(
        lambda a, c: _product(b, a, c[1], out + "".join(rest[c[0] + 1 :])), list(enumerate(terms))[1:], terms[0]
    )
    return _arranged(b, (x, letters), out)


def _summed(b: Builder, term: Term, needed: str) -> Term:
    """Without the axes nobody else reads."""
    x, letters = term
    axes = tuple(i for i, c in enumerate(letters) if c not in needed)
    if not axes:
        return term
    return b.reduce_sum(x, axes=axes, keep_dims=False), "".join(c for c in letters if c in needed)


def _arranged(b: Builder, term: Term, order: str) -> Result:
    x, letters = term
    return x if letters == order else b.transpose(x, perm=[letters.index(c) for c in order])


def _product(b: Builder, first: Term, second: Term, needed: str) -> Term:
    """(shared and kept, rows, summed) @ (shared and kept, summed, columns)."""
    (x, p), (y, q) = first, second
    shared = [c for c in p if c in q]
    batch = "".join(c for c in shared if c in needed)
    summed = "".join(c for c in shared if c not in needed)
    rows, columns = "".join(c for c in p if c not in q), "".join(c for c in q if c not in p)
    extent = {**dict(zip(p, x.shape, strict=True)), **dict(zip(q, y.shape, strict=True))}

    def size(letters: str) -> int:
        result = 1
        for c in letters:
            result *= extent[c]
        return result

    kept = tuple(extent[c] for c in batch)
    x = b.reshape(_arranged(b, first, batch + rows + summed), shape=(*kept, size(rows), size(summed)))
    y = b.reshape(_arranged(b, second, batch + summed + columns), shape=(*kept, size(summed), size(columns)))
    letters = batch + rows + columns
    return b.reshape(b.matmul(x, y), shape=tuple(extent[c] for c in letters)), letters


HANDLERS: dict[str, Handler] = {"Einsum": einsum}
