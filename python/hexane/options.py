"""The options of `compile`."""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from math import inf
from typing import Any

from hexane.compression.request import Compression, Feeds, as_compression, feeds_of
from hexane.errors import Error
from hexane.memory import Memory
from hexane.system.field_docs import with_field_docs
from hexane.targets import Chip, Target
from hexane.targets.dispatch import dispatch

MOST_THREADS = 256
DEFAULT_TOLERANCE = 1e-2  # Tolerance of the dtype "auto".
MOST_FEEDS = 8  # Most feeds on which the error is measured.
COMPUTE_UNITS = ("cpu_and_ne", "all", "cpu_and_gpu", "cpu")  # Core ML's names of compute units.
SCHEDULES = ("apple", "optimal")  # Orders of a chip's layers.


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_environment() -> int | None:
    """The value of HEXANE_THREADS, else the first number of OMP_NUM_THREADS. Raises Error if HEXANE_THREADS is no valid
    number of threads; an invalid OMP_NUM_THREADS is ignored."""
    asked = os.environ.get("HEXANE_THREADS", "")
    if asked:
        if not asked.isdecimal() or not 1 <= int(asked) <= MOST_THREADS:
            raise Error(f"[compile] HEXANE_THREADS: got {asked!r}, need an integer in 1..{MOST_THREADS}")
        return int(asked)
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(int(first), MOST_THREADS) if first.isdecimal() and int(first) > 0 else None


@with_field_docs
@dataclass(frozen=True, slots=True)
class Device:
    """The device that runs a chip's program. Raises Error for a value that its field does not take."""

    kind: str = "auto"
    """The device. "ane": the chip's layers run on the Neural Engine itself, the rest on the host; if this machine has
    no engine, the Error says what is missing. "cpu": all of it runs on the CPU, in the engine's arithmetic. "auto": on
    the engine if there is one; `device` of the model tells the choice and the reason. "coreml": through Apple's public
    API, on a Mac (docs/coreml/device.md)."""

    _: KW_ONLY

    compute_units: str = ""
    """For "coreml", the devices that Core ML may choose from: "cpu_and_ne" (and ""), "all", "cpu_and_gpu", "cpu"."""

    qos: int | None = None
    """The class of the engine's queues that calls wait in, 0 to 63 (docs/macos.md). It has no effect on the CPU."""

    cache: bool = True
    """Whether to load programs that the system has kept from an earlier compilation by any process (docs/cache.md).
    False: every program is compiled anew."""

    def __post_init__(self) -> None:
        if self.kind not in ("auto", "cpu", "ane", "coreml"):
            raise Error(f"[compile] device: got {self.kind!r}, need 'auto', 'cpu', 'ane' or 'coreml'")
        if self.compute_units not in ("", *COMPUTE_UNITS):
            need = ", ".join(map(repr, COMPUTE_UNITS))
            raise Error(f"[compile] compute_units: got {self.compute_units!r}, need one of {need}")
        if self.compute_units and self.kind != "coreml":
            raise Error(f"[compile] compute_units: got it for the device {self.kind!r}, need 'coreml' for it")
        if self.qos is not None and (type(self.qos) is not int or not 0 <= self.qos <= dispatch().most_qos):
            raise Error(f"[compile] qos: got {self.qos!r}, need an integer from 0 to {dispatch().most_qos}")
        if type(self.cache) is not bool:
            raise Error(
                f"[compile] cache: got {self.cache!r}, need True or False; the system itself keeps compiled programs"
            )


@with_field_docs
@dataclass(frozen=True, slots=True)
class AutoDtype:
    """The dtype "auto" with its settings. Raises Error for a tolerance that is no number above 0."""

    tolerance: float = DEFAULT_TOLERANCE
    """The largest allowed relative error of an output, |y - y'| / |y| in Euclidean norms, where y is the output in
    fp32."""

    _: KW_ONLY

    calibration: Feeds | None = None
    """Inputs by name, or a sequence of them, of which the first 8 are used to measure the error and the times. Inputs
    that are not given are random numbers with a seed: for images, pixels of 0..255 in one of two feeds; else numbers of
    the normal distribution."""

    def __post_init__(self) -> None:
        given = self.tolerance
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < inf:
            raise Error(f"[compile] dtype: got the tolerance {given!r}, need a number above 0, such as 0.01")

    @property
    def feeds(self) -> list[Mapping[str, Any]]:
        """The calibration inputs."""
        return feeds_of(self.calibration)


