"""One program for several listed shapes of an input: merges the programs of all shapes.

A dim that differs between the shapes becomes unknown. A constant that differs must be the shape of reshapes and differ
in one entry, which becomes -1. All other parts that depend on the shape are errors, reported in one message.
"""

from collections.abc import Sequence
from typing import Any

from hexane.errors import Error
from hexane.graph import Graph

MOST_SHAPES = 128  # Core ML's limit
WHERE = "[emit] --input-shape"


def varied_input(graphs: Sequence[Graph]) -> str:
    """Returns the one input whose shape differs between the graphs. Raises Error if several inputs differ, or inputs
    differ otherwise."""
    first = {name: value.shape for name, value in _inputs(graphs[0]).items()}
    names: dict[str, None] = {}
    for graph in graphs[1:]:
        inputs = _inputs(graph)
        if inputs.keys() != first.keys():
            raise Error(f"{WHERE}: got the inputs {', '.join(inputs)} for another shape, need {', '.join(first)}")
        names |= dict.fromkeys(name for name, value in inputs.items() if value.shape != first[name])
    if len(names) != 1:
        raise Error(f"{WHERE}: got {len(names)} inputs of several shapes ({', '.join(names)}), need one")
    (name,) = names
    shapes = [_inputs(graph)[name].shape for graph in graphs]
    if len({len(shape) for shape in shapes}) > 1:
        raise Error(f"{WHERE} {name}: got {', '.join(map(str, shapes))}, need shapes of as many axes")
    if len(shapes) > MOST_SHAPES:
        raise Error(f"{WHERE} {name}: got {len(shapes)} shapes, need {MOST_SHAPES} at most")
    return name


def _inputs(graph: Graph) -> dict[str, Any]:
    return {str(v.node.attrs["name"]): v for v in graph.inputs}


def join(function: Any, others: Sequence[Any]) -> None:
    """Changes a Function message to one for all shapes. others: the network's messages for further shapes.

    Raises Error that lists the parts that depend on the shape."""
    problems: dict[str, None] = {}
    block = _block(function)
    for other in others:
        for port, its in zip(function.inputs, other.inputs, strict=True):
            _join_type(port.type, its.type)
        of_other = _block(other)
        if [o.type for o in block.operations] != [o.type for o in of_other.operations]:
            raise Error(f"{WHERE}: got other ops for another shape, need one program: give one shape")
        for operation, its in zip(block.operations, of_other.operations, strict=True):
            if problem := _join_operation(block, operation, its):
                problems[problem] = None
    if problems:
        raise Error(f"{WHERE}: got numbers that depend on the shape, need none, or one shape: {', '.join(problems)}")


def _block(function: Any) -> Any:
    return function.block_specializations[function.opset]


def _join_type(kind: Any, other: Any) -> None:
    for dim, its in zip(kind.tensorType.dimensions, other.tensorType.dimensions, strict=True):
        if dim.HasField("constant") and dim.constant.size != its.constant.size:
            dim.ClearField("constant")
            dim.unknown.SetInParent()


def _join_operation(block: Any, operation: Any, other: Any) -> str:
    """Merges an operation. Returns the part of the operation that depends on the shape, "" for none."""
    if operation.type == "const":
        return _join_constant(block, operation, other)
    name = operation.outputs[0].name if operation.outputs else operation.type
    if list(operation.blocks) != list(other.blocks):
        return f"a block of {operation.type} at {name}"
    for key, argument in operation.inputs.items():
        if argument != other.inputs[key]:
            return f"{key} of {operation.type} at {name}"
    for result, its in zip(operation.outputs, other.outputs, strict=True):
        if result.name != its.name or len(result.type.tensorType.dimensions) != len(its.type.tensorType.dimensions):
            return f"{operation.type} at {name}"
        _join_type(result.type, its.type)
    return ""


def _join_constant(block: Any, constant: Any, other: Any) -> str:
    value, its = constant.attributes["val"], other.attributes["val"]
    if value == its:
        return ""
    name = constant.outputs[0].name
    users = [
        (operation, key)
        for operation in block.operations
        for key, argument in operation.inputs.items()
        if any(binding.name == name for binding in argument.arguments)
    ]
    shape, of_other = value.immediateValue.tensor.ints.values, its.immediateValue.tensor.ints.values
    differ = [i for i, (a, b) in enumerate(zip(shape, of_other, strict=False)) if a not in (b, -1)]
    is_shape = all(operation.type == "reshape" and key == "shape" for operation, key in users)
    free = sum(d == -1 for d in shape)
    if is_shape and len(shape) == len(of_other) and len(differ) + free <= 1:
        for i in differ:
            shape[i] = -1
        return ""
    first = next(((o.type, o.outputs[0].name, key) for o, key in users if o.outputs), ("const", name, "val"))
    return f"{first[2]} of {first[0]} at {first[1]}"


def describe_shapes(described: Any, name: str, shapes: Sequence[Sequence[int]]) -> None:
    """Adds the shapes of an input to the description, the default first."""
    feature = next(port for port in described.input if port.name == name)
    if feature.type.HasField("imageType"):
        for shape in shapes:
            feature.type.imageType.enumeratedSizes.sizes.add(height=shape[-2], width=shape[-1])
        return
    for shape in shapes:
        feature.type.multiArrayType.enumeratedShapes.shapes.add(shape=list(shape))


def forget_open_shapes(described: Any, function: Any) -> None:
    """Removes the shape of outputs with unknown dims from the description."""
    kinds = {port.name: port.type for operation in _block(function).operations for port in operation.outputs}
    for port in described.output:
        dims = kinds[port.name].tensorType.dimensions if port.name in kinds else ()
        if any(dim.HasField("unknown") for dim in dims):
            port.type.multiArrayType.ClearField("shape")
