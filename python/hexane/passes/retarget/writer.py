"""The builder for forms. `b` applies ops by name, and rewrites each op that the chip does not run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hexane.graph import Node, Value
from hexane.ops.compose import Operand
from hexane.ops.recording import check, recorded
from hexane.ops.rewriter import Rewriter
from hexane.passes.retarget.borders import is_border
from hexane.targets import Chip, Verdict
from hexane.validate.extents import fits
from hexane.validate.node import judge
from hexane.validate.width_slices import is_width_slice


class Rewritten(NamedTuple):
    """The result of a form. how: a description for users. hazard: how results may differ, by the chip or by
    rounding."""

    values: tuple[Value, ...]
    how: str
    hazard: str = ""


class Note(NamedTuple):
    """A node that was rewritten. verdict: why. how: a description of its form."""

    node: Node
    verdict: Verdict
    how: str
    hazard: str


# A function that rewrites a node of one op. A form returns None if it does not apply, and raises Stuck if it needs an
# op that does not run on the chip.
Form = Callable[["Writer", Node], Rewritten | None]


class Stuck(Exception):
    """A form needs a node that does not run on the chip and has no form of its own."""

    def __init__(self, node: Node, verdict: Verdict) -> None:
        super().__init__(node, verdict)
        self.node, self.verdict = node, verdict


class Writer(Rewriter):
    """The builder `b` of the forms for one node: `b.add(x, 1.0)` returns a value that the chip computes.

    notes: the rewrites so far, the outermost last. made: the new nodes that the chip runs. outside: slices, joins and
    views of tensors that are too large for the chip; the host runs them between programs. looks_through: `cut` may
    replace the views and slices that made its operand. looks_through is False if views and slices may belong to another
    marked program.
    """

    def __init__(
        self, chip: Chip, sources: tuple[str, ...], forms: Mapping[str, Sequence[Form]], looks_through: bool = True
    ) -> None:
        super().__init__(*sources, legal=self._is_native)
        self.chip, self.looks_through = chip, looks_through
        self.notes: list[Note] = []
        self.made: list[Node] = []
        self.outside: list[Node] = []
        self.blocked: Stuck | None = None
        self._forms = forms
        self._active: set[Node] = set()
        self._asked: list[dict[str, None]] = [{}]

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        """Returns the op's outputs. Raises Stuck if the chip cannot compute the op."""
        self._asked[-1][name] = None
        return super().several(name, *inputs, **attrs)

    def apply(self, name: str, *inputs: Operand, **attrs: Any) -> Any:
        """Returns the op's output, or a tuple if its record has several."""
        values = self.several(name, *inputs, **attrs)
        return values if len(values) > 1 else values[0]

    @property
    def asked(self) -> str:
        """The names of the ops that the current form has applied, each once."""
        return ", ".join(self._asked[-1])

    def again(self, node: Node, inputs: Sequence[Value | None], **changed: Any) -> tuple[Value, ...]:
        """Applies the node's op to other inputs, with these attributes changed."""
        return super().several(node.op, *inputs, **{**node.attrs, **changed})

    def write(self, node: Node) -> tuple[Value, ...] | None:
        """Returns the outputs of a node that the chip does not run, from the first form that works, or None."""
        if node in self._active or any(
            0 in t.shape for t in (*node.types, *[v.type for v in node.inputs if v is not None])
        ):
            return None  # the node is being written already, or a tensor has no elements
        self._active.add(node)
        verdict, written = judge(node, self.chip), None
        for form in self._forms.get(node.op, ()):
            before = [(kept, len(kept)) for kept in (self.notes, self.made, self.outside)]
            self._asked.append({})
            try:
                view = recorded(node)
                written = form(self, view)
                if written is not None:
                    check(view, form.__name__)
            except Stuck as stuck:
                self.blocked = stuck
                written = None
            finally:
                self._asked.pop()
            if written is not None:
                self.notes.append(Note(node, verdict, written.how, written.hazard))
                break
            for kept, length in before:
                del kept[length:]
        self._active.discard(node)
        return None if written is None else written.values

    def cut(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """Returns x[start:stop] along an axis. If x is a concatenation along that axis, the inputs are sliced instead.

        `cut` looks through slices, pads, concatenations, and views that add or drop axes of extent 1, because their
        whole results may be too large for the chip.
        """
        if (start, stop) == (0, x.shape[axis]):
            return x
        sliced = _slice_along(x, axis) if self.looks_through else None
        if sliced is not None and not fits(sliced[0].type, self.chip):
            return self.cut(sliced[0], axis, start + sliced[1], stop + sliced[1])
        found = _joined_behind(x, axis, self.chip) if self.looks_through else None
        if found is not None:
            joined, before = found
            return self.view(
                self.cut(joined, before, start, stop), (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
            )
        if x.node.op == "concat" and x.node.attrs["axis"] == axis:
            parts, offset = [], 0
            for part in x.node.inputs:
                assert part is not None
                first, last = max(start - offset, 0), min(stop - offset, part.shape[axis])
                if first < last:
                    piece = self.cut(part, axis, first, last)
                    exact = fits(x.type, self.chip) or self.chip.hazards.width_slice_limit is None
                    parts.append(piece if exact or not is_width_slice(piece) else self._by_rows(piece))
                offset += part.shape[axis]
            return self.join(parts, axis)
        if (across := self._cut_across(x, axis, start, stop)) is not None:
            return across
        begin, size = [0] * x.type.rank, list(x.shape)
        begin[axis], size[axis] = start, stop - start
        return super().several("slice_by_size", x, begin=begin, size=size)[0]

    def _cut_across(self, x: Value, axis: int, start: int, stop: int) -> Value | None:
        """%y[:, :8][.., a:b]  ->  %y[.., a:b][:, :8], if %y is in pieces

        A concatenation along another axis, and a pad with a constant, are cut in their operands, too.
        """
        if not self.looks_through or not _in_pieces(x, axis, self.chip):
            return None
        if x.node.op == "pad":
            return self._cut_margins(x, axis, start, stop)
        if x.node.op == "concat":
            parts = [self.cut(part, axis, start, stop) for part in x.node.inputs if part is not None]
            return self.join(parts, x.node.attrs["axis"])
        sliced = _slice_of(x)
        assert sliced is not None
        source, begin = sliced
        part = self.cut(source, axis, start + begin[axis], stop + begin[axis])
        begin, size = [*begin], [*x.shape]
        begin[axis], size[axis] = 0, stop - start
        return super().several("slice_by_size", part, begin=begin, size=size)[0]

    def _cut_margins(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """pad(%y)[.., a:b]  ->  concat(0, %y[.., :b])"""
        (source,), before = x.node.inputs, x.node.attrs["begin"][axis]
        assert source is not None
        ends = (0, before, before + source.shape[axis], x.shape[axis])
        parts = []
        for i, (low, high) in enumerate(pairwise(ends)):
            first, last = max(start, low), min(stop, high)
            if first < last and i == 1:
                piece = self.cut(source, axis, first - before, last - before)
                exact = self.chip.hazards.width_slice_limit is None or not is_width_slice(piece)
                parts.append(piece if exact else self._by_rows(piece))
            elif first < last:
                shape = [last - first if a == axis else d for a, d in enumerate(x.shape)]
                parts.append(self.const(np.full(shape, x.node.attrs["value"], x.dtype.numpy)))
        return self.join(parts, axis)

    def join(self, parts: Sequence[Value], axis: int) -> Value:
        """Concatenates the parts along an axis. Some chips give wrong elements if several parts are slices that begin
        inside a row. For them, such slices become slices of whole rows between transposes."""
        if len(parts) == 1:
            return parts[0]
        if self.chip.hazards.width_slice_concat and sum(map(is_width_slice, parts)) > 1:
            parts = [self._by_rows(part) if is_width_slice(part) else part for part in parts]
        return super().several("concat", *parts, axis=axis)[0]

    def _by_rows(self, part: Value) -> Value:
        """x[.., a:b]  ->  transpose(transpose(x)[.., a:b, :])"""
        x, attrs, rank = part.node.inputs[0], part.node.attrs, part.type.rank
        assert x is not None
        if part.node.op != "slice_by_size" or rank < 2 or not fits(part.type, self.chip):
            return part
        perm = (*range(rank - 2), rank - 1, rank - 2)
        begin, size = ([attrs[name][i] for i in perm] for name in ("begin", "size"))
        rows = self.apply("slice_by_size", self.apply("transpose", x, perm=perm), begin=begin, size=size)
        return self.apply("transpose", rows, perm=perm)  # type: ignore[no-any-return]

    def view(self, x: Value, shape: Sequence[int]) -> Value:
        """Returns x in another shape. Reshapes that made x are skipped if the chip, or the host between programs, can
        reshape their source directly. Raises Stuck if neither chip nor host can reshape x."""
        viewed = [x]
        while viewed[-1].node.op == "reshape" and viewed[-1].node.inputs[0] is not None:
            viewed.append(viewed[-1].node.inputs[0])
        for source in reversed(viewed[1:]):
            with suppress(Stuck):
                return self._reshaped(source, tuple(shape))
        return self._reshaped(x, tuple(shape))

    def _reshaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x if x.shape == shape else super().several("reshape", x, shape=shape)[0]

    def _is_native(self, node: Node) -> bool:
        return judge(node, self.chip).verdict == "native"

    def settled(self, node: Node) -> tuple[Value, ...]:
        kept = self.made if self.legal(node) else self.outside if is_border(node, self.chip) else None
        if kept is None:
            return self.rewritten(node)
        kept.append(node)
        return node.values

    def rewritten(self, node: Node) -> tuple[Value, ...]:
        written = self.write(node)
        if written is None:
            raise Stuck(node, judge(node, self.chip))
        return written


def _slice_of(x: Value) -> tuple[Value, list[int]] | None:
    """Returns the tensor that x is a slice of with stride 1, and the begin of each axis, or None."""
    node = x.node
    source = node.inputs[0] if node.inputs else None
    if source is None or node.op not in ("slice_by_size", "slice_by_index", "split"):
        return None
    if node.op == "split":
        begin, axis = [0] * x.type.rank, node.attrs["axis"] % x.type.rank
        begin[axis] = sum(t.shape[axis] for t in node.types[: x.output])
        return source, begin
    if node.op == "slice_by_index" and any(step != 1 for step in node.attrs["stride"]):
        return None
    return (source, list(node.attrs["begin"])) if x.type.rank == source.type.rank else None


def _slice_along(x: Value, axis: int) -> tuple[Value, int] | None:
    """Returns the tensor that x is a slice of along this axis only, with stride 1, and the begin, or None."""
    if (sliced := _slice_of(x)) is None:
        return None
    source, begin = sliced
    same = all(a == axis or d == source.shape[a] for a, d in enumerate(x.shape))
    return (source, begin[axis]) if same else None


def _has_margins(x: Value, axis: int) -> bool:
    """True for a pad by a constant along this axis only."""
    begin, end = x.node.attrs["begin"], x.node.attrs["end"]
    elsewhere = any(begin[a] or end[a] for a in range(x.type.rank) if a != axis)
    return x.node.attrs["mode"] == "constant" and not elsewhere and min(begin[axis], end[axis]) >= 0


def _in_pieces(x: Value | None, axis: int, chip: Chip) -> bool:
    """True if x comes from a concatenation along this axis that is too large for the chip.

    Slices and joins along other axes, margins and views may be between.
    """
    sliced = None if x is None else _slice_of(x)
    if x is None or (sliced is None and fits(x.type, chip)):
        return False
    if x.node.op == "concat":
        if x.node.attrs["axis"] == axis:
            return True
        return any(_in_pieces(part, axis, chip) for part in x.node.inputs)
    if x.node.op == "pad":
        return _has_margins(x, axis) and _in_pieces(x.node.inputs[0], axis, chip)
    if sliced is not None:
        return not fits(sliced[0].type, chip) and _in_pieces(sliced[0], axis, chip)
    return _joined_behind(x, axis, chip) is not None


def _joined_behind(x: Value, axis: int, chip: Chip) -> tuple[Value, int] | None:
    """Returns the concatenation or slice that x is a view of, with axes of extent 1 added or dropped, and the axis in
    it that corresponds to `axis`, or None."""
    shape, value = x.shape, x
    while (source := value.node.inputs[0] if value.node.inputs else None) is not None:
        is_whole = value.node.op in ("slice_by_size", "slice_by_index") and source.shape == value.shape
        if not is_whole and value.node.op not in ("reshape", "expand_dims", "squeeze", "identity"):
            break
        value = source
    if value is x or [d for d in value.shape if d > 1] != [d for d in shape if d > 1] or shape[axis] == 1:
        return None
    before = [a for a, d in enumerate(value.shape) if d > 1][sum(d > 1 for d in shape[:axis])]
    is_joined = value.node.op == "concat" and value.node.attrs["axis"] == before
    is_joined |= _slice_along(value, before) is not None or _in_pieces(value, before, chip)
    return (value, before) if is_joined else None
