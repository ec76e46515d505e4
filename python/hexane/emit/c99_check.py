"""Loads a plan in the C99 runtime, and names the step that the runtime refuses."""

from typing import Any

from hexane.emit.plan import ABSENT
from hexane.emit.plan_view import PlanView
from hexane.emit.prepare import prepared
from hexane.system.c99_library import Loaded, Refusal, own_library, row_kernels

_ROWS = 1  # Index of the axis of rows.
_MOST_BYTES = 2**31 - 1  # Most bytes of a memory; the loader refuses a larger memory by its size alone.
_WHOLE = (
    "the C99 runtime computes it as a whole only; "
    "compile the model with --runtime c99 (hx.Memory(runtime='c99')), which leaves it whole"
)


def why_refused(data: bytes, view: PlanView | None = None) -> str:
    """Returns why the C99 runtime refuses a valid plan of supported kernels: "step 3, conv at a.py:7: got X, need Y";
    "" for a plan that it accepts. view: of `prepared(data)`, if known."""
    view = view or PlanView(prepared(data))
    streamed = {port.space for port in (*view.inputs, *view.outputs) if port.rows}
    spaces = [
        (0 if i in streamed or s.bytes > _MOST_BYTES else s.bytes, s.alignment) for i, s in enumerate(view.spaces)
    ]
    refusal = Loaded(own_library(), view.data, spaces).refusal
    return "" if refusal is None else _text(refusal, PlanView(data), view)


def _text(refusal: Refusal, named: PlanView, view: PlanView) -> str:
    """Returns the error text of a refusal. named: the plan with the names of layers; view: the same steps as the
    runtime reads them."""
    step = refusal.row if refusal.section == "steps" else None
    if refusal.section == "tensors":
        step = _step_of(view, refusal.row)
    if step is None:
        where = f"{refusal.section.removesuffix('s')} {refusal.name or refusal.row}"
        return f"{where}: got a plan that the C99 runtime does not run, {_need(refusal.what)}{view.way_to_host()}"
    row = view.sections["steps"][step]
    kernel, axis = view.string(row["kernel"]), int(row["cut_axis"])
    cut = "" if axis < 0 else " row by row" if axis == _ROWS else f" in parts of axis {axis}"
    got = f"{named.step_text(step)}: got {kernel} of {_operands(view, row)}{cut}"
    if axis == _ROWS and kernel not in row_kernels():
        return f"{got}, need whole tensors: {_WHOLE}"
    of = "" if refusal.name in ("", kernel, "unary") else f" ({refusal.name})"
    return f"{got}{of}, which the C99 runtime does not run, {_need(refusal.what)}{view.way_to_host()}"


def _need(what: str) -> str:
    """Returns the part "need X" of an error text, from the runtime's text: "need X", "part: need X", or an unsupported
    property."""
    part, separator, need = what.rpartition(": need ")
    if separator:
        return f"need {part}: {need}"
    return what if what.startswith("need ") else f"need what it runs ({what})"


def _step_of(view: PlanView, tensor: int) -> int | None:
    for i, row in enumerate(view.sections["steps"]):
        if tensor in _ids(view, row):
            return i
    return None


def _ids(view: PlanView, row: Any) -> list[int]:
    first = int(row["operands"])
    result: list[int] = view.sections["operands"][first : first + int(row["num_inputs"] + row["num_outputs"])].tolist()
    return result


def _operands(view: PlanView, row: Any) -> str:
    """Returns a step's operand types as text: fp32[1, 8, 8, 4], fp32[4] -> fp32[1, 8, 8, 4]."""
    texts = [_type(view, id) for id in _ids(view, row)]
    inputs = int(row["num_inputs"])
    return f"{', '.join(texts[:inputs])} -> {', '.join(texts[inputs:])}"


def _type(view: PlanView, id: int) -> str:
    if id == ABSENT:
        return "none"
    row = view.sections["tensors"][id]
    shape, strides = (row[field][: row["rank"]].tolist() for field in ("shape", "strides"))
    size, gaps = view.item_bytes[int(row["dtype"])], False
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        gaps = gaps or (extent != 1 and stride != size)
        size *= extent
    return f"{view.string(row['dtype'])}{shape}{' with strides' * gaps}"
