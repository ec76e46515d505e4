"""The direction of imports: a module imports what stands before it in the list, or its own layer."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / "python" / "hexane"
CSRC = ROOT / "csrc"

# Each line may import the lines above it and itself. `_core` is the C++ library.
PYTHON_LAYERS = (
    ("errors", "dtypes", "system", "_core"),
    ("graph", "memory"),
    ("targets", "program"),
    ("cost",),
    ("ops",),
    ("build", "tensor"),
    ("containers", "coreai", "mil", "netplist"),
    ("importers", "autograd"),
    ("sources",),
    ("bounds",),
    ("lowering",),
    ("compression", "feeds", "options", "quant", "validate"),
    ("passes",),
    ("stages",),
    ("emit",),
    ("planning",),
    ("pipeline",),
    ("runtime",),
    ("report", "bench", "train"),
    ("llm",),
    ("__init__",),
    ("cli", "__main__"),
)
CPP_LAYERS = (("core",), ("plan",), ("alloc", "cpu", "device", "sched", "pack"), ("run",), ("bind",))


def layer(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    found = [i for i, names in enumerate(layers) if name in names]
    assert found, f"{name} has no layer: add it to this test and to docs/design/files.md"
    return found[0]


def module(path: Path) -> str:
    return path.relative_to(PYTHON).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> tuple[list[str], list[str]]:
    """First parts below `hexane` of what the file imports at run time; and its imports that are relative or name
    nothing."""
    tree = ast.parse(path.read_text())
    return list(python_imports(tree)), list(odd_imports(tree, path))


def python_imports(tree: ast.Module) -> Iterator[str]:
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hexane":
            parts = (node.module or "").split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("hexane."))


def odd_imports(tree: ast.Module, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names_all = path.name != "__init__.py" and any(a.name == "*" for a in node.names)
            if node.level or names_all:
                yield f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", sorted(PYTHON.rglob("*.py")), ids=lambda p: str(p.relative_to(PYTHON)))
def test_python_imports_only_lower_layers(path: Path) -> None:
    own = layer(module(path), PYTHON_LAYERS)
    for name in imports_of(path)[0]:
        if (PYTHON / name).is_dir() or (PYTHON / f"{name}.py").exists() or name == "_core":
            assert layer(name, PYTHON_LAYERS) <= own, f"{path.name} imports hexane.{name}, which is above it"


def late_imports(tree: ast.Module) -> set[str]:
    """Modules of the package that functions import when they run."""
    return {
        node.module or ""
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hexane")
    }


# Where a function may import a part of the package when it runs, and why: a file, or all files of a folder.
LATE = {
    "cli/": "a command starts without the parts that only others use",
    "sources/": "a reader is loaded for the first file of its format",
    "bench/environment.py": "probes run without what reads this machine",
    "importers/torch.py": "torch and the reader of ONNX are loaded for the first module of torch",
    "ops/gradients/windows.py": "the rules of gradients are parts of the records, one of which a rule asks for its ref",
    "ops/records/control.py": "the reference of a body is the interpreter, which reads the records",
    "runtime/coreml.py": "the writer of Core ML packages is loaded for the first package",
    "runtime/quantize_model.py": "onnx is loaded for the first network that is quantised",
    "train/with_params.py": "onnx is loaded for the first network that is trained",
}


@pytest.mark.parametrize("path", sorted(PYTHON.rglob("*.py")), ids=lambda p: str(p.relative_to(PYTHON)))
def test_imports_stand_at_the_top_but_for_those_with_a_reason(path: Path) -> None:
    name = str(path.relative_to(PYTHON))
    if not any(name == place or (place.endswith("/") and name.startswith(place)) for place in LATE):
        assert late_imports(ast.parse(path.read_text())) == set()


def test_no_reason_for_a_late_import_is_out_of_date() -> None:
    late = {str(path.relative_to(PYTHON)) for path in PYTHON.rglob("*.py") if late_imports(ast.parse(path.read_text()))}
    assert all(any(name.startswith(place) for name in late) for place in LATE)


def modules() -> dict[str, Path]:
    names = {path: ".".join(path.relative_to(PYTHON.parent).with_suffix("").parts) for path in PYTHON.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = modules()
    imported: dict[str, set[str]] = {}
    for name, path in paths.items():
        found = imported.setdefault(name, set())
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hexane":
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner & paths.keys() or ({node.module or ""} - {"hexane"})
    TopologicalSorter(imported).prepare()  # CycleError names the modules


READERS = re.compile(r"\b(import_onnx|import_described|load_mil_file|load_netplist_file|import_coreai|open_asset)\b")
# They rewrite or describe models of one format; all others open models through `hexane.sources`.
OF_ONE_FORMAT = {"cli/assets.py", "cli/repair.py", "compression/onnx_file.py", "train/with_params.py"}


def test_models_are_opened_by_sources_alone() -> None:
    found = {str(path.relative_to(PYTHON)) for path in PYTHON.rglob("*.py") if READERS.search(path.read_text())}
    assert {name for name in found if not name.startswith(("importers/", "sources/"))} == OF_ONE_FORMAT


@pytest.mark.parametrize("path", sorted(PYTHON.rglob("*.py")), ids=lambda p: str(p.relative_to(PYTHON)))
def test_python_imports_are_absolute_and_name_what_they_take(path: Path) -> None:
    assert imports_of(path)[1] == []


CPP_FILES = [path for path in sorted(CSRC.rglob("*.[hc]*")) if path.suffix != ".cmake"]
CPP_FILES = [path for path in CPP_FILES if path.relative_to(CSRC).parts[0] != "c99"]


@pytest.mark.parametrize("path", CPP_FILES, ids=lambda p: str(p.relative_to(CSRC)))
def test_cpp_includes_only_lower_layers(path: Path) -> None:
    folder = path.relative_to(CSRC).parts[0]
    own = layer(folder, CPP_LAYERS)
    text = path.read_text()
    for name in re.findall(r'#include "(\w+)/', text):
        other = layer(name, CPP_LAYERS)
        assert other < own or name == folder, f"{path.name} includes {name}/"
    if folder != "bind":
        assert "Python.h" not in text
        assert "pybind11" not in text


def test_the_c99_runtime_takes_nothing_of_csrc_but_the_format_of_plans() -> None:
    own = {path.name for path in (CSRC / "c99").rglob("*.h")}
    others = {path.name for path in CPP_FILES} - own - {"plan.h"}
    for path in (CSRC / "c99").rglob("*.[ch]"):
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            assert name.rpartition("/")[2] not in others, f"{path.name} includes {name}"
