"""The C++ core. Arrays are numpy's; every failure raises hexane.errors.Error."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# ---- limits (csrc/core/limits.h) ----

MAX_RANK: int
MAX_BYTES: int
MAX_LIST: int
MAX_SLOTS: int
MAX_SLOT_NUMBERS: int

# ---- kernels ----

class KernelRow(TypedDict):
    name: str
    dtypes: str
    family: str
    attrs: str
    attrs_bytes: int
    accepts: str
    reads_ring: bool

def kernels() -> list[KernelRow]:
    """Every kernel row of the library, for the best instruction set of this machine."""

def has_kernel(name: str, family: str, inputs: Sequence[str | None], outputs: Sequence[str | None]) -> bool:
    """Whether a kernel of this name and family, or "any", takes and gives these dtypes; None: an operand that is absent."""

Operand = Array | tuple[str, Sequence[int]] | tuple[str, Sequence[int], Sequence[int]] | None
"""Of a call that only asks: an array, or its dtype, shape and (if not dense) strides in bytes; None where it is absent."""

Ranges = Sequence[tuple[int, int]]
"""A box: a range of each axis."""

def kernel_cuts(
    name: str,
    family: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    attrs: bytes,
    strings: bytes,
    numerics: bytes = b"",
) -> list[tuple[int, int, int]]:
    """The axes of the first output along which it can be cut, best for threads first: (axis, extent, grain); pieces begin
    and end at multiples of the grain, or at the end. Raises Error if the kernel does not take the call."""

def kernel_needs(
    name: str,
    family: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    attrs: bytes,
    strings: bytes,
    input: int,
    box: Ranges,
    numerics: bytes = b"",
) -> list[tuple[int, int]]:
    """The box of an input that this box of the first output needs, and the same box of each other output where there are
    several. Nothing outside of it matters. No axes for an absent input; empty ranges for an empty box."""

def numerics_families() -> dict[str, str]:
    """The layout string of the parameter block of every family of arithmetic, by name."""

def dtypes() -> dict[str, int]:
    """Bits of every dtype, by name."""

def convert(src: Array, dst: Array) -> None:
    """Fills `dst` from `src`: float32 to float16 (to nearest even) or float16 to float32; C-contiguous, of one size."""

def run_kernel(
    name: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    attrs: bytes = b"",
    strings: bytes = b"\0",
    constants: Sequence[int] = (),
    pieces: int = 1,
    which: int = 99,
    family: str = "ieee",
    numerics: bytes = b"",
    repeats: int = 1,
) -> list[float]:
    """Runs one kernel by itself, its cut number `which` in so many pieces; 99: in one. Seconds of each repeat, without what
    is done once when a plan is loaded. `numerics` is the parameter block of the family's arithmetic, b"": none."""

def run_part(
    name: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    attrs: bytes,
    strings: bytes,
    axis: int,
    begin: int,
    end: int,
    rings: Mapping[int, int] = {},
    family: str = "ieee",
) -> None:
    """Runs one kernel on [begin, end) of an axis along which it can be cut. `rings`: operands, counted over inputs and
    outputs, whose arrays keep only some of so many rows of axis 1, row i at place i modulo what they keep; axis is 1."""

def run_blocks(
    name: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    attrs: bytes,
    strings: bytes,
    order: Sequence[int],
) -> int:
    """Fills the outputs from partial results, made in this order of blocks. How many blocks there are, 0: the kernel has no
    partial results for such a call. An empty order only asks."""

# ---- bytes ----

def hash128(data: object) -> bytes:
    """16 bytes that identify the contents of a contiguous buffer (MurmurHash3 x64 128, seed 0)."""

def xxh64(data: object, seed: int = 0) -> int:
    """XXH64 of a contiguous buffer: the checksum of plan files."""

def save_file(path: str, data: object) -> None:
    """Writes a buffer to a file atomically: PATH.part beside it, synced, renamed; a failure leaves the old file. A link is
    followed; what is no regular file is refused."""

# ---- allocation ----

