"""Bodies of loops and branches that run as often as the data decide: subgraphs as graphs of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from hexane.dtypes import BOOL, INT64
from hexane.errors import Error
from hexane.graph import Graph, Port, TensorType, Value, unique
from hexane.importers.onnx.handlers.dynamic import check_whole
from hexane.importers.onnx.node import Builder, Item, OnnxNode, TensorList, known

STEP, TRUTH = TensorType(INT64, ()), TensorType(BOOL, ())


class Body:
    """A subgraph under construction: its inputs are `given`, then what it reads of the graph around it."""

    def __init__(self, given: Sequence[tuple[str, TensorType]]) -> None:
        self.given = [unique("input", name, kind) for name, kind in given]
        self.captured: dict[Value, Value] = {}  # values outside, and the inputs that they are

    def capture(self, value: Value) -> Value:
        """The input that a value of the graph around is; a constant is itself."""
        if value.node.op == "const" or value in self.given:
            return value
        if value not in self.captured:
            check_whole([value])
            self.captured[value] = unique("input", f"captured{len(self.captured)}", value.type)
        return self.captured[value]

    def item(self, item: Item | None) -> Item | None:
        return TensorList(map(self.capture, item)) if isinstance(item, TensorList) else item and self.capture(item)

    def graph(self, outputs: Sequence[tuple[str, Value]], outer: Sequence[Value]) -> Graph:
        """outer: the values that it may read of the graph around it, each an input."""
        inputs = (*self.given, *(self.capture(value) for value in outer))
        return Graph(inputs, tuple(Port(name, value) for name, value in outputs), name="body")


class Around(Mapping[str, Item | None]):
    """The names around a subgraph, whose values become inputs of the body when they are looked up."""

    def __init__(self, scope: Mapping[str, Item | None], capture: Callable[[Item | None], Item | None]) -> None:
        self._scope, self._capture = scope, capture

    def __getitem__(self, name: str) -> Item | None:
        return self._capture(self._scope[name])

    def __contains__(self, name: object) -> bool:
        return name in self._scope

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)


def tensors(items: Sequence[Item]) -> list[Value]:
    """Raises Error for a sequence of tensors, and for a tensor of which the data decide how much is valid."""
    for item in items:
        if isinstance(item, TensorList):
            raise Error(f"got a sequence of {len(item)} tensors in a loop or branch that the data decide, need tensors")
    check_whole(items)
    return [item for item in items if isinstance(item, Value)]


def run_loop(
    b: Builder,
    n: OnnxNode,
    graph: onnx.GraphProto,
    state: Sequence[Item],
    limit: Value | None,
    condition: Value | None,
    *,
    trial: bool = False,
    scanned: Sequence[Callable[[Value, Body], Value]] | None = None,
) -> list[Value] | None:
    """Carried values and stacks of a loop that is one op. None where the body could not be translated, which has been
    reported. trial: then Error is raised instead. scanned: of Scan, what gives each further input by the step."""
    carried = tensors(state)
    body = Body([("step", STEP), ("condition", TRUTH), *((f"carried{i}", v.type) for i, v in enumerate(carried))])
    step, going, *values = body.given
    if scanned is None:
        given = [_like(b, v, graph.input[i]) for i, v in enumerate((step, going))] + values
    else:
        given = values + [piece(step, body) for piece in scanned]
    found = n.run(graph, given, captured=body, trial=trial)
    if found is None:
        return None
    results = tensors(found)
    if scanned is not None:
        results.insert(0, b.const(np.array(True)))
    if results[0].dtype is not BOOL or results[0].type.size != 1:
        raise Error(f"got a condition {results[0].type}, need one bool")
    results[0] = b.reshape(results[0], shape=())
    for i, (old, new) in enumerate(zip(carried, results[1:], strict=False)):
        if old.type != new.type:
            raise Error(
                f"carried value {i}: got {old.type} before a step and {new.type} after it, need one shape in a loop "
                "whose steps the data decide: give the trip count as a constant (input_values=), or keep the shape"
            )
    most = None if limit is None or (number := known(limit)) is None else max(int(number.reshape(())), 0)
    num_stacks = len(results) - 1 - len(carried)
    if num_stacks and most is None:
        raise Error(
            f"got {num_stacks} outputs that are stacked and a trip count that is computed at run time, need its "
            "largest value: give the trip count as a constant (input_values=), and let the condition end the loop"
        )
    starts = condition is None or bool(known(condition) if known(condition) is not None else False)
    stays = results[0] == going or bool(known(results[0]) if known(results[0]) is not None else False)
    names = ["condition", *(f"carried{i}" for i in range(len(carried))), *(f"stack{i}" for i in range(num_stacks))]
    outer = list(body.captured)
    whole = body.graph(list(zip(names, results, strict=True)), outer)
    operands = [*carried, *outer]
    if not operands:  # the op has at least one value
        operands = [b.const(np.array(0))]
        whole = Graph((*whole.inputs, unique("input", "nothing", operands[0].type)), whole.outputs, name="body")
    limit, condition = (None if v is None else b.reshape(v, shape=()) for v in (limit, condition))
    made: tuple[Value, ...] = b.loop(
        limit, condition, *operands, body=whole, carried=len(carried), most=-1 if most is None else most,
        whole=starts and stays and most is not None,
    )  # fmt: skip
    return list(made[:-1])


def _like(b: Builder, value: Value, info: onnx.ValueInfoProto) -> Value:
    """The number in the shape that the body declares, () or (1,)."""
    rank = len(info.type.tensor_type.shape.dim) if info.type.tensor_type.HasField("shape") else 0
    result: Value = b.reshape(value, shape=(1,) * min(rank, 1)) if rank else value
    return result


def run_branches(
    b: Builder, n: OnnxNode, condition: Value, graphs: Sequence[onnx.GraphProto], cheap: Callable[[Graph], bool]
) -> list[Value] | None:
    """The results of one op that computes only the chosen branch; None where both are cheap. Raises Error for branches
    that cannot be graphs of their own."""
    bodies, found = [Body([]) for _ in graphs], []
    for body, graph in zip(bodies, graphs, strict=True):
        items = n.run(graph, captured=body, trial=True)
        assert items is not None
        found.append([(f"result{i}", value) for i, value in enumerate(tensors(items))])
    outer = list(dict.fromkeys(value for body in bodies for value in body.captured))
    if not outer:
        return None
    then, otherwise = (body.graph(results, outer) for body, results in zip(bodies, found, strict=True))
    if cheap(then) and cheap(otherwise):
        return None
    made: tuple[Value, ...] = b.cond(b.reshape(condition, shape=()), *outer, then=then, otherwise=otherwise)
    return list(made)
