"""Finds known failures of Core ML in a package (`targets/shared/packages.toml`)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from hexane.dtypes import FP16, FP32, INT32
from hexane.importers.coreml.description import Feature
from hexane.importers.coreml.model import CoreMLModel
from hexane.importers.coreml.opsets import FIRST
from hexane.importers.coreml.program import Constant, Declared, Operation, Program, every_operation
from hexane.report.rules import Filled, Finding, finding_of
from hexane.targets.rules import Rule, package_rules

# Ops that compute no floats.
NO_WORK = ("const", "cast", "classify", "identity", "shape", "read_state", "write_state")
Broken = tuple[str, str, Filled]  # op, place, values for the placeholders of the rule's texts
Test = Callable[["_Function", Rule], Iterator[Broken]]
OfOperation = Callable[["_Function", Operation, Rule], Filled | None]


def find_package_rules(model: CoreMLModel, name: str) -> tuple[Finding, ...]:
    """Returns the rules that a function of a model breaks, in the order of the file, with one finding per rule and kind
    of op. Of a pipeline: the rules that any of its models breaks."""
    if model.stages:
        return tuple(
            finding for part in model.stages.values() for finding in find_package_rules(part, part.functions[0])
        )
    function = _Function(model, name)
    findings: dict[tuple[str, str], Finding] = {}
    for rule in package_rules().values():
        for op, where, filled in function.broken(rule):
            key = rule.name, op
            known = findings.get(key)
            findings[key] = (
                finding_of(rule, op, where, filled) if known is None else replace(known, count=known.count + 1)
            )
    return tuple(findings.values())


def _place(operation: Operation) -> str:
    return operation.label or next((name for name, _ in operation.results), "")


@dataclass(frozen=True)
class _Function:
    model: CoreMLModel
    name: str

    @cached_property
    def program(self) -> Program:
        return self.model.program(self.name)

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations; empty for a neural network, whose layers have other names."""
        return [] if self.model.package.is_network else list(every_operation(self.program.block))

    @cached_property
    def makers(self) -> Mapping[str, Operation]:
        return {name: operation for operation in self.operations for name, _ in operation.results}

    @cached_property
    def types(self) -> Mapping[str, Declared]:
        results = {name: kind for operation in self.operations for name, kind in operation.results}
        return {**dict(self.program.block.inputs), **results}

    @cached_property
    def features(self) -> Mapping[str, Feature]:
        return self.model.features(self.name, self.program)

    @cached_property
    def states(self) -> Mapping[str, Declared]:
        return {name: kind for name, kind in self.program.block.inputs if kind.is_state}

    def kind(self, operation: Operation, argument: str) -> Declared | None:
        """Returns the type of an argument; None if it is omitted."""
        given = operation.inputs.get(argument, ())
        if not given:
            return None
        first = given[0]
        return Declared(first.dtype) if isinstance(first, Constant) else self.types.get(first)

    def constant(self, operation: Operation, argument: str) -> Any:
        """Returns the value of a constant argument; None for others."""
        given = operation.inputs.get(argument, ())
        if not given:
            return None
        first = given[0]
        if isinstance(first, Constant):
            return first.value
        maker = self.makers.get(first)
        return self.constant(maker, "val") if maker is not None and maker.op == "const" else None

    def maker(self, operation: Operation, argument: str) -> str:
        """Returns the op that computes an argument; "" if none does."""
        given = operation.inputs.get(argument, ())
        maker = self.makers.get(given[0]) if given and isinstance(given[0], str) else None
        return "" if maker is None else maker.op

    def broken(self, rule: Rule) -> Iterator[Broken]:
        if rule.name in _WHOLE:
            yield from _WHOLE[rule.name](self, rule)
            return
        test = _OPERATIONS.get(rule.name)
        for operation in self.operations:
            if operation.op in rule.ops:
                filled = {} if test is None else test(self, operation, rule)
                if filled is not None:
                    yield operation.op, _place(operation), filled


# ---- tests of the whole function: programs, inputs and states ----


def _fp32_program(f: _Function, rule: Rule) -> Iterator[Broken]:
    work = [o for o in f.operations if o.op not in NO_WORK]
    slow = [o for o in work if any(kind.dtype is FP32 for _, kind in o.results)]
    if slow:
        yield "program", _place(slow[0]), {"count": len(slow), "total": len(work)}


def _infinite_constants(f: _Function, rule: Rule) -> Iterator[Broken]:
    operations = []
    for operation in f.operations:
        given = [g for args in operation.inputs.values() for g in args if isinstance(g, Constant) and g.dtype is FP16]
        if any(np.isinf(np.asarray(g.value, np.float32)).any() for g in given):
            operations.append(operation)
    if operations:
        yield "program", _place(operations[0]), {"count": len(operations)}


def _late_ops(f: _Function, rule: Rule) -> Iterator[Broken]:
    for op in dict.fromkeys(o.op for o in f.operations):
        since = FIRST.get(op, 0)
        if since > f.program.opset:
            first = next(o for o in f.operations if o.op == op)
            yield "program", _place(first), {"op": op, "since": since, "system": f.program.opset}


