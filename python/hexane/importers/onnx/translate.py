"""The walk over an ONNX graph: names to values, node by node, problems collected on the way."""

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from hexane.errors import Error
from hexane.graph import Value, constant
from hexane.importers.onnx.branches import choose
from hexane.importers.onnx.handlers import HANDLERS
from hexane.importers.onnx.handlers.dynamic import carrying, check_whole
from hexane.importers.onnx.load import check_text, read_tensor
from hexane.importers.onnx.loops import unroll_loop, unroll_scan
from hexane.importers.onnx.node import Builder, Item, OnnxNode, TensorList
from hexane.importers.onnx.order import label, reads, sort_nodes
from hexane.importers.onnx.schema import attributes, opset_versions, plain_domain, resolved, schema, standard_function
from hexane.importers.onnx.split import Tensor
from hexane.ops import OPS

PLAIN = {name: op.name for op in OPS.values() for name in op.onnx}
CARRYING = carrying(PLAIN)
MAX_INLINED = 1 << 17  # nodes of functions and branches, all calls together

Scope = MutableMapping[str, Item | None]  # None: its node could not be translated, which has been reported
Opsets = Mapping[str, int]
Attributes = Mapping[str, onnx.AttributeProto]


class Translator:
    """Translates the nodes of one model. `problems` has a line for each node that cannot be."""

    def __init__(self, model: onnx.ModelProto, folder: Path | None) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self.functions = {(plain_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self._inlined = 0
        self._calls: list[str] = []
        self._steps: tuple[int, ...] = ()

    def initializers(
        self, graph: onnx.GraphProto, tensors: Iterable[Tensor] | None = None, wanted: Collection[str] | None = None
    ) -> dict[str, Item | None]:
        """The graph's constants by name, None for those that are not wanted.

        `tensors` are its initializers where they are not in the graph.
        """
        if graph.sparse_initializer:
            raise Error("[import] got sparse initializers, need dense ones")
        scope: dict[str, Item | None] = {}
        for tensor, raw in map(Tensor, graph.initializer) if tensors is None else tensors:
            name = check_text(tensor.name)
            if not name or name in scope:
                raise Error(f"[import] got an initializer name {name!r} that is empty or there twice")
            scope[name] = None
            if wanted is None or name in wanted:
                try:
                    scope[name] = constant(read_tensor(tensor, self.folder, raw), (name,))
                except Error as error:
                    raise Error(f"[import] initializer {name!r}: {reason(error)}") from None
        return scope

    def nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        scope: Scope,
        opsets: Opsets,
        own: Collection[str],
        outer: Attributes | None = None,
        prefix: str = "",
        last: bytearray | None = None,
    ) -> None:
        """Adds the nodes' outputs to the scope. `own` are names they must not define; `outer` a function's attributes.

        `last`, of last_reads, is used up: a value that no later node reads leaves the scope.
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
                found = self._node(proto, inputs, failed, scope, opsets, outer or {}, where)
            except Error as error:
                domain = plain_domain(proto.domain)
                op = f"{domain}.{proto.op_type}" if domain else proto.op_type
                self.problems.append(f"{where}: {op} (opset {opsets.get(domain, '?')}): {reason(error)}")
                found = None
            for i, name in enumerate(proto.output):
                if name:
                    scope[name] = None if found is None else found[i]
            if last is not None:
                for name in reads(proto):
                    if last.pop():
                        del scope[name]

    def _node(
        self,
        proto: onnx.NodeProto,
        inputs: list[Item | None],
        failed: bool,
        scope: Scope,
        opsets: Opsets,
        outer: Attributes,
        where: str,
    ) -> Sequence[Item | None] | None:
        """The outputs, at least as many as are named; None where an input has failed before."""
        domain = plain_domain(proto.domain)
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is not None:
            given = {a.name: a for a in resolved(proto, outer)}
            return None if failed else self._call(function, inputs, given, where, proto.output)
        if domain:
            raise Error(f"got an op of the domain {domain!r}, need standard ONNX ops")
        opset = opsets.get("", 0)
        found = schema(proto.op_type, opset)
        if found is None:
            raise Error(f"got an op that opset {opset} does not have")
        handler, plain = HANDLERS.get(proto.op_type), PLAIN.get(proto.op_type)
        if not (handler or plain or found.has_function or proto.op_type in ("If", "Loop", "Scan")):
            raise Error("Hexane has no such op yet")
        if failed:
            return None
        if proto.op_type not in CARRYING and proto.op_type not in ("If", "Loop", "Scan"):
            check_whole(inputs)
        if not found.min_inputs <= len(inputs) <= found.max_inputs:
            raise Error(f"got {len(inputs)} inputs, need {found.min_inputs} to {found.max_inputs}")
        node = OnnxNode(
            proto.op_type,
            found.version,
            tuple(inputs),
            attributes(proto, found, outer),
            tuple(proto.output),
            self._steps,
        )
        results: Sequence[Item | None]
        if proto.op_type == "If":
            branch = self._branch(node, scope, opsets, outer, where)
            if branch is None:
                return None
            results = branch
        elif proto.op_type in ("Loop", "Scan"):
            unrolled = self._unrolled(node, scope, opsets, outer, where)
            if unrolled is None:
                return None
            results = unrolled
        elif handler is not None:
            made = handler(Builder(where), node)
            results = [made] if isinstance(made, (Value, TensorList)) else list(made)
            node.check_read()
        elif plain is not None:
            if plain == "identity":
                results = [node.item(0)]
            else:
                results = [Builder(where).apply(plain, *map(node.optional, range(len(inputs))), **node.attrs)]
        else:
            given = {a.name: a for a in resolved(proto, outer)}
            whole = onnx.NodeProto()
            whole.CopyFrom(proto)
            del whole.attribute[:]
            whole.attribute.extend(given.values())
            body = standard_function(whole, opset, inputs)
            called = self._call(body, inputs, {**found.default_protos, **given}, where, proto.output)
            if called is None:
                return None
            results = called
        for name in proto.output[len(results) :]:
            if name:
                raise Error(f"the output {name!r} is wanted, need a model that does without this optional output")
        return results

    def _call(
        self,
        function: onnx.FunctionProto,
        inputs: Sequence[Item | None],
        given: Attributes,
        where: str,
        wanted: Sequence[str],
    ) -> Sequence[Item | None] | None:
        """The function's body in place of the call."""
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

    def _branch(
        self, node: OnnxNode, scope: Scope, opsets: Opsets, outer: Attributes, where: str
    ) -> Sequence[Item | None] | None:
        """The branch that the condition chooses: at import where it is a constant, else of both results of each output."""
        condition = node.value(0)
        if condition.type.size != 1:
            raise Error(f"got a condition of {condition.type.size} elements, need 1")

        def run(name: str) -> Sequence[Item | None] | None:
            return self._inner(node.attrs[name], scope, opsets, outer, where)

        if condition.node.op == "const":
            return run("then_branch" if node.scalar(0) else "else_branch")
        chosen, other = run("then_branch"), run("else_branch")
        if chosen is None or other is None:
            return None
        return choose(Builder(where), condition, chosen, other)

    def _inner(
        self, graph: onnx.GraphProto, scope: Scope, opsets: Opsets, outer: Attributes, where: str
    ) -> Sequence[Item | None] | None:
        """The outputs of a branch; None where a node of it could not be translated."""
        if graph.input:
            raise Error("got a branch with inputs, need none")
        inner: Scope = {**scope, **self.initializers(graph)}
        reported = len(self.problems)
        with self._inline("", len(graph.node)):
            own = {tensor.name for tensor in graph.initializer}
            self.nodes(graph.node, inner, opsets, own, outer, where + "/")
        if len(self.problems) > reported:
            return None
        for output in graph.output:
            if output.name not in inner:
                raise Error(f"got the branch output {output.name!r}, which nothing defines")
        return [inner[output.name] for output in graph.output]

    def _unrolled(
        self, node: OnnxNode, scope: Scope, opsets: Opsets, outer: Attributes, where: str
    ) -> Sequence[Item] | None:
        """The outputs of a Loop or Scan."""
        constants: Scope = {}

        def run(graph: onnx.GraphProto, given: Sequence[Item], step: int) -> Sequence[Item] | None:
            if step == 0:
                constants.update(self.initializers(graph))
            own = {**constants, **dict(zip((i.name for i in graph.input), given, strict=True))}
            reported = len(self.problems)
            inner = ChainMap(dict(own), scope)
            with self._inline("", 1 + len(graph.node), (step,)):
                self.nodes(graph.node, inner, opsets, own, outer, f"{where}/{step}/")
            if len(self.problems) > reported:
                return None
            found = [inner.get(output.name) for output in graph.output]
            if None in found:
                raise Error(f"got the body output {graph.output[found.index(None)].name!r}, which nothing defines")
            return [value for value in found if value is not None]

        unroll = unroll_loop if node.op == "Loop" else unroll_scan
        return unroll(Builder(where), node, run)

    @contextmanager
    def _inline(self, name: str, num_nodes: int, step: tuple[int, ...] = ()) -> Iterator[None]:
        """Keeps inlining finite: no recursion, and no doubling at every level."""
        if name and name in self._calls:
            raise Error(f"function {name} calls itself, need functions without recursion")
        self._inlined += num_nodes
        if self._inlined > MAX_INLINED:
            raise Error(f"got more than {MAX_INLINED} nodes from functions and branches, need fewer")
        around = self._steps
        self._calls.append(name)
        self._steps += step
        try:
            yield
        finally:
            self._calls.pop()
            self._steps = around


def _without(node: onnx.NodeProto, absent: Collection[str]) -> onnx.NodeProto:
    """The node with the inputs that a call has left out left out."""
    if not any(name in absent for name in node.input):
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.input[:] = ["" if name in absent else name for name in node.input]
    return result


def reason(error: Error) -> str:
    """The message without its leading [where], which the caller knows better."""
    text = str(error)
    return text.split("] ", 1)[1] if text.startswith("[") and "] " in text else text
