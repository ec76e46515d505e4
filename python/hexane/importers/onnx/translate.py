"""Translates the nodes of an ONNX graph in order: maps names to values and collects the problems."""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from hexane.errors import Error
from hexane.graph import Array, Value, constant, tensor_type, unique
from hexane.importers.bodies import Around
from hexane.importers.onnx.foreign import unknown
from hexane.importers.onnx.handlers import DOMAIN_OPS, ONNX_OPS
from hexane.importers.onnx.handlers.dynamic import check_whole
from hexane.importers.onnx.kept_node import KeptNode, NodeLike
from hexane.importers.onnx.node import Builder, Captured, Counter, Item, NotConstant, OnnxNode, Outputs, TensorList
from hexane.importers.onnx.order import label, reads, sort_nodes
from hexane.importers.onnx.registry import DomainOp
from hexane.importers.onnx.schema import (
    attributes,
    given_attributes,
    opset_versions,
    plain_domain,
    resolved,
    schema,
    standard_function,
)
from hexane.importers.onnx.sparse import dense_initializers
from hexane.importers.onnx.split import Tensor
from hexane.importers.onnx.tensors import check_text, read_tensor
from hexane.ops.valid_lengths import length_of

IN_FUNCTION = ""
MAX_INLINED = 1 << 17  # nodes of functions and branches, over all calls

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)

Scope = MutableMapping[str, Item | None]  # None for a result of an unsupported node, which was reported
Opsets = Mapping[str, int]
Attributes = Mapping[str, onnx.AttributeProto]


