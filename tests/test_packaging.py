"""What `pip install` gives: a typed package, the command, and imports that stay quick."""

import os
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import hexane as hx


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement loads in a new interpreter."""
    script = f"import sys; {statement}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ran.stdout.splitlines()[-1].split()}


SUB_INTERPRETER = """
import sys, warnings
warnings.simplefilter("error") # NumPy's warning would come first
try:
    {statement}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("after", [False, True], ids=["alone", "after the main one"])
@pytest.mark.parametrize("statement", ["import hexane", "import hexane._core"])
def test_a_sub_interpreter_is_refused(statement: str, after: bool) -> None:
    """It had waited for ever. Tests reach sub-interpreters through a private module of Python. The script destroys its
    sub-interpreter, because otherwise Python 3.11.2 waits at its end for any other thread, such as NumPy's."""
    inner = SUB_INTERPRETER.format(statement=statement)
    script = f"""
{statement if after else ""}
try:
    import _interpreters as module
except ImportError:
    import _xxsubinterpreters as module
try:
    one = module.create("legacy") # as mod_wsgi makes them
except TypeError:
    one = module.create()
module.run_string(one, {inner!r})
module.destroy(one)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (
        0,
        "Hexane works in the main interpreter only, and this is a sub-interpreter\n",
    ), ran.stderr


@pytest.fixture
def distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("hexane")
    except metadata.PackageNotFoundError:
        pytest.skip("hexane is not installed but imported from its folder")


def test_the_package_is_typed():
    files = {file.name for file in resources.files("hexane").iterdir()}
    assert {"py.typed", "_core.pyi", "build.pyi"} <= files


def test_what_pages_are_made_of_is_in_the_package():
    folder = resources.files("hexane.report")
    assert all(folder.joinpath(name).is_file() for name in ("page.css", "page.js"))
    assert resources.files("hexane.bench").joinpath("page.css").is_file()


def test_targets_are_in_the_package():
    folder = resources.files("hexane.targets")
    for name in ("host.toml", "h13.toml", "bases/a13.toml", "shared/fields.toml"):
        assert folder.joinpath(name).is_file()


def test_a_system_without_fork_imports_the_package() -> None:
    assert "hexane" in loaded_by("import os; del os.fork, os.register_at_fork; import hexane")


def test_the_command_is_declared(distribution):
    (command,) = distribution.entry_points.select(group="console_scripts", name="hexane")
    assert callable(command.load())


def test_the_version_is_the_same_everywhere(distribution):
    assert hx.__version__ == distribution.version


def test_the_metadata_names_authors_keywords_and_systems(distribution):
    """The same authors and keywords as CITATION.cff."""
    citation = Path(__file__).parents[1].joinpath("CITATION.cff").read_text(encoding="utf-8")
    said = distribution.metadata
    assert f"  - name: {said['Author']}\n" in citation
    assert "".join(f"  - {word}\n" for word in said["Keywords"].split(",")) in citation
    assert {"Operating System :: MacOS", "Typing :: Typed"} < set(said.get_all("Classifier"))


def test_the_licences_of_compiled_in_libraries_are_installed(distribution):
    texts = [file for file in distribution.files if ".dist-info/licenses/" in str(file)]
    for library in ("highway", "pybind11"):
        (first, *_) = [text for text in texts if text.parent.name == library]
        assert "Copyright" in first.read_text(encoding="utf-8")


@pytest.mark.parametrize("extra", ["images", "torch"])
def test_extras_are_declared(extra, distribution):
    assert extra in distribution.metadata.get_all("Provides-Extra")


def test_importing_hexane_loads_neither_onnx_nor_torch_nor_the_terminal():
    assert not {"onnx", "google", "rich", "typer", "PIL", "torch"} & loaded_by("import hexane")


def test_importing_hexane_loads_no_network_code():
    """asyncio and ssl take 3 MB."""
    assert not {"asyncio", "ssl", "socket"} & loaded_by("import hexane")


def test_help_loads_neither_onnx_nor_rich():
    loaded = loaded_by("from hexane.cli.main import app; app(['--help'], standalone_mode=False)")
    assert "typer" in loaded
    assert not {"onnx", "google", "rich", "PIL"} & loaded


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
def test_the_extension_brings_the_libraries_that_not_every_linux_has(distribution):
    script = (
        "import re, numpy, hexane._core as c; print(c.__file__, *set(re.findall('/.*',"
        " open('/proc/self/maps').read())))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    module, *mapped = map(Path, ran.stdout.split())
    foreign = [path for path in mapped if "libhwy" in path.name and path.parent.resolve() != module.parent.resolve()]
    assert not foreign
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.check_output(["readelf", "-d", module], text=True))
    everywhere = r"lib(stdc\+\+|m|gcc_s|c|pthread|asan|ubsan)\.so\.\d+|ld-linux.*"
    missing = {name for name in needed if not re.fullmatch(everywhere, name)} - set(os.listdir(module.parent))
    assert not missing
