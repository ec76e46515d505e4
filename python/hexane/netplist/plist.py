"""Writes the property list of a netplist, and reads it with a check of each value that it takes."""

import plistlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any
from xml.parsers.expat import ExpatError

from hexane.errors import Error
from hexane.netplist.units import DTYPES, UNITS, VERSION, Dims, Kind, NetConstant, Netplist, NetPort, Unit

OPERATION = "op0"
WEIGHTS = "weights.0"
INTERLEAVE = 1
MOST_ELEMENTS = 1 << 40
# The ends of the keys for extents. A key begins with what it describes: "InputHeight". An input's batch is "BatchSize".
_SIZES = ("BatchSize", "Channels", "Depth", "Height", "Width")
_SIZE_OF_TYPE = {"Float16": 2, "UInt16": 2, "Int8": 1, "UInt8": 1}


def write_plist(net: Netplist, weights_name: str = WEIGHTS) -> bytes:
    """The property list as XML, which names the file of the weights. The result is read back, so that `read_plist`
    accepts every written file."""
    inputs = [
        _sizes("Input", port.dims, batch="BatchSize")
        | {
            "Name": unit.name,
            "OperationName": OPERATION,
            "InputName": port.name,
            "InputType": port.type,
            "InputInterleave": INTERLEAVE,
        }
        for port in net.inputs
        for unit in net.units
        if port.name in unit.bottoms
    ]
    outputs = [
        {
            "Name": p.bottom,
            "OperationName": OPERATION,
            "OutputName": p.name,
            "OutputType": p.type,
            "OutputInterleave": INTERLEAVE,
        }
        for p in net.outputs
    ]
    network: dict[str, Any] = {"Units": [u.name for u in net.units], "Weights": [weights_name] if net.weights else []}
    if net.constants:
        network["Constants"] = [c.name for c in net.constants]
    types = {p.name: p.type for p in net.inputs} | {c.name: c.type for c in net.constants}
    types |= {u.name: u.output_type for u in net.units}
    for c in net.constants:
        network[c.name] = _sizes("Constant", c.dims) | {
            "ConstantName": c.name,
            "ConstantType": c.type,
            "ConstantIndex": 0,
            "ConstantByteOffset": c.offset,
            "ConstantInterleave": INTERLEAVE,
        }
    for u in net.units:
        network[u.name] = {
            "Name": u.name,
            "Type": u.type,
            "Bottom": list(u.bottoms),
            "InputType": [types[b] for b in u.bottoms],
            "OutputType": u.output_type,
            "OutputChannels": u.channels,
            "Params": dict(u.params),
        } | ({"NumGroups": u.groups} if u.type == "Conv" else {})
    for p in net.outputs:
        network[p.name] = {
            "Bottom": p.bottom,
            "OutputName": p.name,
            "OutputType": p.type,
            "OutputInterleave": INTERLEAVE,
        }
    procedure = {
        "Name": "main",
        "InputList": inputs,
        "OperationList": [{"NetworkName": net.name, "OperationName": OPERATION}],
        "OutputList": outputs,
    }
    text = plistlib.dumps(
        {"Version": VERSION, "Networks": [net.name], "ProcedureList": [procedure], net.name: network}, sort_keys=False
    )
    read_plist(text, net.weights)
    return text


def _sizes(what: str, dims: Dims, batch: str = "") -> dict[str, int]:
    names = [batch or f"{what}BatchSize", *(f"{what}{axis}" for axis in _SIZES[1:])]
    return dict(zip(names, dims, strict=True))


def read_plist(text: bytes, weights: bytes = b"") -> Netplist:
    """The netplist of a property list, XML or binary, with one network and one procedure, and the bytes of its weights.

    Raises Error, which names the place, for anything but a netplist of version 1.0.10, for unknown units and
    parameters, for unconnected or circular wires, and for constants beyond the end of the weights.
    """
    top = _loaded(text)
    r = _Reader(weights)
    r.need(top, dict, "the file")
    if top.get("Version") != VERSION:
        raise Error(f"[netplist] Version: got {top.get('Version')!r}, need {VERSION!r}")
    names = r.texts(top, "Networks", "the file")
    procedures = r.need(top.get("ProcedureList"), list, "ProcedureList")
    if len(names) != 1 or len(procedures) != 1:
        raise Error(f"[netplist] got {len(names)} networks and {len(procedures)} procedures, need one of each")
    network = r.need(top.get(names[0]), dict, names[0])
    procedure = r.need(procedures[0], dict, "ProcedureList[0]")
    inputs = r.inputs(procedure)
    constants = [
        r.constant(network, name)
        for name in (r.texts(network, "Constants", names[0]) if "Constants" in network else [])
    ]
    units = [r.unit(network, name) for name in r.texts(network, "Units", names[0])]
    outputs = [r.output(o, i) for i, o in enumerate(r.need(procedure.get("OutputList"), list, "OutputList"))]
    _check_wires(inputs, constants, units, outputs)
    return Netplist(names[0], tuple(inputs), tuple(units), tuple(constants), tuple(outputs), weights)