class Translator:
    """Translates the nodes of one model. `params` are initializers that become params. `problems` has a line for each
    node that cannot be translated. `computed_shapes` has, for each such node outside of branches and loops, the values
    whose unknown shapes or contents are the problem. IN_FUNCTION replaces the name of a value in a function."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None, params: Collection[str] = ()) -> None:
        self.folder = folder
        self.params = params
        self.problems: list[str] = []
        self.computed_shapes: list[list[str]] = []
        self.block = 0  # channels in a block, for onnxruntime's blocked layout
        self.functions = {(plain_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self._inlined = 0
        self._calls: list[str] = []
        self._steps: tuple[int | Counter, ...] = ()
        self._bodies: tuple[Captured, ...] = ()
        self._states: set[str] = set()
        self.updates: list[Value] = []

    def initializers(
        self,
        graph: onnx.GraphProto,
        tensors: Iterable[Tensor] | None = None,
        wanted: Collection[str] | None = None,
        keep: Callable[[Array], Array] = np.asarray,
    ) -> dict[str, Item | None]:
        """Returns the graph's constants by name, None for unwanted ones.

        tensors: the initializers of the model; None for a subgraph, which has no params. keep: returns the array that
        holds a constant.
        """
        if tensors is None:
            tensors = chain(map(Tensor, graph.initializer), dense_initializers(graph.sparse_initializer, self.folder))
            params: Collection[str] = ()
        else:
            params = self.params
        scope: dict[str, Item | None] = {}
        for tensor, raw in tensors:
            name = check_text(tensor.name)
            if not name or name in scope:
                raise Error(f"[import] got an initializer name {name!r} that is empty or there twice")
            scope[name] = None
            if wanted is None or name in wanted:
                try:
                    array = read_tensor(tensor, self.folder, raw)
                    if name in params:
                        scope[name] = unique("param", name, tensor_type(array.dtype, array.shape), array, (name,))
                    else:
                        scope[name] = constant(keep(array), (name,))
                except Error as error:
                    raise Error(f"[import] initializer {name!r}: {reason(error)}") from None
        return scope

    def nodes(
        self,
        nodes: Sequence[NodeLike],
        scope: Scope,
        opsets: Opsets,
        own: Collection[str],
        outer: Attributes | None = None,
        prefix: str = "",
        last: bytearray | None = None,
    ) -> None:
        """Translates the nodes and adds their outputs to the scope. own: names that nodes may not define. outer: a
        function's attributes.

        last: the flags of last_reads, which are consumed. A value leaves the scope after its last reader.
        """
        order = sort_nodes(nodes, scope, own, prefix)
        if not isinstance(order, range):
            last = None
        for index in order:
            proto = nodes[index]
            where = label(proto, index, prefix)
            for part in (proto.op_type, proto.domain, proto.overload):
                check_text(part)
            inputs = [scope[name] if name else None for name in proto.input]
            failed = any(name and value is None for name, value in zip(proto.input, inputs, strict=True))
            try:
                results = self._node(proto, inputs, failed, scope, opsets, outer or {}, where)
            except Error as error:
                domain = plain_domain(proto.domain)
                op = f"{domain}.{proto.op_type}" if domain else proto.op_type
                self.problems.append(f"{where}: {op} (opset {opsets.get(domain, '?')}): {reason(error)}")
                if "" not in self._calls:
                    deciding = _deciding(proto, inputs, error)
                    self.computed_shapes.append([IN_FUNCTION] if deciding and prefix else deciding)
                results = None
            for i, name in enumerate(proto.output):
                if name:
                    scope[name] = None if results is None else results[i]
            if last is not None:
                for name in reads(proto):
                    if last.pop():
                        del scope[name]

    def _node(
        self,
        proto: NodeLike,
        inputs: list[Item | None],
        failed: bool,
        scope: Scope,
        opsets: Opsets,
        outer: Attributes,
        where: str,
    ) -> Sequence[Item | None] | None:
        """Returns the outputs, at least as many as the node names, or None if an input has failed."""
        domain = plain_domain(proto.domain)
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is not None:
            given = {a.name: a for a in resolved(proto, outer)}
            return None if failed else self._call(function, inputs, given, where, proto.output)
        opset = opsets.get("", 0)
        signature = None if domain else schema(proto.op_type, opset)
        if signature is None and (foreign := DOMAIN_OPS.get((domain, proto.op_type))) is not None:
            return None if failed else self._foreign(foreign, proto, inputs, scope, opsets, outer, where)
        if domain:
            raise Error(unknown(domain, proto.op_type))
        if signature is None:
            raise Error(f"got an op that opset {opset} does not have")
        op = ONNX_OPS.get(proto.op_type)
        if op is None and not signature.has_function:
            raise Error("Hexane has no such op yet")
        if failed:
            return None
        if op is None or not op.valid_lengths:
            check_whole(inputs)
        if not signature.min_inputs <= len(inputs) <= signature.max_inputs:
            raise Error(f"got {len(inputs)} inputs, need {signature.min_inputs} to {signature.max_inputs}")
        if isinstance(proto, KeptNode) and (kept := proto.results(inputs)) is not None:
            return kept
        results: Sequence[Item | None]
        if op is None:
            given = {a.name: a for a in resolved(proto, outer)}
            whole = onnx.NodeProto()
            whole.CopyFrom(proto.proto if isinstance(proto, KeptNode) else proto)
            del whole.attribute[:]
            whole.attribute.extend(given.values())
            body = standard_function(whole, opset, inputs)
            called = self._call(body, inputs, {**signature.default_protos, **given}, where, proto.output)
            if called is None:
                return None
            results = called
        else:
            node = OnnxNode(
                proto.op_type,
                signature.version,
                tuple(inputs),
                attributes(proto, signature, outer),
                tuple(proto.output),
                partial(self._run, {}, scope, opsets, outer, where),
                self._steps,
                self._bodies,
                self._states,
                self.updates,
            )
            result = op.handler(node.version)(Builder(where), node)
            if result is None:
                return None
            results = [result] if isinstance(result, (Value, TensorList)) else list(result)
            node.check_read(op.ignores)
            if isinstance(proto, KeptNode) and not any(a.type in _GRAPHS for a in proto.attribute):
                proto.keep(inputs, results)
        _check_wanted(proto, results)
        return results

    def _foreign(
        self,
        op: DomainOp,
        proto: NodeLike,
        inputs: list[Item | None],
        scope: Scope,
        opsets: Opsets,
        outer: Attributes,
        where: str,
    ) -> Sequence[Item | None] | None:
        """Returns the outputs of an op that is registered by domain."""
        check_whole(inputs)
        own = op.schema
        if own is not None and not own.min_inputs <= len(inputs) <= own.max_inputs:
            raise Error(f"got {len(inputs)} inputs, need {own.min_inputs} to {own.max_inputs}")
        given = given_attributes(proto, outer) if own is None else attributes(proto, own, outer)
        run = partial(self._run, {}, scope, opsets, outer, where)
        node = OnnxNode(
            proto.op_type, 1, tuple(inputs), given, tuple(proto.output), run, self._steps, self._bodies,
            self._states, self.updates, self.block,
        )  # fmt: skip
        result = op.translate(Builder(where), node)
        node.check_read(op.ignores)
        results = [result] if isinstance(result, Value) else list(result)
        _check_wanted(proto, results)
        return results

    def _call(
        self,
        function: onnx.FunctionProto,
        inputs: Sequence[Item | None],
        given: Attributes,
        where: str,
        wanted: Sequence[str],
    ) -> Sequence[Item | None] | None:
        """Inlines the function's body."""
        name = f"{function.domain}.{function.name}"
        if len(inputs) > len(function.input) or len(wanted) > len(function.output):
            raise Error(f"function {name}: got {len(inputs)} inputs and {len(wanted)} outputs, "
                        f"need at most {len(function.input)} and {len(function.output)}")  # fmt: skip
        given = {**{a.name: a for a in function.attribute_proto}, **given}
        scope: Scope = dict(zip(function.input, (*inputs, *[None] * len(function.input)), strict=False))
        absent = {name for name, value in scope.items() if value is None}
        body = [_without(node, absent) for node in function.node] if absent else function.node
        opsets = opset_versions(function.opset_import)
        with self._inline(name, len(function.node)):
            reported = len(self.problems)
            self.nodes(body, scope, opsets, set(scope), given, where + "/")
        if len(self.problems) > reported:
            return None
        for name, outside in zip(function.output, wanted, strict=False):
            if outside and name not in scope:
                raise Error(f"function {function.name}: got the output {name!r}, which nothing defines")
        return [scope.get(name) for name in function.output]

    def _run(
        self,
        initializers: dict[int, Scope],
        scope: Scope,
        opsets: Opsets,
        outer: Attributes,
        where: str,
        graph: onnx.GraphProto,
        given: Sequence[Item] = (),
        step: int | Value | None = None,
        captured: Captured | None = None,
        trial: bool = False,
    ) -> Outputs:
        """Returns the outputs of a subgraph, as `Run` describes. initializers: the initializers of each subgraph, so
        that a loop reads them once."""
        if len(graph.input) != len(given):
            raise Error(f"got a subgraph with {len(graph.input)} inputs, need {len(given)}")
        if id(graph) not in initializers:
            initializers[id(graph)] = self.initializers(graph)
        own = {**initializers[id(graph)], **{i.name: v for i, v in zip(graph.input, given, strict=True)}}
        around: Any = scope if captured is None else Around(scope, captured)
        inner = ChainMap(dict(own), around)
        bodies = self._bodies if captured is None else (*self._bodies, captured)
        prefix, steps = f"{where}/{step}/" if isinstance(step, int) else f"{where}/", self._steps
        if step is not None:
            steps = (*steps, step if isinstance(step, int) else Counter(step, len(bodies)))
        reported = len(self.problems)
        with self._inline("", 1 + len(graph.node), steps, bodies):
            self.nodes(graph.node, inner, opsets, own, outer, prefix)
        if len(self.problems) > reported and trial:
            problem = self.problems[reported]
            del self.problems[reported:]
            raise Error(problem)
        if len(self.problems) > reported:
            return None
        for output in graph.output:
            if output.name not in inner:
                raise Error(f"got the output {output.name!r} of a subgraph, which nothing defines")
        values = [value for output in graph.output if (value := inner[output.name]) is not None]
        return values if len(values) == len(graph.output) else None

    @contextmanager
    def _inline(
        self,
        name: str,
        num_nodes: int,
        steps: tuple[int | Counter, ...] | None = None,
        bodies: tuple[Captured, ...] | None = None,
    ) -> Iterator[None]:
        """Bounds inlining: raises Error for recursion, and for too many inlined nodes."""
        if name and name in self._calls:
            raise Error(f"function {name} calls itself, need functions without recursion")
        self._inlined += num_nodes
        if self._inlined > MAX_INLINED:
            raise Error(f"got more than {MAX_INLINED} nodes from functions and branches, need fewer")
        around = self._steps, self._bodies
        self._calls.append(name)
        self._steps = self._steps if steps is None else steps
        self._bodies = self._bodies if bodies is None else bodies
        try:
            yield
        finally:
            self._calls.pop()
            self._steps, self._bodies = around