def _large_program(f: _Function, rule: Rule) -> Iterator[Broken]:
    size = sum(size for _, _, size in f.model.encodings()) >> 20
    if size > rule.number("most"):
        yield "program", "", {"megabytes": size}


def _ranged(feature: Feature) -> bool:
    return feature.is_open and not feature.sizes


def _ranged_shapes(f: _Function, rule: Rule) -> Iterator[Broken]:
    for name, feature in f.features.items():
        if _ranged(feature):
            yield "input", name, {}


def _many_shapes(f: _Function, rule: Rule) -> Iterator[Broken]:
    for name, feature in f.features.items():
        if len(feature.sizes) > rule.number("most"):
            yield "input", name, {"count": len(feature.sizes)}


def _mixed_shapes(f: _Function, rule: Rule) -> Iterator[Broken]:
    ranged = [name for name, feature in f.features.items() if _ranged(feature)]
    if ranged and any(feature.is_open and feature.sizes for feature in f.features.values()):
        yield "program", ranged[0], {}


def _open_state(f: _Function, rule: Rule) -> Iterator[Broken]:
    if any(feature.is_open for feature in f.features.values()):
        for name in f.states:
            yield "state", name, {}


def _state_dtype(f: _Function, rule: Rule) -> Iterator[Broken]:
    for name, kind in f.states.items():
        if kind.dtype is not FP16:
            yield "state", name, {"dtype": kind.dtype}


def _state_rows(f: _Function, rule: Rule) -> Iterator[Broken]:
    multiple = rule.number("multiple")
    for name, kind in f.states.items():
        extent = kind.dims[-1] if kind.dims else None
        if extent is not None and extent % multiple:
            yield "state", name, {"extent": extent, "padded": ceil(extent / multiple) * multiple}


def _int8_ports(f: _Function, rule: Rule) -> Iterator[Broken]:
    for name, feature in f.features.items():
        if feature.dtype.name == "int8":
            yield "input", name, {}


_WHOLE: Mapping[str, Test] = {
    "fp32_program": _fp32_program,
    "infinite_constants": _infinite_constants,
    "late_ops": _late_ops,
    "large_program": _large_program,
    "ranged_shapes": _ranged_shapes,
    "many_shapes": _many_shapes,
    "mixed_shapes": _mixed_shapes,
    "open_state": _open_state,
    "state_dtype": _state_dtype,
    "state_rows": _state_rows,
    "int8_ports": _int8_ports,
}


# ---- tests of one op ----


def _scaled_palette(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    return {} if "constexpr_blockwise_shift_scale" in (f.maker(o, "lut"), _user(f, o)) else None


def _user(f: _Function, o: Operation) -> str:
    """Returns the op that scales a palette's result; "" if none does."""
    name = o.results[0][0]
    return next((u.op for u in f.operations if name in u.inputs.get("data", ())), "")


def _stateful_palette(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    lut = f.constant(o, "lut")
    if not f.states or not isinstance(lut, np.ndarray):
        return None
    entries = lut.shape[-2] if f.program.opset >= 18 and lut.ndim > 1 else lut.shape[0]
    return {} if entries == rule.number("entries") else None


def _same_lower_rows(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    kind = o.results[0][1]
    return {} if f.constant(o, "pad_type") == "same_lower" and kind.dims is not None and len(kind.dims) == 3 else None


def _several_squeezed(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    axes = f.constant(o, "axes")
    return {} if axes is not None and np.size(axes) > 1 else None


def _integer_linear(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    return {} if o.results[0][1].dtype is INT32 else None


def _gru_of_one(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    kind = f.kind(o, "x")
    return {} if kind is not None and kind.dims is not None and len(kind.dims) == 3 and kind.dims[1] == 1 else None


def _half_prelu(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    return {} if o.results[0][1].dtype is FP16 else None


def _attention_of_many(f: _Function, o: Operation, rule: Rule) -> Filled | None:
    name, kind = o.results[0]
    given = o.inputs.get("x", ("",))[0]
    masked = f.makers.get(given) if isinstance(given, str) else None
    if masked is None or masked.op != "add" or "matmul" not in (f.maker(masked, "x"), f.maker(masked, "y")):
        return None
    is_read = any(u.op == "matmul" and name in u.inputs.get("x", ()) for u in f.operations)
    batch = kind.dims[0] if kind.dims and len(kind.dims) > 2 else None
    return {"batch": batch} if is_read and batch is not None and batch >= rule.number("least") else None


_OPERATIONS: Mapping[str, OfOperation] = {
    "scaled_palette": _scaled_palette,
    "stateful_palette": _stateful_palette,
    "same_lower_rows": _same_lower_rows,
    "several_squeezed": _several_squeezed,
    "integer_linear": _integer_linear,
    "gru_of_one": _gru_of_one,
    "half_prelu": _half_prelu,
    "attention_of_many": _attention_of_many,
}