def weights_name(text: bytes) -> str | None:
    """The name of the first file of weights that the property list has, or None. Raises Error for a name that
    is no text."""
    top = _loaded(text)
    lists = [n.get("Weights") for n in top.values() if isinstance(n, dict)] if isinstance(top, dict) else []
    names = [name for given in lists if isinstance(given, list) for name in given[:1]]
    if names and not isinstance(names[0], str):
        raise Error(f"[netplist] Weights[0]: got {type(names[0]).__name__}, need str")
    return names[0] if names else None


def _loaded(text: bytes) -> Any:
    try:
        return plistlib.loads(text)
    except (
        plistlib.InvalidFileException,
        ExpatError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        AttributeError,
    ) as error:
        raise Error(f"[netplist] got no property list ({type(error).__name__}: {error}), need one") from None


def _check_wires(
    inputs: Sequence[NetPort], constants: Sequence[NetConstant], units: Sequence[Unit], outputs: Sequence[NetPort]
) -> None:
    known: set[str] = set()
    for name in (*(p.name for p in inputs), *(c.name for c in constants)):
        if name in known:
            raise Error(f"[netplist] {name}: got the name twice, need it once")
        known.add(name)
    for u in units:
        for bottom in u.bottoms:
            if bottom not in known:
                raise Error(
                    f"[netplist] {u.name}.Bottom: got {bottom!r}, need an input, a constant or a unit in front of it"
                )
        if u.name in known:
            raise Error(f"[netplist] {u.name}: got the name twice, need it once")
        known.add(u.name)
    if not outputs:
        raise Error("[netplist] OutputList: got none, need an output")
    for p in outputs:
        if p.bottom not in known:
            raise Error(f"[netplist] the output {p.name}: got the unit {p.bottom!r}, need one that there is")