def _deciding(proto: NodeLike, inputs: Sequence[Item | None], error: Error) -> list[str]:
    """Returns the inputs whose contents decide shapes, or whose lengths are computed; none for other errors."""
    domain = plain_domain(proto.domain)
    op = DOMAIN_OPS.get((domain, proto.op_type)) if domain else ONNX_OPS.get(proto.op_type)
    if isinstance(error, NotConstant):
        value = inputs[error.index]
        decides = (
            op is not None and error.index in op.shape_inputs and isinstance(value, Value) and len(value.shape) < 2
        )
        return [proto.input[error.index]] if decides else []
    pairs = zip(proto.input, inputs, strict=True)
    return [name for name, value in pairs if isinstance(value, Value) and length_of(value) is not None]


def _check_wanted(proto: NodeLike, results: Sequence[Item | None]) -> None:
    """Raises Error if the model names an output that is not computed."""
    for i, name in enumerate(proto.output):
        if name and (i >= len(results) or results[i] is None):
            raise Error(f"the output {name!r} is wanted, need a model that does without this optional output")


def _without(node: onnx.NodeProto, absent: Collection[str]) -> onnx.NodeProto:
    """Returns the node without inputs that the function's call omits."""
    if not any(name in absent for name in node.input):
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.input[:] = ["" if name in absent else name for name in node.input]
    return result


def reason(error: Error) -> str:
    """Returns the message without its leading [where]."""
    text = str(error)
    return text.split("] ", 1)[1] if text.startswith("[") and "] " in text else text