@with_field_docs
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a model is compiled. `compile` takes one of these, or the same names as keywords.

    Raises Error for a value that its field does not take; `compile` raises it for values that do not fit the target.
    """

    target: str | Target | None = None
    """The machine to compile for. "host": this CPU, in the model's own dtypes. A chip in any spelling ("h13", "M1",
    "iPhone 12"): the ops that the chip can run are computed in fp16, in segments of the engine. The other ops run on
    the host in the model's dtypes, with one FallbackWarning that names ops and reasons. None: the chip of this machine
    if it has a Neural Engine and `device` is not "cpu", else the host; HEXANE_TARGET names another."""

    device: str | Device = "auto"
    """The device that runs a chip's program: "auto", "ane", "cpu", "coreml", or an hx.Device, which has more fields."""

    dtype: str | AutoDtype = ""
    """The dtype of the host. "fp16": it stores everything between the ports in fp16 and accumulates in fp32. "bf16":
    matrix products and convolutions of fp32 multiply in bf16, with 8 bits of precision, and accumulate in fp32;
    everything else is as in the model (docs/python.md). "int8": matrix products whose weights are stored in int8
    (`compress="int8"`) round each row of the other operand to int8, with a scale of its own, and accumulate in int32.
    "auto": products become bf16 if they are measured to be faster in it on this CPU, as far as the outputs stay within
    1e-2 of the fp32 ones; an hx.AutoDtype sets another tolerance and inputs to measure on. "fp32" or "": the model's
    own dtypes."""

    numerics: str = ""
    """The arithmetic in which this CPU computes. "engine": that of the chip as far as it is known (docs/numerics.md):
    convolutions and matrix products to the bit, in fixed point, with its overflows, dropped products and Winograd
    convolutions; elementwise ops, casts, activations by table, pools, sums, softmax, attention and norms by rules, some
    of which are not confirmed yet. The program's decisions say which rule a step follows. "ieee": fp32 inside the
    chip's layers, each rounded to fp16, which is faster. "q31", for the host: quantised ops as TFLite computes them, by
    a multiplier in Q0.31 and a shift. "": "engine" for a chip; for the host, ONNX's definitions. Steps of the host and
    casts at the ports always use IEEE arithmetic."""

    fallback: str = "host"
    """What happens to ops that the chip cannot run. "host": they run on the host. "error": an Error lists them."""

    repair: bool = True
    """Whether ops whose numbers leave fp16 on a chip are written in other forms that stay within it, which are equal in
    exact arithmetic (docs/ranges.md). False: the model stays as it is."""

    io: str = ""
    """The dtypes of inputs and outputs. "fp16": all floats there are fp16, so they need no casts. "": the model's
    dtypes."""

    threads: int | None = None
    """The threads of the CPU, 1 to 256. None: the number in HEXANE_THREADS or OMP_NUM_THREADS of the environment, else
    all cores that this process may use."""

    contexts: int | None = None
    """How many calls of one model may run at the same time, 1 to 256. Each has its own arena and scratch, which are
    made when needed; further calls wait. None: as many as the cores that this process may use. Calls of a model with
    states, and calls on an engine, run one after another; `Model.context` makes callers that do not."""

    schedule: str = ""
    """The order of steps. "optimal": the order with the fewest live bytes, which takes up to some seconds longer to
    find. Networks whose layers follow one another gain nothing, and randomly wired ones a tenth of the arena or more.
    "apple", the default for a chip: the order of the list scheduler in the engine's own compiler."""

    trim_output_transpose: bool = False
    """Outputs keep the layout in which they were computed (channels last, for images), without the transposes at the
    end. `outputs` of the model has that layout."""

    compress: str | Compression | None = None
    """How weights are stored: "int8", "palette4" (or 1, 2, 3, 6, 8 bits), "auto", or an hx.Compression, which has modes
    for layers and a tolerance (docs/compression.md). None: as in the model."""

    memory: Memory = field(default_factory=Memory)
    """The memory that the model may take, and ways to need less."""

    dump: str | os.PathLike[str] | None = None
    """A folder for the printed graph after each pass (00-graph.txt, 01-expand.txt, ...) and the program. For a model of
    open shapes, the folder has the graphs and the program of the latest compilation."""

    def __post_init__(self) -> None:
        self.placed  # noqa: B018  raises Error
        if not isinstance(self.dtype, AutoDtype) and self.dtype not in ("", "fp32", "fp16", "bf16", "int8", "auto"):
            known = "'fp16', 'bf16', 'int8', 'auto', or 'fp32' for the model's own"
            raise Error(f"[compile] dtype: got {self.dtype!r}, need {known}")
        if self.fallback not in ("host", "error"):
            raise Error(f"[compile] fallback: got {self.fallback!r}, need 'host' or 'error'")
        if type(self.repair) is not bool:
            raise Error(f"[compile] repair: got {self.repair!r}, need True or False")
        if self.io not in ("", "fp16"):
            raise Error(f"[compile] io: got {self.io!r}, need 'fp16', or '' for the model's dtypes")
        if self.numerics not in ("", "ieee", "engine", "q31"):
            raise Error(
                f"[compile] numerics: got {self.numerics!r}, need 'engine', 'ieee' or 'q31', or '' for the target's"
            )
        self.compression  # noqa: B018  raises Error
        if not isinstance(self.memory, Memory):
            raise Error(f"[compile] memory: got {self.memory!r}, need an hx.Memory")
        for name, count in (("threads", self.threads), ("contexts", self.contexts)):
            if count is not None and (type(count) is not int or not 1 <= count <= MOST_THREADS):
                raise Error(f"[compile] {name}: got {count!r}, need an integer in 1..{MOST_THREADS}")

    @property
    def placed(self) -> Device:
        """`device` as an hx.Device."""
        return self.device if isinstance(self.device, Device) else Device(self.device)

    @property
    def auto_dtype(self) -> AutoDtype | None:
        """`dtype` as an hx.AutoDtype if it is "auto"; else None."""
        if isinstance(self.dtype, AutoDtype):
            return self.dtype
        return AutoDtype() if self.dtype == "auto" else None

    @property
    def compression(self) -> Compression | None:
        """`compress` as an hx.Compression; None if nothing is compressed."""
        return None if self.compress is None else as_compression(self.compress)

    @property
    def num_threads(self) -> int:
        """`threads` as a number. If None: the number in HEXANE_THREADS or OMP_NUM_THREADS, else all usable cores."""
        if self.threads is not None:
            return self.threads
        return threads_of_environment() or cores()

    @property
    def num_contexts(self) -> int:
        """`contexts` as a number."""
        return cores() if self.contexts is None else self.contexts

    @property
    def on_cpu(self) -> list[str]:
        """The names of set fields that only have an effect on the CPU."""
        return [name for name, given in (("numerics", self.numerics), ("memory.rows", self.memory.rows)) if given]

    def given(self, keywords: Mapping[str, Any]) -> "Options":
        """These options, with fields replaced by the keywords that are not None."""
        return replace(self, **{name: value for name, value in keywords.items() if value is not None})

    def check_for(self, target: Target) -> None:
        """Raises Error for options that do not go with the target."""
        is_chip = isinstance(target, Chip)
        known = ("", *SCHEDULES) if is_chip else ("", "optimal")
        if self.schedule not in known:
            need = ", ".join(map(repr, known[1:]))
            raise Error(f"[compile] schedule: got {self.schedule!r}, need {need}, or '' for the usual order")
        if not is_chip:
            if self.numerics == "engine":
                raise Error(f"[compile] numerics: got 'engine' for {target.label}, need a chip as the target")
            if self.placed.kind == "ane":
                raise Error(f"[compile] device: got 'ane' for {target.label}, need a chip as the target")
            return
        if self.numerics == "q31":
            raise Error(f"[compile] numerics: got 'q31' for {target.label}, need the host as the target")
        if self.dtype in ("fp32", "bf16", "int8") or self.auto_dtype is not None:
            dtype = "auto" if self.auto_dtype is not None else self.dtype
            raise Error(f"[compile] dtype: got {dtype!r} for {target.label}, which computes in fp16, need none")
        memory = self.memory
        of_host = ("hold_ports", "stream_input", "stream_output", "whole_weights")
        if given := [*memory.limits, *(name for name in of_host if getattr(memory, name))]:
            raise Error(f"[compile] memory: got {', '.join(given)} for {target.label}, need the host as the target")
        if self.trim_output_transpose:
            raise Error(f"[compile] trim_output_transpose: got it for {target.label}, need the host")
        if self.placed.kind == "ane" and self.on_cpu:
            raise Error(f"[compile] {', '.join(self.on_cpu)}: got it for the device 'ane', need the CPU for it")


DEFAULTS = Options()
