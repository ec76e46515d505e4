"""The registry of ONNX ops: one record for each op, which `@onnx_op` makes for a function that translates the op.

An op of the catalogue needs no registration if its record names an equal ONNX op (`Op.onnx`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx

from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.schema import Schema, own_schema
from hexane.ops import OPS

Handler = Callable[[Builder, OnnxNode], Result]


@dataclass(frozen=True, slots=True)
class OnnxOp:
    """The importer's record of an ONNX op.

    translate: returns the outputs, or None if a subgraph has failed, which was reported.
    translate_6: like translate, for opset 6, if opset 7 changed the op's meaning.
    shape_inputs: the inputs that must be constants, because shapes depend on their values.
    valid_lengths: the data may decide how much of an input is valid. `translate` ignores extents or handles valid
        lengths. Ops of the catalogue refuse lengths that they cannot pass on.
    ignores: inputs (by number) and attributes (by name) that may be given and not read: they have no meaning for
        inference, for the dtypes that Hexane has, or with another attribute. An error names any other unread input or
        attribute.
    """

    translate: Handler
    translate_6: Handler | None = None
    shape_inputs: tuple[int, ...] = ()
    valid_lengths: bool = False
    ignores: tuple[int | str, ...] = ()

    def handler(self, version: int) -> Handler:
        """Returns the translation of the op with the meaning it has since opset `version`."""
        return self.translate if version >= 7 or self.translate_6 is None else self.translate_6


def _plain(name: str) -> Handler:
    def translate(b: Builder, n: OnnxNode) -> Result:
        attrs = {key: n.attrs[key] for key in n.attrs}
        return b.apply(name, *map(n.optional, range(len(n.inputs))), **attrs)

    return translate


ONNX_OPS = {name: OnnxOp(_plain(op.name), valid_lengths=True) for op in OPS.values() for name in op.onnx}
_registered: set[tuple[str, int | None]] = set()


@dataclass(frozen=True, slots=True)
class DomainOp(OnnxOp):
    """An op without a schema in ONNX or in an older opset. `schema` None allows any attributes and inputs."""

    schema: Schema | None = None


# Ops by domain and name. onnxruntime's optimiser writes ops of its own into the default domain.
DOMAIN_OPS: dict[tuple[str, str], DomainOp] = {}


def onnx_op(*names: str, until: int | None = None, **facts: Any) -> Callable[[Handler], Handler]:
    """Registers a function as the translation of these ops. `facts` are fields of OnnxOp.

    With `until=6` the function translates the op of opset 6. The op of opset 7 must be registered, or equal an op of
    the catalogue. Raises ValueError for a name, input or attribute unknown to ONNX, and for a second registration.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            if (name, until) in _registered:
                raise ValueError(f"@onnx_op({name!r}): got a second registration, need one")
            _registered.add((name, until))
            if until is None:
                ONNX_OPS[name] = OnnxOp(handler, **facts)
                _check(name, ONNX_OPS[name])
            elif until != 6 or facts or name not in ONNX_OPS:
                raise ValueError(f"@onnx_op({name!r}, until={until}): need until=6, no facts, and the newer op before")
            else:
                ONNX_OPS[name] = replace(ONNX_OPS[name], translate_6=handler)
        return handler

    return register


def domain_op(
    domain: str,
    *names: str,
    inputs: tuple[int, int] = (0, 1 << 16),
    attributes: Mapping[str, Any] | None = None,
    required: Collection[str] = (),
    **facts: Any,
) -> Callable[[Handler], Handler]:
    """Registers a function as the translation of ops of another domain. `facts` are fields of OnnxOp.

    inputs: the lowest and the highest number of inputs. attributes: for each the default, or if there is none the type:
    int, float, str, tuple[int, ...]. attributes=None allows all.
    """

    def register(handler: Handler) -> Handler:
        own = None if attributes is None else own_schema(*inputs, attributes, required)
        for name in names:
            if (domain, name) in DOMAIN_OPS:
                raise ValueError(f"@domain_op({domain!r}, {name!r}): got a second registration, need one")
            DOMAIN_OPS[domain, name] = DomainOp(handler, schema=own, **facts)
        return handler

    return register


def _check(name: str, op: OnnxOp) -> None:
    schemas = list(_history(name))
    num_inputs = max((s.max_input for s in schemas), default=0)
    attributes = {key for s in schemas for key in s.attributes}
    for fact in (*op.shape_inputs, *op.ignores):
        if not (fact in attributes if isinstance(fact, str) else 0 <= fact < num_inputs):
            raise ValueError(f"@onnx_op({name!r}): got {fact!r}, need one of its {num_inputs} inputs or an attribute")
    if not schemas:
        raise ValueError(f"@onnx_op({name!r}): ONNX has no such op")


def _history(name: str) -> Iterator[Any]:
    """Yields the schemas of an op, the newest first."""
    version = onnx.defs.onnx_opset_version()
    while version > 0 and onnx.defs.has(name, version, ""):
        definition: Any = onnx.defs.get_schema(name, version, "")
        yield definition
        version = definition.since_version - 1
