"""The op for a segment of the engine in the host's graph: it runs a program that the device has loaded."""

from typing import Any, NamedTuple, NoReturn

from hexane.dtypes import dtype
from hexane.errors import Error
from hexane.graph import Node, TensorType
from hexane.ops.attributes import flag, integer, texts
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

PROGRAM = "ane.program"


class Layout(NamedTuple):
    """The layout of a tensor in a surface: strides and the surface's size, in bytes."""

    strides: tuple[int, ...]
    bytes: int


def type_text(kind: TensorType) -> str:
    """Returns a type in the form of the op's attribute: "fp16 1 3 8 8"."""
    return " ".join([kind.dtype.name, *map(str, kind.shape)])


def layout_text(layout: Layout) -> str:
    """Returns a layout in the form of the op's attribute: the size, then the strides."""
    return " ".join(map(str, [layout.bytes, *layout.strides]))


def layouts(node: Node) -> tuple[list[Layout], list[Layout]]:
    """Returns the layouts of the program's inputs and outputs."""
    result = []
    for line in node.attrs["layouts"]:
        size, *strides = map(int, str(line).split())
        result.append(Layout(tuple(strides), size))
    return result[: len(node.inputs)], result[len(node.inputs) :]


def _shapes(*_: Shape, types: tuple[str, ...], **__: Any) -> list[Shape]:
    return [tuple(map(int, line.split()[1:])) for line in types]


def _dtypes(*_: Any, types: tuple[str, ...], **__: Any) -> list[Any]:
    return [dtype(line.split()[0]) for line in types]


def _only_on_a_device(*_: Any, **__: Any) -> NoReturn:
    raise Error("[ane.program] got a call of the reference, need the device that has loaded it")


OPS = (
    Op(
        name=PROGRAM,
        doc=(
            "Runs number `index` of the programs compiled for this network. types: of the program's outputs; layouts: "
            "of its inputs and outputs. late: the program takes long, so the readers of its results run last. "
            "multiply_adds: per call; moved: bytes that a call reads and writes, including its weights."
        ),
        inputs=("x*",), 
        attrs={
            "index": integer(), "types": texts(), "layouts": texts(), "late": flag(False), "multiply_adds": integer(0),
            "moved": integer(0),
        },
        shape=_shapes, dtype=_dtypes, kernel="program", level="kernel", ref=_only_on_a_device, cases=(),
    ),
)  # fmt: skip
