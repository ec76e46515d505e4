"""Translates a subgraph of a TFLite file to a graph, one operator after the other. Constants are folded, and variables
become states."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, Graph, Port, TensorType, Value, constant, tensor_type, unique
from hexane.graph.names import check_name
from hexane.importers.bodies import Body
from hexane.importers.coreml.known import ComputedError, known_array
from hexane.importers.likely_shapes import shape_option
from hexane.importers.signature import SpecialisationNeeded
from hexane.importers.tflite import ops as _ops
from hexane.importers.tflite.model import File, Operator, Subgraph, Tensor
from hexane.importers.tflite.refused import reason
from hexane.importers.tflite.registry import COMPLEX, HANDLERS, Context, grid_of, limits
from hexane.importers.tflite.schema import OPERATORS
from hexane.ops.compose import cast
from hexane.ops.fold import Folder
from hexane.ops.valid_lengths import with_lengths

assert _ops is not None  # registers them
_BUILTIN = frozenset(name for name, _ in OPERATORS)
UNFIT = (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError)
BOUNDED = ("LOGISTIC", "SOFTMAX", "TANH", "L2_NORMALIZATION")  # results use the whole range of the integers
MOST_DEPTH = 16  # Most levels of nested subgraphs.
MOST_OPERATORS = 200_000  # Operators in total, after loops are unrolled.


@dataclass
class Scope:
    """A subgraph in translation. values: by tensor index."""

    number: int
    graph: Subgraph
    values: dict[int, Value] = field(default_factory=dict)


class Translator:
    """states: the newest contents by name; leaves: the states at the start of a run. in_floats: quantised tensors are
    dequantised and computed in fp32; ports keep the file's dtypes."""

    def __init__(self, file: File, in_floats: bool = False) -> None:
        self.file, self.in_floats = file, in_floats
        self.states: dict[str, Value] = {}
        self.leaves: dict[str, Value] = {}
        self.resources: dict[Value, str] = {}
        self.problems: dict[str, list[str]] = {}
        self.needed: dict[str, None] = {}
        self.depth = self.count = 0
        self.at_start = False

    def graph(
        self,
        name: str,
        number: int,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, Array],
    ) -> Graph:
        """inputs, outputs: the tensors of the ports. shapes: of inputs with open axes or of unknown rank.
        values: of inputs that decide shapes, which become constants.

        Raises SpecialisationNeeded for inputs whose shapes or values must be known, UnsupportedError that lists all
        kinds of unsupported ops, and Error for a damaged file.
        """
        scope = Scope(number, self.file.subgraphs[number])
        leaves: list[Value] = []
        is_open = [
            port
            for port, i in inputs.items()
            if port not in shapes and port not in values and not _is_known(scope.graph, i)
        ]
        if is_open:
            said = " ".join(shape_option(n, scope.graph.tensors[inputs[n]].shape) for n in is_open)
            raise SpecialisationNeeded(
                f"[tflite] got no shape for {', '.join(is_open)}, whose dims are free, need it, as in {said}",
                tuple(is_open),
            )
        for port, i in inputs.items():
            tensor = scope.graph.tensors[i]
            if port in values:
                given = np.asarray(values[port]).astype(tensor.dtype.numpy)
                scope.values[i] = constant(given, (port,))
                continue
            check_name("input", port)
            shape = tuple(shapes.get(port, tensor.shape))
            if len(shape) != len(tensor.shape) and tensor.has_rank:
                raise Error(f"[tflite] {port}: got the shape {shape}, need rank {len(tensor.shape)}")
            if any(d is not None and d != e for d, e in zip(tensor.dims, shape, strict=False)) and tensor.has_rank:
                raise Error(f"[tflite] {port}: got the shape {shape}, need {tensor.dims}")
            leaf = unique("input", port, tensor_type(tensor.dtype, shape), sources=(port,))
            leaves.append(leaf)
            scope.values[i] = self._real(tensor, leaf, (port,))
        self.run(scope)
        self._finish()
        ports = []
        for port, i in outputs.items():
            check_name("output", port)
            if scope.graph.tensors[i].type == COMPLEX:
                raise UnsupportedError(f"[tflite] {port}: got complex numbers as an output, need their parts")
            try:
                value = self.value(scope, i)
            except Error as error:
                raise type(error)(f"[tflite] output {port!r}: {error}") from None
            ports.append(Port(port, self._stored(scope.graph.tensors[i], value, port)))
        updates = tuple(value for name, value in self.states.items() if value is not self.leaves[name])
        if not ports and not updates:
            raise Error("[tflite] got no outputs, need at least one")
        return with_lengths(Graph(tuple(leaves), tuple(ports), name=name, updates=updates))

    def _finish(self) -> None:
        if self.needed:
            raise SpecialisationNeeded(
                f"[tflite] got no value for {', '.join(self.needed)}, which decides shapes, need it: --value NAME=V",
                tuple(self.needed),
            )
        if self.problems:
            listed = "\n  ".join(f"{what}: {', '.join(where[:3])}" for what, where in self.problems.items())
            count = len(self.problems)
            raise UnsupportedError(
                f"[tflite] {count} kind{'s' if count > 1 else ''} of ops cannot be read:\n  {listed}"
            )

    # ---- subgraphs ----

    def run(self, scope: Scope) -> None:
        """Translates the operators in order, also after an operator with problems, to report all problems."""
        for op in scope.graph.operators:
            try:
                self.operator(scope, op)
            except ComputedError as error:
                if error.inputs:
                    self.needed.update(dict.fromkeys(error.inputs))
                else:
                    self._problem(scope, op, str(error))
                self._stand_in(scope, op)
            except (Error, MemoryError) as error:
                self._problem(scope, op, str(error))
                self._stand_in(scope, op)

    def inline(self, number: int, arguments: Sequence[Value]) -> list[Value]:
        """Returns the results of another subgraph for these arguments."""
        if not 0 <= number < len(self.file.subgraphs):
            raise Error(f"got the subgraph {number}, need one of {len(self.file.subgraphs)}")
        graph = self.file.subgraphs[number]
        if len(arguments) != len(graph.inputs):
            raise Error(f"got {len(arguments)} arguments for subgraph {number}, need {len(graph.inputs)}")
        if self.depth >= MOST_DEPTH:
            raise Error(f"got subgraphs in subgraphs, more than {MOST_DEPTH} deep")
        scope = Scope(number, graph, dict(zip(graph.inputs, arguments, strict=True)))
        self.depth += 1
        try:
            for op in graph.operators:
                self.operator(scope, op)
            return [self.value(scope, i) for i in graph.outputs]
        finally:
            self.depth -= 1

    @contextmanager
    def body(self, body: Body) -> Iterator[None]:
        """Collects the subgraphs read in this context as the body of a loop or branch that depends on data. Raises
        Error if a subgraph writes a variable."""
        outer = self.states
        self.states = inner = {name: body.capture(value) for name, value in outer.items()}
        begins = dict(inner)
        try:
            yield
            if self.states != begins:
                raise Error("got a variable that a loop or branch writes, need a known condition, or no variables")
        finally:
            self.states = outer

    def value(self, scope: Scope, i: int) -> Value:
        """Returns the newest value of a tensor. Raises Error if no operator has computed the tensor yet."""
        if i in scope.values:
            return scope.values[i]
        tensor = scope.graph.tensors[i]
        if tensor.is_variable:
            return self.state(scope, i)
        data = tensor.data
        if data is None:
            raise Error(f"got the tensor {tensor.name!r} before it is computed, need operators in order")
        scope.values[i] = self._real(tensor, constant(data, (tensor.name,)), (tensor.name,))
        return scope.values[i]

    # ---- dequantised tensors ----

    def _real(self, tensor: Tensor, x: Value, sources: tuple[str, ...]) -> Value:
        """Returns a quantised tensor dequantised. Returns x itself for tensors without quantisation or quantised in
        blocks, and if the file is not opened in floats."""
        grid = tensor.grid
        if not self.in_floats or grid is None or grid.blocks is not None or x.dtype.kind not in ("int", "uint"):
            return x
        shape = [1] * len(x.shape)
        if grid.scales.size > 1:
            shape[grid.axis] = grid.scales.size
        scales = grid.scales.astype(np.float64).reshape(shape if grid.scales.size > 1 else ())
        zeros = grid.zeros.astype(np.float64).reshape(shape if grid.zeros.size > 1 else ())
        if x.node.op == "const":
            data = (known_array(x).astype(np.float64) - zeros) * scales
            return constant(data.astype(np.float32), sources)
        b = Folder(*sources)
        centred = b.sub(cast(b, x, FP32), b.const(zeros.astype(np.float32)))
        return b.mul(centred, b.const(scales.astype(np.float32)))

    def _stored(self, tensor: Tensor, x: Value, port: str) -> Value:
        """Returns a result in the file's dtype."""
        if not _is_quantised(tensor) or x.dtype.kind != "float":
            return x
        grid, b = grid_of(tensor), Folder(port)
        low, high = limits(tensor.dtype)
        steps = b.add(b.round(b.mul(x, float(np.float32(1) / grid.scale))), float(grid.zero))
        return cast(b, b.clip(steps, alpha=float(low), beta=float(high)), tensor.dtype)

    def _within(self, scope: Scope, op: Operator, tensor: Tensor, x: Value) -> Value:
        """Returns a quantised result that is computed in floats, clamped to the range of its integers, which may be the
        only trace of a fused ReLU. Returns x itself if the op or an operand already keeps this range."""
        if not self.in_floats or x.dtype.kind != "float" or not _is_quantised(tensor) or op.name in BOUNDED:
            return x
        grid = grid_of(tensor)
        for i in op.inputs:
            other = scope.graph.tensors[i].grid if i >= 0 else None
            if other is not None and other.scales.size == 1 and (other.scale, other.zero) == (grid.scale, grid.zero):
                return x
        low, high = ((end - grid.zero) * float(grid.scale) for end in limits(tensor.dtype))
        return Folder(tensor.name).clip(x, alpha=low, beta=high)

    # ---- states ----

    def state_name(self, scope: Scope, i: int) -> str:
        tensor = scope.graph.tensors[i]
        name = tensor.name or f"state_{i}"
        return name if scope.number == 0 else f"{name}_{scope.number}"

    def state(self, scope: Scope, i: int) -> Value:
        """Returns a variable tensor. An int8 variable starts at its zero point, any other at 0."""
        tensor = scope.graph.tensors[i]
        name = self.state_name(scope, i)
        if name not in self.states:
            zero = tensor.grid.zero if tensor.type == "INT8" and tensor.grid is not None else 0
            if self.in_floats and _is_quantised(tensor):
                self.declare(name, np.zeros(tensor.shape, np.float32))
            else:
                self.declare(name, np.full(tensor.shape, zero, tensor.dtype.numpy))
        return self.states[name]

    def declare(self, name: str, first: Array) -> None:
        check_name("state", name)
        held = first.reshape(first.shape or (1,))  # a scalar is stored as a tensor of one element
        leaf = unique("state", name, tensor_type(held.dtype, held.shape), held, (name,))
        self.states[name] = self.leaves[name] = leaf

    def assign(self, name: str, value: Value, sources: tuple[str, ...]) -> None:
        """Assigns the state's new contents."""
        b, old = Folder(*sources), self.states[name]
        held = b.reshape(value, shape=(1,)) if not value.shape else value
        if old.type != held.type:
            raise Error(f"got {value.type} for the state {name!r}, need {old.type}")
        self.states[name] = b.write_state(old, held, b.const(np.int32(0)), axis=0)

    def handle(self, name: str) -> Value:
        """Returns a placeholder for the variable of this name."""
        for found, known in self.resources.items():
            if known == name:
                return found
        made = unique("input", f"resource {len(self.resources)}?", tensor_type(FP32, (1,)))
        self.resources[made] = name
        return made

    def initialise(self, number: int) -> None:
        """Runs a subgraph that assigns the initial contents of variables, which must be constants."""
        self.at_start = True
        try:
            self.inline(number, [])
        finally:
            self.at_start = False

    def _variable(self, handle: Value) -> str:
        if handle not in self.resources:
            raise Error("got no variable, need the result of VAR_HANDLE")
        return self.resources[handle]

    def read_variable(self, handle: Value, tensor: Tensor) -> Value:
        """Returns a variable's contents. A variable without initial contents starts at 0."""
        name = self._variable(handle)
        if name not in self.states:
            self._begin(name, tensor_type(tensor.dtype, tensor.shape))
        found = self.states[name]
        return found if tensor.shape or found.shape != (1,) else Folder(name).reshape(found, shape=())

    def _begin(self, name: str, kind: TensorType) -> None:
        """Declares a variable with initial contents of 0."""
        self.declare(name, np.zeros(kind.shape, kind.dtype.numpy))

    def assign_variable(self, handle: Value, value: Value, sources: tuple[str, ...]) -> None:
        name = self._variable(handle)
        if self.at_start:
            if name not in self.states:
                self.declare(name, known_array(value))
            return
        if name not in self.states:
            self._begin(name, value.type)
        self.assign(name, value, sources)

    # ---- operators ----

    def operator(self, scope: Scope, op: Operator) -> None:
        """Translates an operator. Raises Error for operands that do not fit. Other exceptions that a damaged file
        causes are raised as Error, too."""
        self.count += 1
        if self.count > MOST_OPERATORS:
            raise Error(f"got more than {MOST_OPERATORS} operators, loops unrolled, need fewer")
        read = None if op.is_custom else HANDLERS.get(op.name)
        if op.is_custom and op.name in HANDLERS and op.name not in _BUILTIN:
            read = HANDLERS[op.name]
        if read is None:
            raise UnsupportedError(f"got {reason(op)}")
        sources = tuple(_label(scope, i) for i in op.outputs[:1] if i >= 0) or (op.name,)
        try:
            made = read(Context(Folder(*sources), op, scope, self))
            found = [made] if isinstance(made, Value) else list(made or ())
            if len(found) != len(op.outputs):
                raise Error(f"got {len(op.outputs)} results, need {len(found)}")
            for i, value in zip(op.outputs, found, strict=True):
                if i < 0:
                    continue
                tensor = scope.graph.tensors[i]
                value = self._within(scope, op, tensor, value)
                in_fp32 = tensor.type == COMPLEX or (self.in_floats and _is_quantised(tensor))
                wanted = FP32 if in_fp32 else None if tensor.type == "RESOURCE" else tensor.dtype
                if wanted is not None and value.dtype is not wanted:
                    raise Error(f"got a result of {tensor.type}, need {value.dtype}")
                scope.values[i] = value
        except UNFIT as error:
            raise Error(f"got operands that do not fit: {error}") from None

    def _problem(self, scope: Scope, op: Operator, text: str) -> None:
        what = text.partition("] ")[2] if text.startswith("[") and "] " in text else text
        key = what if what.startswith(f"{op.name}: ") else f"{op.name}: {what}"
        self.problems.setdefault(key, []).append(_label(scope, op.outputs[0]) if op.outputs else op.name)

    def _stand_in(self, scope: Scope, op: Operator) -> None:
        for i in op.outputs:
            if i < 0:
                continue
            tensor = scope.graph.tensors[i]
            try:
                dtype = tensor.dtype
            except UnsupportedError:
                dtype = FP32
            scope.values[i] = unique("input", f"t{i}?", tensor_type(dtype, tensor.shape))


def _is_quantised(tensor: Tensor) -> bool:
    return tensor.grid is not None and tensor.grid.scales.size == 1 and tensor.type in ("INT8", "UINT8", "INT16")


def _label(scope: Scope, i: int) -> str:
    return scope.graph.tensors[i].name or f"tensor {i}"


def _is_known(graph: Subgraph, i: int) -> bool:
    tensor = graph.tensors[i]
    return None not in tensor.dims
