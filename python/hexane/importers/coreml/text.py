"""Converts the MIL text of a compiled model to programs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane import _core
from hexane.dtypes import DTYPES, integers
from hexane.errors import Error
from hexane.importers.coreml.package import Package
from hexane.importers.coreml.program import Block, Constant, Declared, Operand, Operation, Program
from hexane.mil.text import parse_functions
from hexane.mil.tree import BlobFile, Function, Literal, Name, NestedBlock, Statement, StateType, Type


def read_text(package: Package) -> Mapping[str, Program]:
    """Returns the functions of a MIL text as programs, by name."""
    functions = parse_functions(package.text, str(package.path))
    return {function.name: _program(package, function) for function in functions}


def _program(package: Package, function: Function) -> Program:
    opset = function.opset.removeprefix("ios")
    if not opset.isdigit():
        raise Error(f"[coreml] {package.path}: got the opset {function.opset!r}, need ios15 or newer")
    return Program(function.name, int(opset), _block(package, function))


def _block(package: Package, block: Function | NestedBlock) -> Block:
    operations = tuple(_operation(package, statement) for statement in block.statements)
    inputs = tuple((name, _declared(kind)) for kind, name in block.inputs)
    return Block(inputs, operations, tuple(name for name, _ in block.outputs))


def _declared(kind: Type) -> Declared:
    if kind.dtype == "string":
        return Declared(None)
    if kind.dtype not in DTYPES:
        raise Error(f"[coreml] got the dtype {kind.dtype!r}, need one that is known")
    return Declared(DTYPES[kind.dtype], tuple(kind.shape or ()), isinstance(kind, StateType))


def _operation(package: Package, statement: Statement) -> Operation:
    inputs = {
        name: tuple(_operand(package, item) for item in (given if not isinstance(given, (Name, Literal)) else (given,)))
        for name, given in {**statement.attributes, **statement.arguments}.items()
        if name != "name"
    }
    label = statement.attributes.get("name")
    results = tuple((name, _declared(kind)) for kind, name in statement.results)
    blocks = tuple(_block(package, block) for block in statement.blocks)
    return Operation(statement.op, inputs, results, str(label.value) if isinstance(label, Literal) else "", blocks)


def _operand(package: Package, given: Name | Literal) -> Operand:
    if isinstance(given, Name):
        return given.name
    kind, value = _declared(given.type), given.value
    if kind.dtype is None:
        return Constant(value)
    shape = tuple(d or 0 for d in kind.dims or ())
    if isinstance(value, BlobFile):
        name, data = _core.blob_read(package.weights(value.path), value.offset)
        if name != kind.dtype.name:
            raise Error(f"[coreml] got {name} at offset {value.offset}, need {kind.dtype}")
        return Constant(data.view(kind.dtype.numpy).reshape(shape), kind.dtype, (value.path, value.offset))
    return Constant(_array(value, kind.dtype.numpy, shape), kind.dtype)


def _array(value: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    try:
        exact = dtype.kind in "iu" and not isinstance(value, np.ndarray)
        return (integers(value, dtype) if exact else np.asarray(value).astype(dtype)).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise Error(f"[coreml] got {value!r}, need numbers of the shape {shape}") from None
