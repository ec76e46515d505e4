"""Opens a Core AI asset: a folder `NAME.aimodel` with the program, its hash and its author's notes."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.coreai.attributes import Attributes, Dense, Handle, Named, Resource, Tensor
from hexane.importers.coreai.bytecode import DIALECT, Bytecode
from hexane.importers.coreai.cursor import Cursor
from hexane.importers.coreai.operations import Body, Operation, read_operations
from hexane.importers.files import open_inside, read_all, read_view

SUFFIX, PROGRAM, HASH, METADATA = ".aimodel", "main.mlirb", "main.hash", "metadata.json"
MOST_METADATA = 1 << 24  # bytes
FUNCTION, ASSET, OUTPUT = "dataflow.graph_v1", "serialization.asset", "dataflow.output_v1"
# The properties of a function in the file's order. A question mark ends an optional property's name.
FUNCTION_PROPERTIES = (
    "argAttrs", "compositeDecl?", "externalize", "functionType", "isPrivate", "name", "noInline", "paramDecls",
    "resAttrs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AssetPort:
    """An input, a state or an output. type: one of Core AI's port types, such as Tensor or Handle."""

    name: str
    type: Any


@dataclass(frozen=True, slots=True)
class AssetFunction:
    """A function of an asset. composite: for a function that others call, the name and description of its computation.
    `outputs` excludes the tokens that fix the order of writes to states."""

    name: str
    arguments: tuple[AssetPort, ...]
    results: tuple[AssetPort, ...]
    is_private: bool
    composite: Named | None
    body: Body

    @property
    def inputs(self) -> tuple[AssetPort, ...]:
        return tuple([port for port in self.arguments if not isinstance(port.type, Handle)])

    @property
    def states(self) -> tuple[AssetPort, ...]:
        return tuple([port for port in self.arguments if isinstance(port.type, Handle)])

    @property
    def outputs(self) -> tuple[AssetPort, ...]:
        return tuple([port for port in self.results if isinstance(port.type, Tensor)])


@dataclass(slots=True)
class Asset:
    """An open asset. path: of the program. version: the date of the newest op in the program, as a number, or None.
    metadata: the contents of the file next to the program; {} without one. hash: the SHA-256 stored next to the
    program; None without one."""

    path: str
    attributes: Attributes
    root: Body
    functions: dict[str, AssetFunction]
    version: int | None
    metadata: dict[str, Any] = field(default_factory=dict)
    hash: bytes | None = None

    @property
    def hash_fits(self) -> bool | None:
        """True if the program has the hash stored next to it; None if no hash is stored. Reads the whole file."""
        return None if self.hash is None else self.hash == hashlib.sha256(self.bytecode.data).digest()

    @property
    def bytecode(self) -> Bytecode:
        return self.attributes.bytecode

    @property
    def is_of_the_first_converters(self) -> bool:
        """True if today's systems abort on the asset: its locations are attributes of another dialect."""
        return any(dialect != DIALECT for dialect, _ in self.bytecode.attributes)

    def public(self) -> dict[str, AssetFunction]:
        """The functions that can be called from outside the asset."""
        return {name: function for name, function in self.functions.items() if not function.is_private}

    def function(self, name: str | None = None) -> AssetFunction:
        """Returns the public function of this name; without a name, `main` or the only one. Raises Error if no public
        function fits."""
        public = self.public()
        wanted = name or ("main" if "main" in public or len(public) != 1 else next(iter(public)))
        if wanted not in public:
            got = f"the function {name!r}" if name else "no function"
            raise Error(f"[coreai] {self.path}: got {got}, need one of {', '.join(sorted(public)) or 'none'}")
        return public[wanted]

    def setting(self, operation: Operation, index: int = 0) -> Any:
        """Returns one property of an operation without optional properties. index: its place in the alphabetical order
        of names."""
        if operation.properties is None:
            raise Error(f"[coreai] {self.path} at {operation.offset}: got {operation.name} without properties")
        cursor = self.bytecode.cursor(self.bytecode.properties[operation.properties])
        for _ in range(index):
            cursor.number()
        return self.attributes.attribute(cursor)

    def numbers_of(self, operation: Operation) -> memoryview:
        """Returns the bytes of a constant as stored in the file; one element if all elements are equal."""
        value = self.setting(operation)
        if isinstance(value, Resource):
            return self.bytecode.blobs[value.index].data
        if isinstance(value, Dense):
            return value.data
        raise Error(f"[coreai] {self.path} at {operation.offset}: got a constant of {value}, need numbers")


def open_asset(path: str | os.PathLike[str]) -> Asset:
    """Opens the asset in a folder. Raises Error for a folder without a program, and for a damaged program, in most
    cases with the offset in the file."""
    folder = _inner(Path(path))
    if not folder.is_dir():
        what = "no such folder" if not folder.exists() else "a file"
        raise Error(f"[coreai] {folder}: got {what}, need the folder {SUFFIX} with {PROGRAM} in it")
    data = read_view(open_inside(folder, PROGRAM, f"[coreai] {folder}"), f"[coreai] {folder}")
    asset = read_asset(data, str(folder / PROGRAM))
    if (folder / HASH).exists():
        asset.hash = read_all(open_inside(folder, HASH, f"[coreai] {folder}"), f"[coreai] {folder}")
    if (folder / METADATA).exists():
        asset.metadata = _metadata(folder)
    return asset


