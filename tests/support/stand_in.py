"""The stand-in for the private framework, and hexane_ane.h through ctypes. Tests skip where the two are not built."""

import atexit
import ctypes as c
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
from hexane.importers.mil import load_mil_file
from hexane.targets.dispatch import Dispatch, dispatch

BUILD = Path(__file__).parents[2] / "build" / "editable"
LIBRARY, FRAMEWORK = BUILD / "libhexane_ane.so", BUILD / "libfake_ane.so"


def needs_stand_in() -> None:
    if not LIBRARY.exists() or not FRAMEWORK.exists():
        pytest.skip(
            "no stand-in for the engine: 'make stand-in' builds it, with clang 16 or newer and libgnustep-base-dev"
        )
    programs_folder()


def no_budget() -> Dispatch:
    """The facts of dispatch for a process whose tests compile more programs than a process may."""
    return replace(dispatch(), compile_limit=1 << 30)


def lower_mil(folder: Path) -> bytes:
    """The plan of the program in the folder, by the project's own reader of MIL."""
    with tempfile.TemporaryDirectory() as other:  # the folder itself is hashed
        plan = Path(other) / "plan.hxp"
        hx.compile(load_mil_file(folder / "model.mil"), threads=1).save(plan)
        return plan.read_bytes()


@cache
def programs_folder() -> Path:
    """Where this process has the folders of its programs. GNUstep reads TMP once. What the service keeps lies elsewhere,
    where processes that this one starts find it too."""
    folder = tempfile.TemporaryDirectory(prefix="programs")
    atexit.register(folder.cleanup)
    if "FAKE_ANED" not in os.environ:
        kept = tempfile.TemporaryDirectory(prefix="aned")
        atexit.register(kept.cleanup)
        os.environ["FAKE_ANED"] = kept.name
    os.environ["TMP"] = folder.name
    return Path(folder.name)


def kept_programs() -> list[Path]:
    """What the service of the stand-in keeps."""
    needs_stand_in()
    return sorted(Path(os.environ["FAKE_ANED"]).glob("*.hwx"))


def forget_programs() -> None:
    """Nothing is kept from then on, as after a restart of the machine."""
    for path in kept_programs():
        path.unlink()


# What the framework may do with files and compiled programs; fake_ane.h says what each means. "" is what a decompiled
# one does.
MODES: dict[str, dict[str, int]] = {
    "": {},
    "unload keeps files": {"unload_deletes": 0},
    "compile writes no files": {"writes_files": 0},
    "load compiles nothing": {"load_compiles": 0},
    "no answer on kept programs": {"says_exists": 0},
    "compile takes kept programs": {"compile_again": 0},
    "folders are not hashed": {"hash_bundle": 0},
    "errors without causes": {"error_chain": 0},
}
DEFAULTS = {name: 1 for values in MODES.values() for name in values} | {"identity": 0}


class Error(c.Structure):
    _fields_ = (("stage", c.c_char * 16), ("code", c.c_int64), ("text", c.c_char * 1024), ("hint", c.c_char * 256))


BYTES = c.CFUNCTYPE(c.c_uint64, c.c_void_p)


class Surfaces(c.Structure):
    _fields_ = (
        ("create", c.CFUNCTYPE(c.c_void_p, c.c_uint64)),
        ("release", c.CFUNCTYPE(None, c.c_void_p)),
        ("base", c.CFUNCTYPE(c.c_void_p, c.c_void_p)),
        ("bytes", BYTES),
        ("lock", c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool)),
        ("unlock", c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool)),
    )


class Setup(c.Structure):
    _fields_ = (
        ("framework", c.c_char_p),
        ("find_class", c.CFUNCTYPE(c.c_void_p, c.c_char_p)),
        ("surfaces", c.POINTER(Surfaces)),
        ("compile_limit", c.c_uint32),
        ("load_limit", c.c_uint32),
        ("load_retry_ms", c.c_uint32),
        ("build_limit_ms", c.c_uint32),
        ("evaluate_limit_ms", c.c_uint32),
        ("least_surface_bytes", c.c_uint64),
    )


class File(c.Structure):
    _fields_ = (("name", c.c_char_p), ("data", c.c_char_p), ("bytes", c.c_size_t))


class Port(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("dtype", c.c_char_p),
        ("shape", c.c_int64 * 4),
        ("row_stride", c.c_uint64),
        ("plane_stride", c.c_uint64),
        ("batch_stride", c.c_uint64),
        ("bytes", c.c_uint64),
    )


class Counters(c.Structure):
    _fields_ = (("compiled", c.c_uint64), ("loaded", c.c_uint64), ("compiles_in_loads", c.c_uint64))


class AneError(Exception):
    """A hexane_ane_error."""

    def __init__(self, error: Error) -> None:
        self.stage, self.code = error.stage.decode(), error.code
        self.text, self.hint = error.text.decode(), error.hint.decode()
        super().__init__(f"{self.stage} {self.code}: {self.text} ({self.hint})")