def alloc_solve(
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    size: NDArray[np.int64],
    alignment: int = 64,
    capacity: int | None = None,
    work_budget: int | None = None,
    alignments: NDArray[np.int64] | None = None,
    places: NDArray[np.int64] | None = None,
    gaps: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], int, int]:
    """Offsets (bytes) of buffers live at the steps lower <= step < upper, so that no two live ones overlap; height of the
    arena; and a bound below which no packing exists (at least `alloc_bound`; equal to the height: proven optimal). With a
    capacity, an error if no packing fits it or none is found within the work budget (a count of small steps, by default
    worth about 0.1 s, or 10 s to meet a capacity).

    alignments: of each buffer's offset, 0 for none of its own. places: the offset it has to have, -1 for any. gaps: rows
    (buffer, lower, upper) of steps at which others may lie in a buffer, inside its live range and in order."""

def alloc_check(
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    size: NDArray[np.int64],
    offsets: NDArray[np.int64],
    height: int,
    alignment: int = 64,
    capacity: int | None = None,
    alignments: NDArray[np.int64] | None = None,
    places: NDArray[np.int64] | None = None,
    gaps: NDArray[np.int64] | None = None,
) -> None:
    """Raises the first broken rule of an allocation, with the buffers' indices, got and need."""

def alloc_bound(
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    size: NDArray[np.int64],
    alignment: int = 64,
    places: NDArray[np.int64] | None = None,
    gaps: NDArray[np.int64] | None = None,
) -> int:
    """The largest sum of sizes (each rounded up to the alignment) that are live at one step; at least the end of every
    buffer that has its place."""

# ---- schedules ----