def _inner(folder: Path) -> Path:
    """Returns the asset's folder in a bundle (a folder with a tokenizer and other parts), and any other folder
    unchanged."""
    if (folder / PROGRAM).exists() or not (folder / METADATA).is_file():
        return folder
    assets = _metadata(folder).get("assets")
    main = assets.get("main") if isinstance(assets, dict) else None
    if not isinstance(main, str):
        raise Error(f"[coreai] {folder / METADATA}: got no assets.main, need the name of the asset in this bundle")
    if main in ("", ".", "..") or "/" in main or "\\" in main or "\0" in main or (folder / main).is_symlink():
        raise Error(f"[coreai] {folder / METADATA}: got assets.main {main!r}, need the name of a folder in this bundle")
    return folder / main


def read_asset(data: bytes | memoryview, name: str = PROGRAM) -> Asset:
    """Returns the asset of a program's bytes. Raises Error if the bytes are no program, mostly with the offset."""
    bytecode = Bytecode(data, name)
    attributes = Attributes(bytecode)
    root = read_operations(bytecode, attributes)
    assets = [operation for operation in root.operations if operation.name == ASSET]
    # The root of a file is an asset, or a module that contains one.
    if not assets:
        assets = [o for module in root.operations for body in module.bodies for o in body.operations if o.name == ASSET]
    if len(assets) != 1 or len(assets[0].bodies) != 1:
        raise Error(f"[coreai] {name}: got {len(assets)} assets, need one")
    functions: dict[str, AssetFunction] = {}
    for operation in assets[0].bodies[0].operations:
        if operation.name == FUNCTION:
            function = _function(operation, attributes)
            if function.name in functions:
                raise Error(
                    f"[coreai] {name} at {operation.offset}: got the function {function.name!r} twice, need it once"
                )
            functions[function.name] = function
    if not any(not function.is_private for function in functions.values()):
        raise Error(f"[coreai] {name}: got no function that can be called, need one")
    return Asset(name, attributes, root, functions, _version(assets[0], attributes))


def _metadata(folder: Path) -> dict[str, Any]:
    where = f"[coreai] {folder / METADATA}"
    data = read_all(open_inside(folder, METADATA, f"[coreai] {folder}"), where)
    if len(data) > MOST_METADATA:
        raise Error(f"{where}: got {len(data)} bytes, need {MOST_METADATA} at most")
    try:
        metadata = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {error}, need JSON") from None
    if not isinstance(metadata, dict):
        raise Error(f"{where}: got {type(metadata).__name__}, need an object")
    return metadata


def _properties(operation: Operation, attributes: Attributes, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the properties of an operation by name, without omitted ones."""
    if operation.properties is None:
        return {}
    section = attributes.bytecode.properties[operation.properties]
    cursor, properties = attributes.bytecode.cursor(section), dict[str, Any]()
    for name in names:
        if name.endswith("?"):
            start, (number, is_given) = cursor.at, cursor.flagged()
            if not is_given:
                continue
            if number >= len(attributes.bytecode.attributes):
                cursor.fail(f"got the attribute {number}, need one below {len(attributes.bytecode.attributes)}", start)
            properties[name[:-1]] = attributes.at(number, cursor)
        else:
            properties[name] = attributes.attribute(cursor)
    return properties


def _version(asset: Operation, attributes: Attributes) -> int | None:
    """Returns the version of an asset: its last optional property that is an integer, or None."""
    if asset.properties is None:
        return None
    cursor: Cursor = attributes.bytecode.cursor(attributes.bytecode.properties[asset.properties])
    version = None
    while not cursor.is_at_end:
        start, (number, is_given) = cursor.at, cursor.flagged()
        if is_given:
            if number >= len(attributes.bytecode.attributes):
                cursor.fail(f"got the attribute {number}, need one below {len(attributes.bytecode.attributes)}", start)
            value = attributes.at(number, cursor)
            version = value if isinstance(value, int) else version
    return version


def _function(operation: Operation, attributes: Attributes) -> AssetFunction:
    where = f"[coreai] {attributes.bytecode.file} at {operation.offset}"
    given = _properties(operation, attributes, FUNCTION_PROPERTIES)
    name = given.get("name")
    if not isinstance(name, str):
        raise Error(f"{where}: got a function named {name!r}, need a text")
    if len(operation.bodies) != 1:
        raise Error(f"{where}: got the function {name!r} with {len(operation.bodies)} bodies, need one")
    body = operation.bodies[0]
    if not body.operations or body.operations[-1].name != OUTPUT:
        raise Error(f"{where}: got the function {name!r} without {OUTPUT} at its end, need one")
    results = body.operations[-1].operands
    composite = given.get("compositeDecl")
    return AssetFunction(
        name,
        _ports(given.get("argAttrs"), [v.type for v in body.arguments], "input"),
        _ports(given.get("resAttrs"), [v.type for v in results], "output"),
        bool(given.get("isPrivate")),
        composite if isinstance(composite, Named) else None,
        body,
    )


def _ports(given: Any, types: list[Any], what: str) -> tuple[AssetPort, ...]:
    """Returns the named ports of a function. Ports without a name are numbered."""
    described = given if isinstance(given, tuple) and len(given) == len(types) else [()] * len(types)
    ports = []
    for i, (entries, kind) in enumerate(zip(described, types, strict=True)):
        names = [
            entry.values[0]
            for entry in (entries if isinstance(entries, tuple) else ())
            if isinstance(entry, Named) and entry.name == f"{DIALECT}.name" and entry.values
        ]
        ports.append(AssetPort(str(names[0]) if names else f"{what}{i}", kind))
    return tuple(ports)