LOWER = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p, c.c_void_p)
LINE = c.CFUNCTYPE(None, c.c_void_p, *[c.c_char_p] * 4)
FIND_CLASS = c.CFUNCTYPE(c.c_void_p, c.c_char_p)

RESULTS = {
    "open": c.c_void_p,
    "close": None,
    "count": Counters,
    "probe": c.c_bool,
    "compile": c.c_void_p,
    "find": c.c_void_p,
    "load": c.c_bool,
    "unload": c.c_bool,
    "free": None,
    "num_inputs": c.c_size_t,
    "num_outputs": c.c_size_t,
    "port_at": Port,
    "bind": c.c_void_p,
    "unbind": c.c_bool,
    "evaluate": c.c_bool,
    "write": c.c_bool,
    "read": c.c_bool,
}


class StandIn:
    """The two libraries. `lower(folder)` gives the bytes of a plan for the model.mil in the folder, or raises, which
    the stand-in's compiler quotes."""

    answer: Any = None

    def __init__(self, lower: Callable[[Path], bytes] = lower_mil) -> None:
        self.library, self.framework = c.CDLL(str(LIBRARY)), c.CDLL(str(FRAMEWORK))
        for name, result in RESULTS.items():
            getattr(self.library, f"hexane_ane_{name}").restype = result
        self.framework.fake_ane_surfaces.restype = c.POINTER(Surfaces)
        self.framework.fake_ane_set.argtypes = (c.c_char_p, c.c_int64)
        self.framework.fake_ane_set.restype = c.c_bool

        def answer(_: Any, folder: bytes, reply: int) -> None:
            try:
                plan = lower(Path(folder.decode()))
                self.framework.fake_ane_accept(c.c_void_p(reply), plan, c.c_size_t(len(plan)))
            except Exception as error:
                self.framework.fake_ane_refuse(c.c_void_p(reply), str(error).encode())

        StandIn.answer = LOWER(answer)  # the framework has one, which stays alive
        self.framework.fake_ane_set_lower(StandIn.answer, None)
        self.set(compile_limit=1 << 40)  # its count is of the process, which tests share

    def set(self, **values: int) -> None:
        for name, value in values.items():
            assert self.framework.fake_ane_set(name.encode(), value), name

    def setup(self, **changed: Any) -> Setup:
        values: dict[str, Any] = {
            "framework": str(FRAMEWORK).encode(),
            "surfaces": self.framework.fake_ane_surfaces(),
            "load_retry_ms": 1,
            "least_surface_bytes": 16384,
        }
        return Setup(**(values | changed))

    def call(self, name: str, *arguments: Any) -> Any:
        """A function whose last argument is the error. Raises AneError where it gives NULL or false."""
        error = Error()
        result = getattr(self.library, f"hexane_ane_{name}")(*arguments, c.byref(error))
        if not result:
            raise AneError(error)
        return c.c_void_p(result) if isinstance(result, int) else result

    def open(self, **changed: Any) -> c.c_void_p:
        return self.call("open", c.byref(self.setup(**changed)))

    def compile(self, ane: c.c_void_p, mil: str, files: Mapping[str, bytes], qos: int = 21) -> c.c_void_p:
        return self.call("compile", ane, *_arguments(mil, files), c.c_uint32(qos))

    def find(self, ane: c.c_void_p, mil: str, files: Mapping[str, bytes]) -> c.c_void_p:
        return self.call("find", ane, *_arguments(mil, files))

    def load(self, program: c.c_void_p, qos: int = 21) -> None:
        self.call("load", program, c.c_uint32(qos))

    def ports(self, program: c.c_void_p) -> list[Port]:
        count = self.library.hexane_ane_num_inputs(program) + self.library.hexane_ane_num_outputs(program)
        return [self.library.hexane_ane_port_at(program, c.c_size_t(i)) for i in range(count)]

    def bind(self, program: c.c_void_p, surfaces: Any = None) -> c.c_void_p:
        return self.call("bind", program, surfaces)

    def write(self, request: c.c_void_p, port: int, data: bytes) -> None:
        self.call("write", request, c.c_size_t(port), data, c.c_size_t(len(data)))

    def read(self, request: c.c_void_p, port: int, num_bytes: int) -> bytes:
        data = c.create_string_buffer(num_bytes)
        self.call("read", request, c.c_size_t(port), data, c.c_size_t(num_bytes))
        return data.raw

    def evaluate(self, request: c.c_void_p, qos: int = 21) -> None:
        self.call("evaluate", request, c.c_uint32(qos))

    def free(self, program: c.c_void_p) -> None:
        self.library.hexane_ane_free(program)

    def count(self) -> tuple[int, int]:
        counters = self.library.hexane_ane_count()
        return counters.compiled, counters.loaded

    def compiles_in_loads(self) -> int:
        return int(self.library.hexane_ane_count().compiles_in_loads)


def _arguments(mil: str, files: Mapping[str, bytes]) -> tuple[Any, ...]:
    text = mil.encode()
    rows = (File * len(files))(*(File(name.encode(), data, len(data)) for name, data in files.items()))
    return text, c.c_size_t(len(text)), rows, c.c_size_t(len(files))