class _Reader:
    """Takes values out of the property list, each checked."""

    def __init__(self, weights: bytes) -> None:
        self.weights = weights

    def need(self, value: Any, kind: type, where: str) -> Any:
        if type(value) is not kind:
            raise Error(f"[netplist] {where}: got {type(value).__name__}, need {kind.__name__}")
        return value

    def texts(self, table: Mapping[str, Any], key: str, where: str) -> list[str]:
        texts = self.need(table.get(key), list, f"{where}.{key}")
        return [self.need(text, str, f"{where}.{key}") for text in texts]

    def text(self, table: Mapping[str, Any], key: str, where: str) -> str:
        result: str = self.need(table.get(key), str, f"{where}.{key}")
        return result

    def count(self, table: Mapping[str, Any], key: str, where: str, least: int = 0) -> int:
        count: int = self.need(table.get(key), int, f"{where}.{key}")
        if not least <= count <= MOST_ELEMENTS:
            raise Error(f"[netplist] {where}.{key}: got {count}, need {least} to {MOST_ELEMENTS}")
        return count

    def type(self, table: Mapping[str, Any], key: str, where: str) -> str:
        name = self.text(table, key, where)
        if name not in DTYPES:
            raise Error(f"[netplist] {where}.{key}: got {name!r}, need one of: {', '.join(DTYPES)}")
        return name

    def dims(self, table: Mapping[str, Any], what: str, where: str, batch: str = "") -> Dims:
        n, c, d, h, w = (self.count(table, name, where, 1) for name in _sizes(what, (1, 1, 1, 1, 1), batch))
        if prod((n, c, d, h, w)) > MOST_ELEMENTS:
            raise Error(f"[netplist] {where}: got {prod((n, c, d, h, w))} elements, need at most {MOST_ELEMENTS}")
        return n, c, d, h, w

    def inputs(self, procedure: Mapping[str, Any]) -> list[NetPort]:
        """Returns one port for each name. Entries of one name must be equal."""
        ports: dict[str, NetPort] = {}
        for i, entry in enumerate(self.need(procedure.get("InputList"), list, "InputList")):
            where = f"InputList[{i}]"
            self.need(entry, dict, where)
            name = self.text(entry, "InputName", where)
            port = NetPort(name, self.type(entry, "InputType", where), self.dims(entry, "Input", where, "BatchSize"))
            if ports.setdefault(name, port) != port:
                raise Error(f"[netplist] {where}: got {name!r} with another type or size than before, need one")
        return list(ports.values())

    def constant(self, network: Mapping[str, Any], name: str) -> NetConstant:
        table = self.need(network.get(name), dict, name)
        kind = self.type(table, "ConstantType", name)
        if self.count(table, "ConstantIndex", name) != 0:
            raise Error(f"[netplist] {name}.ConstantIndex: got {table['ConstantIndex']}, need 0: one file of weights")
        net_constant = NetConstant(
            name, kind, self.count(table, "ConstantByteOffset", name), self.dims(table, "Constant", name)
        )
        self.inside(net_constant.offset, prod(net_constant.dims) * _SIZE_OF_TYPE[kind], name)
        return net_constant

    def inside(self, offset: int, count: int, where: str) -> None:
        if offset + count > len(self.weights):
            raise Error(
                f"[netplist] {where}: got bytes {offset} to {offset + count}, need at most {len(self.weights)}, the"
                " weights' size"
            )

    def output(self, entry: Any, i: int) -> NetPort:
        where = f"OutputList[{i}]"
        self.need(entry, dict, where)
        return NetPort(
            self.text(entry, "OutputName", where),
            self.type(entry, "OutputType", where),
            bottom=self.text(entry, "Name", where),
        )

    def unit(self, network: Mapping[str, Any], name: str) -> Unit:
        table = self.need(network.get(name), dict, name)
        kind = self.text(table, "Type", name)
        spec = UNITS.get(kind)
        if spec is None:
            raise Error(f"[netplist] {name}.Type: got {kind!r}, need one of: {', '.join(UNITS)}")
        bottoms = tuple(self.texts(table, "Bottom", name))
        least, most = spec.bottoms
        if not least <= len(bottoms) <= most:
            raise Error(f"[netplist] {name}.Bottom: got {len(bottoms)}, need {least} to {most} for {kind}")
        params = self.need(table.get("Params", {}), dict, f"{name}.Params")
        self.params(params, spec, f"{name}.Params", kind)
        groups = self.count(table, "NumGroups", name, 1) if "NumGroups" in table else 1
        return Unit(
            name,
            kind,
            bottoms,
            params,
            self.type(table, "OutputType", name),
            self.count(table, "OutputChannels", name),
            groups,
        )

    def params(self, params: Mapping[str, Any], spec: Kind, where: str, kind: str) -> None:
        for key, value in params.items():
            if key not in spec.params:
                raise Error(f"[netplist] {where}: got {key!r}, need one of: {', '.join(spec.params) or 'none'}")
            wanted = spec.params[key]
            if not _fits(value, wanted):
                need = wanted if isinstance(wanted, str) else f"one of: {', '.join(wanted)}"
                raise Error(f"[netplist] {where}.{key}: got {value!r:.60}, need {need}")
        if missing := [key for key in spec.needed if key not in params]:
            raise Error(f"[netplist] {where}: got no {', '.join(missing)}, which {kind} needs")


def _fits(value: Any, wanted: str | tuple[str, ...]) -> bool:
    if not isinstance(wanted, str):
        return isinstance(value, str) and value in wanted
    if wanted in ("ints", "texts", "tables"):
        inner = {"ints": "int", "texts": "text", "tables": "table"}[wanted]
        return isinstance(value, list) and all(_fits(item, inner) for item in value)
    if wanted == "table":
        return isinstance(value, dict) and all(isinstance(item, (int, str)) for item in value.values())
    if wanted == "fp16":
        return type(value) is int and 0 <= value < 1 << 16
    if wanted == "int":
        return type(value) is int and abs(value) <= MOST_ELEMENTS
    return isinstance(value, {"bool": bool, "text": str, "number": (int, float)}[wanted])  # type: ignore[arg-type]
