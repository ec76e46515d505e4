"""Values that must be constants at import."""

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.ops import LEAVES
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import fold_node

MOST_ELEMENTS = 64  # most elements of an input whose value decides shapes


class ComputedError(Error):
    """Raised for a value that must be a constant but is computed. inputs: the inputs that it is computed
    from; () if one of them is a state or a large tensor."""

    def __init__(self, message: str, inputs: tuple[str, ...]) -> None:
        super().__init__(message)
        self.inputs = inputs


def known_array(value: Value) -> Array:
    """Returns the elements of a constant. Raises ComputedError if the value is computed at run time."""
    if value.node.op == "const" and value.node.data is not None:
        return value.node.data
    if is_encoded(value.node) and (dense := fold_node(value.node)):
        assert dense[0].node.data is not None
        return dense[0].node.data
    raise ComputedError(f"got {value.type} that is computed at run time, need a constant", deciding_inputs(value))


def deciding_inputs(value: Value) -> tuple[str, ...]:
    """Returns the names of the inputs that a value is computed from; none if one of them is a state or a large
    tensor."""
    names: dict[str, None] = {}
    stack, seen = [value.node], set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op in LEAVES and node.op != "const":
            if node.op != "input" or node.types[0].size > MOST_ELEMENTS:
                return ()
            names[str(node.attrs["name"])] = None
        stack += [v.node for v in node.inputs if v is not None]
    return tuple(name for name in names if not name.endswith("?"))
