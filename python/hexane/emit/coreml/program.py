"""Writes a function of an ML program: the operations of a graph whose nodes have forms in Core ML."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import BOOL, DTYPES, FP32, INT32, DType
from hexane.emit.coreml.control import CONTROL, TRUTH, every_node
from hexane.emit.coreml.forms import arguments_known, form_of
from hexane.emit.coreml.systems import OLDEST, OPSETS, arguments_of, least_system
from hexane.emit.coreml.values import Weights, fill_array, fill_text, fill_type
from hexane.emit.mil.names import Names, label_of
from hexane.emit.mil.write import sparse, weights_of_products
from hexane.graph import Array, Graph, Node, TensorType, Value
from hexane.mil.arguments import IN_BRACKETS, Parameter
from hexane.mil.forms import MilCall
from hexane.mil.forms.form import values_of
from hexane.mil.forms.quantised import LUT_SCALE
from hexane.ops import LEAVES, OPS
from hexane.ops.encodings import is_encoded
from hexane.ops.records.control import LOOP
from hexane.ops.rewriter import Rewriter

# Words of MIL text and names of dtypes, which no value may be named.
_WORDS = "any bool program func tensor list dict tuple true false string state"
RESERVED = frozenset((*_WORDS.split(), *DTYPES))


class Inline(NamedTuple):
    """A constant written inside the argument of an operation."""

    array: Array
    dtype: DType


_WITHOUT_FORM = (*LEAVES, *CONTROL, "write_state")
SPARSE = 18  # The first iOS version that reads weights with masks.
Given = str | Inline | tuple[str, ...]  # A value's name, a constant, or several names.


def least_system_of(graph: Graph) -> int:
    """Returns the oldest iOS version that supports all ops and ports of a graph."""
    result = OLDEST
    if any(v.dtype.name == "fp16" for v in (*graph.inputs, *(p.value for p in graph.outputs))):
        result = 16
    for node in every_node(graph):
        if node.op == "state":
            result = 18
        elif node.op not in _WITHOUT_FORM:
            form = form_of(node)
            assert form is not None, node.op
            year = least_system(form, node)
            assert year is not None
            result = max(result, year)
    return result


def for_system(graph: Graph, system: int) -> Graph:
    """Returns the graph with ops that need a newer iOS version written with other ops, as their records expand them.
    Encoded weights stay: without their encoding they would be larger."""

    def has_op(node: Node) -> bool:
        if is_encoded(node):
            return True
        form = None if node.op in _WITHOUT_FORM or OPS[node.op].expand is None else form_of(node)
        return form is None or (least_system(form, node) or OLDEST) <= system

    return graph.rewrite(Rewriter(legal=has_op).change)


def newer_than(graph: Graph, system: int) -> list[str]:
    """Returns the nodes that need a newer iOS version, with the version, in words."""
    found = []
    for node in every_node(graph):
        form = None if node.op in _WITHOUT_FORM else form_of(node)
        year = (18 if node.op == "state" else OLDEST) if form is None else least_system(form, node) or OLDEST
        if year > system:
            what = f"the encoding of weight {label_of(node, node.op)}" if is_encoded(node) else node.where
            found.append(f"{what} needs iOS{year}")
    return found


def sparse_weights(graph: Graph) -> dict[Value, tuple[Value, Value]]:
    """Returns the sparse weights of products, each with its nonzero numbers and their mask."""
    forms = [form for node in every_node(graph) if node.op not in _WITHOUT_FORM and (form := form_of(node))]
    given = dict.fromkeys(v for form in forms for argument in form.arguments.values() for v in values_of(argument))
    return {v: parts for v in weights_of_products(forms, given) if (parts := sparse(v)) is not None}


class FunctionWriter:
    """Writes a graph into a Function message. inputs, outputs, states: the ports in order, as the program's names by
    the graph's names."""

    def __init__(self, graph: Graph, system: int, weights: Weights) -> None:
        self.graph, self.system, self.weights = graph, system, weights
        self.names = Names(RESERVED)
        self.values: MutableMapping[Value, str] = {}
        self.shared: MutableMapping[Any, str] = {}
        self.computed: set[Value] = set()  # results of earlier operations
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.block: Any = None
        self.sparse = sparse_weights(graph) if system >= SPARSE else {}

    def write(self, function: Any) -> None:
        opset = OPSETS[self.system][0]
        function.opset = opset
        self.block = function.block_specializations[opset]
        for value in self.graph.inputs:
            self.inputs[_name(value)] = self.values[value] = self.names.give(_name(value))
            port = function.inputs.add(name=self.values[value])
            fill_type(port.type, value.dtype, value.shape)
        taken: dict[Value, str] = {}
        for port in self.graph.outputs:
            self.outputs[port.name] = self.names.give(port.name)
            if port.value.node.op not in (*LEAVES, "write_state") and port.value not in taken:
                taken[port.value] = self.outputs[port.name]
        for node in self.graph.nodes:
            if node.op == "state":
                name = str(node.attrs["name"])
                self.states[name] = self.names.give(name)
                kind = function.inputs.add(name=self.states[name]).type.stateType.wrappedType
                fill_type(kind, node.types[0].dtype, node.types[0].shape)
        self.values.update(taken)
        for node in self.graph.nodes:
            if node.op == "state":
                self.read_state(str(node.attrs["name"]), node.values[0])
            elif node.op == "write_state":
                self.write_state(node)
            elif node.op not in LEAVES:
                self.node(node)
                self.computed.update(node.values)
        for port in self.graph.outputs:
            if taken.get(port.value) != self.outputs[port.name]:
                self.same(port.value, self.outputs[port.name])
            self.block.outputs.append(self.outputs[port.name])
        read = _names_read(self.block)
        for value in self.graph.inputs:
            if self.values[value] not in read:  # Core ML refuses an input that nothing reads
                self.same(value, self.names.give(f"{self.values[value]}_unused"))

    def same(self, value: Value, name: str) -> None:
        """Copies a value under another name: for outputs that are an input, a constant, a state or another output, and
        for inputs that nothing reads."""
        self.operation("identity", {"x": self.tensor(value)}, ((name, value.type),))

    def node(self, node: Node) -> None:
        if node.op in CONTROL:
            self.loop(node) if node.op == LOOP else self.branch(node)
            return
        form = form_of(node)
        assert form is not None, node.op
        label = label_of(node, form.op)
        if form.op.startswith("constexpr_"):
            self.constexpr(node, form, label)
            return
        given = arguments_of(form, self.system)
        taken = [(p, given[p.name]) for p in arguments_known(form.op) if given.get(p.name) is not None]
        x = next((v for v in node.inputs if v is not None), None)
        dtype = x.dtype if x is not None else node.types[0].dtype
        inputs = {p.name: self.argument(p, v, dtype) for p, v in taken}
        self.operation(form.op, inputs, [(self.name_of(v, label), v.type) for v in node.values])

    def name_of(self, value: Value, wanted: str) -> str:
        if value not in self.values:
            self.values[value] = self.names.give(wanted)
        return self.values[value]

    def operation(self, op: str, inputs: Mapping[str, Given], results: Sequence[tuple[str, TensorType]]) -> Any:
        """Adds an operation, named after its first result."""
        operation = self.block.operations.add(type=op)
        for name, given in inputs.items():
            self.bind(operation.inputs[name], given)
        for name, kind in results:
            fill_type(operation.outputs.add(name=name).type, kind.dtype, kind.shape)
        fill_text(operation.attributes["name"], results[0][0])
        return operation

    def bind(self, argument: Any, given: Given) -> None:
        for one in (given,) if isinstance(given, (str, Inline)) else given:
            binding = argument.arguments.add()
            if isinstance(one, str):
                binding.name = one
            else:
                fill_array(binding.value, one.array, one.dtype, self.weights, self.system)

    # ---- loops and branches ----

    def branch(self, node: Node) -> None:
        """Writes a branch, whose blocks have no inputs, because they read values of the surrounding block."""
        condition, *operands = node.inputs
        assert condition is not None
        label = label_of(node, "cond")
        results = [(self.name_of(v, label), v.type) for v in node.values]
        given = {"pred": self.tensor(condition)}
        around = [self.tensor(v) for v in operands if v is not None]
        operation = self.operation("cond", given, results)
        for name in ("then", "otherwise"):
            body = node.attrs[name]
            self.inside(operation.blocks.add(), body, dict(zip(body.inputs, around, strict=True)))

    def loop(self, node: Node) -> None:
        """Writes a loop, whose first carried value is the condition of the next iteration, as in Apple's converter of
        PyTorch."""
        body, carried = node.attrs["body"], int(node.attrs["carried"])
        condition, operands = node.inputs[1], [v for v in node.inputs[2:] if v is not None]
        label = label_of(node, "while_loop")
        kinds = [TRUTH, *(v.type for v in operands[:carried])]
        first = self.constant("going", True, BOOL) if condition is None else self.tensor(condition)
        names = [self.names.give(f"{label}_going"), *(self.name_of(v, label) for v in node.values[:carried])]
        around = [self.tensor(v) for v in operands]
        operation = self.operation(
            "while_loop", {"loop_vars": (first, *around[:carried])}, list(zip(names, kinds, strict=True))
        )
        for graph in (None, body):
            block = operation.blocks.add()
            inputs = [self.names.give(f"{name}_x") for name in names]
            for name, kind in zip(inputs, kinds, strict=True):
                fill_type(block.inputs.add(name=name).type, kind.dtype, kind.shape)
            if graph is not None:
                given = [inputs[0], *inputs[1:], *around[carried:]]
                self.inside(block, graph, dict(zip(graph.inputs[1:], given, strict=True)))
                continue
            outer, self.block = self.block, block
            block.outputs.append(self.names.give(f"{label}_goes_on"))
            self.operation("identity", {"x": inputs[0]}, ((block.outputs[0], TRUTH),))
            self.block = outer

    def inside(self, block: Any, graph: Graph, given: Mapping[Value, str]) -> None:
        """Fills a block with a body. given: the names of its inputs. The names that the block defines go out of
        scope."""
        outer = self.block, self.values, self.shared, self.computed
        self.block, self.computed = block, {*self.computed, *given}
        self.values, self.shared = ChainMap({**given}, self.values), ChainMap({}, self.shared)
        own: list[str] = []
        for node in graph.nodes:
            if node.op in LEAVES or node.values[0] in self.computed:
                continue
            for value in node.values:
                self.values[value] = self.names.give(label_of(node, node.op))
            self.node(node)
            self.computed.update(node.values)
            own += [self.values[v] for v in node.values]
        for port in graph.outputs:
            name = self.values.get(port.value)
            if name not in own or name in block.outputs:
                name = self.names.give(port.name)
                self.same(port.value, name)
            block.outputs.append(name)
        self.block, self.values, self.shared, self.computed = outer

    # ---- states ----

    def read_state(self, state: str, value: Value) -> None:
        """Adds a read of the state at this point of the program. The read value gets a name of its own."""
        self.values[value] = self.names.give(f"{state}_read")
        self.operation("read_state", {"input": self.states[state]}, ((self.values[value], value.type),))

    def write_state(self, node: Node) -> None:
        """Writes the whole state with the update at its position, and reads it back if it has readers."""
        state, update, position = node.inputs
        assert state is not None
        assert update is not None
        assert position is not None
        root = state.node
        while root.op == "write_state":
            assert root.inputs[0] is not None
            root = root.inputs[0].node
        name, value = str(root.attrs["name"]), node.values[0]
        data = self.tensor(update) if update.shape == state.shape else self.updated(node, state, update, position)
        operation = self.block.operations.add(type="write_state")
        for argument, given in (("input", self.states[name]), ("data", data)):
            self.bind(operation.inputs[argument], given)
        fill_text(operation.attributes["name"], self.names.give(f"{name}_write"))
        if self.graph.use_counts()[value] > (value in self.graph.updates):
            self.read_state(name, value)

    def updated(self, node: Node, state: Value, update: Value, position: Value) -> str:
        axis, shape = int(node.attrs["axis"]), state.shape
        one, all_of = TensorType(INT32, (1,)), TensorType(INT32, (len(shape),))
        place = self.names.give("place")
        ones = self.constant("shape", (1,), INT32)
        self.operation("reshape", {"x": self.tensor(position), "shape": ones}, ((place, one),))
        end = self.names.give("end")
        size = self.constant("size", (update.shape[axis],), INT32)
        self.operation("add", {"x": place, "y": size}, ((end, one),))
        ends = []
        for at, extents in ((place, (0,) * len(shape)), (end, shape)):
            parts = tuple(at if i == axis else self.constant("extent", (d,), INT32) for i, d in enumerate(extents))
            joined: dict[str, Given] = {"values": parts, "axis": self.constant("axis", 0, INT32),
                      "interleave": self.constant("interleave", False, BOOL)}  # fmt: skip
            ends.append(self.names.give("corner"))
            self.operation("concat", joined, ((ends[-1], all_of),))
        none = self.constant("mask", (False,) * len(shape), BOOL)
        given = {"x": self.tensor(state), "update": self.tensor(update), "begin": ends[0], "end": ends[1],
                 "stride": self.constant("stride", (1,) * len(shape), INT32), "begin_mask": none, "end_mask": none,
                 "squeeze_mask": none}  # fmt: skip
        name = self.names.give("updated")
        self.operation("slice_update", given, ((name, state.type),))
        return name

    # ---- arguments ----

    def argument(self, p: Parameter, value: Any, dtype: DType) -> Given:
        if p.kind == "values":
            return tuple([self.tensor(v) for v in value])
        return self.tensor(value) if p.is_tensor else self.constant(p.name, value, _kind_of(p, dtype))

    def constant(self, wanted: str, value: Any, kind: DType | None) -> str:
        """Returns the name of a constant operation. Equal constants share one operation. kind: None if the constant is
        a text."""
        key = (kind.name if kind else "", np.array(value, kind.numpy).tobytes() if kind else "", str(value))
        if key not in self.shared:
            array = None if kind is None else np.array(value, kind.numpy)
            self.shared[key] = self.const(wanted, array, kind, str(value))
        return self.shared[key]

    def const(self, wanted: str, array: Any, kind: DType | None, text: str = "") -> str:
        name = self.names.give(wanted)
        operation = self.block.operations.add(type="const")
        value = operation.attributes["val"]
        if kind is None:
            fill_text(value, text)
        else:
            fill_array(value, array, kind, self.weights, self.system)
        fill_text(operation.attributes["name"], name)
        operation.outputs.add(name=name).type.CopyFrom(value.type)
        return name

    def tensor(self, value: Value) -> str:
        if value in self.values:
            return self.values[value]
        assert value.node.data is not None, value.node.op
        label = label_of(value.node, "const")
        if value not in self.sparse:
            self.values[value] = self.const(label, value.node.data, value.dtype)
            return self.values[value]
        numbers, mask = self.sparse[value]
        self.dense(value, label, _inline(numbers), _inline(mask))
        return self.values[value]

    # ---- encoded weights ----

    def constexpr(self, node: Node, form: MilCall, label: str) -> None:
        given = {p.name: (p, form.arguments[p.name]) for p in arguments_known(form.op)
                 if form.arguments.get(p.name) is not None}  # fmt: skip
        inline = {name: _inline(v) if isinstance(v, Value) else Inline(np.array(v, np.int32), INT32)
                  for name, (_, v) in given.items()}  # fmt: skip
        value = node.values[0]
        if form.op == "constexpr_lut_to_sparse":
            mask, numbers = (self.names.give(f"{label}_{part}") for part in ("mask", "numbers"))
            count = form.arguments["indices_nonzero_data"].type.size
            kinds = TensorType(DTYPES["uint1"], value.shape), TensorType(value.dtype, (count,))
            self.operation(form.op, inline, ((mask, kinds[0]), (numbers, kinds[1])))
            self.dense(value, label, numbers, mask)
            return
        name = self.name_of(value, label)
        if form.op in IN_BRACKETS:
            operation = self.operation(form.op, {}, ((name, value.type),))
            for key, one in inline.items():
                fill_array(operation.attributes[key], one.array, one.dtype, self.weights, self.system)
            return
        inputs: dict[str, Given] = dict(inline)
        if LUT_SCALE in form.arguments:
            inputs["lut"] = self.scaled_table(form.arguments["lut"], form.arguments[LUT_SCALE], name)
        self.operation(form.op, inputs, ((name, value.type),))

    def dense(self, value: Value, wanted: str, numbers: Given, mask: Given) -> None:
        """Adds a sparse weight: the numbers where the mask is 1, and 0 where it is 0."""
        results = ((self.name_of(value, wanted), value.type),)
        self.operation("constexpr_sparse_to_dense", {"nonzero_data": numbers, "mask": mask}, results)

    def scaled_table(self, integers: Value, scale: Value, of: str) -> str:
        """Adds the table of a palette: integers * scale."""
        name = self.names.give(f"{of}_lut")
        inputs = {"data": _inline(integers), "scale": _inline(scale)}
        self.operation("constexpr_blockwise_shift_scale", inputs, ((name, TensorType(scale.dtype, integers.shape)),))
        return name


def _inline(value: Value) -> Inline:
    assert value.node.data is not None, value.node.op
    return Inline(value.node.data, value.dtype)


def _names_read(block: Any) -> set[str]:
    """Returns the names that operations of a block and of its inner blocks read."""
    bindings = (b for o in block.operations for argument in o.inputs.values() for b in argument.arguments)
    inner = [_names_read(one) for o in block.operations for one in o.blocks]
    return {b.name for b in bindings}.union(block.outputs, *inner)


def _name(value: Value) -> str:
    return str(value.node.attrs["name"])


def _kind_of(p: Parameter, dtype: DType) -> DType | None:
    if p.kind in ("str", "dtype"):
        return None
    if p.kind in ("bool", "bools"):
        return BOOL
    if p.kind == "factor":
        return FP32
    return dtype if p.kind == "float" else INT32
