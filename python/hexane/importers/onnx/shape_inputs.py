"""Finds graph inputs whose values decide shapes, by a backward walk from inputs that hold shapes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import onnx

from hexane.importers.onnx.handlers import DOMAIN_OPS, ONNX_OPS
from hexane.importers.onnx.order import reads
from hexane.importers.onnx.schema import fixed_body, plain_domain

SHAPE_ONLY = ("Shape", "Size")  # ops whose results depend on the input's shape only


def find_shape_inputs(
    nodes: Sequence[onnx.NodeProto],
    functions: Iterable[onnx.FunctionProto],
    inputs: Collection[str],
    conditions: bool = True,
) -> set[str]:
    """Returns the shape-deciding inputs. conditions: also the inputs that choose branches."""
    return shape_names(nodes, functions, conditions) & set(inputs)


def shape_names(
    nodes: Sequence[onnx.NodeProto], functions: Iterable[onnx.FunctionProto], conditions: bool = True
) -> set[str]:
    """Returns all shape-deciding values, by name. conditions: also the values that choose branches."""
    bodies = {(plain_domain(f.domain), f.name): f for f in functions}
    known: dict[tuple[str, str], Collection[int]] = {}

    def positions(node: onnx.NodeProto) -> Collection[int]:
        if node.op_type == "If" and (not conditions or _has_one_type(node)):
            return ()
        if node.op_type == "Loop" and plain_domain(node.domain) == "" and _keeps_shapes(node):
            return ()
        key = plain_domain(node.domain), node.op_type
        if key not in known:
            known[key] = ()  # ends recursive calls; recursion is an error later
            known[key] = of(*key)
        return known[key]

    def of(domain: str, op: str) -> Collection[int]:
        body = bodies.get((domain, op))
        if body is None and (domain, op) in DOMAIN_OPS and (domain or op not in ONNX_OPS):
            return DOMAIN_OPS[domain, op].shape_inputs
        if body is None and not domain:
            if op in ONNX_OPS:
                return ONNX_OPS[op].shape_inputs
            body = fixed_body(op)
        if body is None:
            return ()
        names = _depended_on(body.node, positions)
        return [i for i, name in enumerate(body.input) if name in names]

    return _depended_on(nodes, positions)


def _has_one_type(branch: onnx.NodeProto) -> bool:
    """True if both branches declare the same dtypes and fixed shapes for their results."""
    sides = [attr.g.output for attr in branch.attribute if attr.type == attr.GRAPH]
    return len(sides) == 2 and len(sides[0]) == len(sides[1]) and all(map(_is_one_type, *sides))


def _is_one_type(x: onnx.ValueInfoProto, y: onnx.ValueInfoProto) -> bool:
    tensors = [value.type.tensor_type for value in (x, y)]
    shapes = [[d.dim_value if d.HasField("dim_value") else -1 for d in t.shape.dim] for t in tensors]
    fixed = all(t.HasField("shape") and t.elem_type == tensors[0].elem_type for t in tensors)
    return fixed and shapes[0] == shapes[1] and min(shapes[0], default=1) > 0


def _keeps_shapes(loop: onnx.NodeProto) -> bool:
    """True if no shape depends on the number of steps: the loop has no stacked outputs, and no carried value grows."""
    for attr in loop.attribute:
        if attr.type == attr.GRAPH:
            carried = {value.name for value in attr.g.input[2:]}
            grows = any(
                "Sequence" in str(node.op_type) or (node.op_type == "Concat" and carried.intersection(node.input))
                for node in (n for outer in attr.g.node for n in (outer, *inner_nodes(outer)))
            )
            return len(attr.g.output) == 1 + len(carried) and not grows
    return False


def _depended_on(nodes: Sequence[onnx.NodeProto], positions: Callable[[onnx.NodeProto], Iterable[int]]) -> set[str]:
    """Returns all names from which the inputs at those positions are computed."""
    pending = [
        n.input[i] for node in nodes for n in (node, *inner_nodes(node)) for i in positions(n) if i < len(n.input)
    ]
    # `makers` has the index of a top-level node, because `nodes` may be a file that is parsed at each access.
    makers: dict[str, int | onnx.NodeProto] = {}
    for index, node in enumerate(nodes if pending else ()):
        makers.update((name, index) for name in node.output if name)
        makers.update((name, n) for n in inner_nodes(node) for name in n.output if name)
    names: set[str] = set()
    while pending:
        name = pending.pop()
        if name and name not in names:
            names.add(name)
            maker = makers.get(name)
            if maker is not None:
                node = nodes[maker] if isinstance(maker, int) else maker
                pending += reads(node) if node.op_type not in SHAPE_ONLY else ()
    return names


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a node's subgraphs, inner subgraphs included."""
    for attr in node.attribute:
        if attr.type == attr.GRAPH:
            for inner in attr.g.node:
                yield inner
                yield from inner_nodes(inner)