class Scheduling:
    """Layers 0..num_layers - 1 and the tensors between them, to be put in order.

    A tensor takes its bytes from the step of its producer (-1: it is there before the first) to that of its last reader, both
    included, or to the end where it is kept. Raises Error for layers that do not exist, or wait for one another in a circle."""

    def __init__(
        self,
        bytes: NDArray[np.int64],
        producers: NDArray[np.int64],
        kept: NDArray[np.int64],
        reads: NDArray[np.int64],
        num_layers: int,
        edges: NDArray[np.int64] | None = None,
        scratch: NDArray[np.int64] | None = None,
        rings: NDArray[np.int64] | None = None,
    ) -> None:
        """bytes, producers, kept: one for each tensor. reads: rows (tensor, layer). edges: rows (layer, layer behind it).
        scratch: bytes that a layer needs while it runs. rings: whether a layer reads or writes a ring buffer."""
    def greedy(self, ceiling: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The list scheduler's order, and a row for each step: the number of the tie-break that told it from the next best
        (0: nothing else was ready), then what it was chosen for: ring, branch sibling and merge sibling scores, when the
        branch around it was begun (0: never), the footprint in bytes of the branch that it begins (0: does not fit)."""
    def optimal(
        self, start: NDArray[np.int64], work_budget: int | None = None
    ) -> tuple[NDArray[np.int64], int, int, int]:
        """The order of the lowest peak, that peak, a bound below which no order is, and the number of sets of layers that the
        search met. Peak and bound are equal where the order is proven optimal. Never needs more than `start`; what the
        work budget (a count of small steps) allows is tried, by default some 20 s in the worst case."""
    def peak(self, order: NDArray[np.int64]) -> int:
        """The most bytes live at a step."""
    def partition(self, order: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        """A row for each partition: the first position in the order, one behind the last, the most bytes in use at a step,
        bytes loaded from main memory, bytes stored there."""
    def check(self, order: NDArray[np.int64], peak: int) -> None:
        """Raises the first broken rule of an order, with the layers, got and need."""
    def check_partitions(self, order: NDArray[np.int64], partitions: NDArray[np.int64], limit: int) -> None:
        """Raises the first broken rule of partitions, with got and need."""

# ---- plans ----

Sections = dict[str, Any]
"""The sections of csrc/plan/plan.h by name: structured arrays of `plan_dtypes`, and bytes-like objects for strings,
attrs, weights and state. An absent section is empty; "strings" is at least b"\\0"."""

def plan_dtypes() -> dict[str, np.dtype[Any]]:
    """The row dtypes "spaces", "tensors", "operands", "numerics", "steps", "loops", "moves", "inputs", "outputs", with the field names of plan.h."""

def plan_write(sections: Sections) -> bytes:
    """The bytes of a plan file, checksum included. Nothing is verified but section names and row sizes."""

def plan_save(path: str, sections: Sections) -> None:
    """`save_file(path, plan_write(sections))` without the copy in memory."""

def plan_read(data: object) -> dict[str, Array]:
    """Verifies a plan (bytes-like) completely and gives its sections: views of `data`, rows as structured arrays."""

# ---- programs ----

class PortInfo(TypedDict):
    name: str
    emitted_name: str
    dtype: str
    shape: tuple[int, ...]
    length: int
    axis: int

class StepInfo(TypedDict):
    kernel: str
    source: str
    cost: int  # nanoseconds on one core, as the kernel estimates
    parallel: bool
    calls: int  # since profile(True)
    nanoseconds: int  # of all of them together
    median: int  # nanoseconds of one call, of the last 128

class MemoryPool:
    """Where programs share weights of equal bytes, and what kernels pack of them."""

class Program:
    """A plan that is ready to run: memory allocated, kernels found and prepared. Safe to use from several threads; the
    runs of one program happen one after the other."""

    def __init__(self, plan: object, threads: int = 1, pool: MemoryPool | None = None) -> None:
        """From a plan's bytes (bytes-like) or from its sections (`Sections`: no checksum, no copy). They are kept alive
        and weights are used in place where aligned to 16 bytes: do not change them afterwards. With a pool, which only
        sections may have, weights are copied to it instead, and the section is let go."""
    @staticmethod
    def load(path: str | bytes, threads: int = 1) -> Program:
        """From a file, which is read as a whole."""
    @property
    def inputs(self) -> list[PortInfo]: ...
    @property
    def outputs(self) -> list[PortInfo]: ...
    @property
    def steps(self) -> list[StepInfo]: ...
    @property
    def arithmetics(self) -> list[str]:
        """What steps compute in, by the name of the target it belongs to; that of the program's own target is the first."""
    @property
    def threads(self) -> int: ...
    def dtypes(self, kind: str) -> dict[str, str]:
        """The dtype of each named tensor in the "weights" or the "state"."""
    @property
    def cost(self) -> int:
        """Nanoseconds one run takes on one core, as the kernels estimate."""
    @property
    def memory(self) -> dict[str, int]:
        """Bytes of each memory (arenas, weights, state), by name."""
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def unshared_bytes(self) -> int:
        """About what would be free if this program were gone and the others of its pool were not."""
    def run(self, inputs: Mapping[str, object] | Sequence[object]) -> list[Array]:
        """One array for each output, new. Inputs by name or in port order (list, tuple): ndarray, buffer or
        `__dlpack__`, of the port's dtype (native byte order) and shape; any strides."""
    def bind(self, buffers: dict[str, Any]) -> Bound:
        """Binds C-contiguous buffers to ports, by name: every input, and any outputs (the others are allocated).
        Outputs must be writable and overlap no other buffer."""
    def trace(
        self, inputs: Mapping[str, object] | Sequence[object], after: Callable[[int, list[Array]], None]
    ) -> list[Array]:
        """`run`, calling `after(step, copies of the step's outputs)` after each step."""
    def profile(self, on: bool) -> None:
        """Starts counting calls and nanoseconds of every step (from zero), or stops."""
    def reset_state(self) -> None:
        """Puts the initial contents back."""
    def read_state(self, name: str) -> Array:
        """A copy of the state tensor of that name."""
    def write_state(self, name: str, value: Array) -> None: ...
    def update(self, name: str, value: Array) -> None:
        """Replaces the contents of the weights tensor of that name and prepares the steps that read it again."""
    def save(self, path: str | bytes) -> None:
        """Writes the plan to a file as `save_file` does: weights as they are now, the initial contents of the state."""

@final
class Bound:
    """A program with its buffers: calling it runs the program on them."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    def __call__(self) -> None: ...

def isa() -> str:
    """Highway's name of the instruction set the kernels run on: "AVX3", "AVX2", "NEON", ..."""

def give_back_free_memory() -> None:
    """To the system, what the C library keeps of freed memory."""
