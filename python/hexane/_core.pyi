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
MAX_KNOTS: int
MAX_SLOTS: int
MAX_SLOT_NUMBERS: int
NO_ANSWER: int
"""The code of a DeviceError: the device has not answered within its time limit."""

# ---- kernels ----

class KernelRow(TypedDict):
    name: str
    dtypes: str
    family: str
    attrs: str
    attrs_bytes: int
    accepts: str
    reads_ring: bool
    packs: bool

def kernels() -> list[KernelRow]:
    """Every kernel row of the library, for the best instruction set of this machine."""

def has_kernel(name: str, family: str, inputs: Sequence[str | None], outputs: Sequence[str | None]) -> bool:
    """True if a kernel of this name and family (or "any") has these dtypes; None means an absent operand."""

Described = tuple[str, Sequence[int], Sequence[int], int, Array | None]
"""An operand as in a plan: dtype, shape, strides, the number of rows of axis 1 that are kept (0: all), and for a
constant its bytes from the first element on."""

Operand = Array | tuple[str, Sequence[int]] | tuple[str, Sequence[int], Sequence[int]] | None
"""An operand of a query, which runs no kernel: an array, or its dtype, shape and (if not dense) strides in bytes; None
for an absent operand."""

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
    """The axes of the first output along which the call can be cut, the best axis for threads first: (axis, extent,
    grain). Each piece of a cut begins at a multiple of its grain. Raises Error if the kernel does not take the call."""

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
    """The box of an input that the kernel reads to compute this box of its first output, and the same box of every
    other output. An absent input has a box without axes; an empty box has empty ranges."""

def kernel_needs_along(
    name: str,
    family: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    attrs: bytes,
    strings: bytes,
    input: int,
    axis: int,
    numerics: bytes = b"",
) -> list[tuple[int, int]]:
    """For each index of an axis of the first output the range of the same axis of an input that it needs."""

def kernel_scratch(
    name: str,
    family: str,
    inputs: Sequence[Described | None],
    outputs: Sequence[Described | None],
    attrs: bytes,
    strings: bytes,
    numerics: bytes,
    cut: tuple[int, int, int] | None,
    in_loop: bool,
    threads: int,
) -> tuple[int, int, int]:
    """Scratch of a step: bytes per run, bytes per thread, and the cost of the shared part. cut: (axis, begin, end) of
    one run; None for the whole output. in_loop: the step runs more than once. Raises Error if the kernel does not take
    the call."""

def scratch_bytes(steps: Sequence[tuple[int, int, int]], threads: int) -> int:
    """Bytes of scratch of a program with these steps, each a result of `kernel_scratch`."""

def numerics_families() -> dict[str, str]:
    """The layout string of the parameter block of every family of arithmetic, by name."""

def instruction_sets() -> list[str]:
    """The instruction sets of this machine that have kernels, the best first, which is also the default."""

def use_instruction_set(name: str) -> None:
    """For tests: uses the kernels of this instruction set. Call it before the first look-up of a kernel: tables are
    kept."""

def bf16_forms() -> list[str]:
    """The forms in which this machine can multiply in bf16: "plain", "avx512_bf16", "amx". The first of the list is
    used."""

def use_bf16_form(name: str) -> None:
    """For tests: programs made after this call multiply bf16 in this form."""

def dtypes() -> dict[str, int]:
    """Bits of every dtype, by name."""

def convert(src: Array, dst: Array) -> bool:
    """Fills `dst` from `src`: float32 to float16 (to nearest even) or float16 to float32; C-contiguous, of one size. False where a
    float16 became infinite or NaN."""

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
    """Runs one kernel alone. `which`: the number of the cut along which it runs in `pieces`; 99: uncut. Returns the
    seconds of each repeat, without the work done once when a plan is loaded. `numerics` is the parameter block of the
    family's arithmetic, b"": none."""

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
    """Runs one kernel on [begin, end) of an axis along which it can be cut. `rings`: maps an operand (counted over
    inputs, then outputs) to its full number of rows along axis 1. The operand's array is a ring buffer: row i lies at i
    modulo the rows of the array. The axis must then be 1.
    """

# ---- bytes ----

def hash128(data: object) -> bytes:
    """16 bytes that identify the contents of a contiguous buffer (MurmurHash3 x64 128, seed 0)."""

def xxh64(data: object, seed: int = 0) -> int:
    """XXH64 of a contiguous buffer: the checksum of plan files."""

class WeightFile:
    """A weight file of MIL that is not written yet. arrays: each with the name of its dtype; elements smaller than a
    byte take a byte each here. Equal arrays are stored once. No array is copied, so the arrays must not change.
    `bytes(file)` is the file."""

    offsets: list[int]  # offset of each array's metadata
    def __init__(self, arrays: Sequence[tuple[str, object]]) -> None: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

def blob_write(arrays: Sequence[tuple[str, object]]) -> tuple[bytes, list[int]]:
    """The bytes of a WeightFile, and its offsets."""

def blob_read(data: object, offset: int) -> tuple[str, Array]:
    """The dtype name and the data of the blob whose metadata is at this offset. The data is a read-only view of `data`;
    elements smaller than a byte are copied to an array with one byte each."""

def quantise_int8(weights: Array, outer: int, channels: int, inner: int) -> tuple[Array, Array]:
    """Integers and a scale for each channel of float32 weights [outer][channels][inner]: scale = largest magnitude / 127, rounded to
    fp16. The integers are flat. Error for weights that are not finite."""

def quantise_palette(halves: Array, bits: int, less: int = 0) -> tuple[Array, Array, float]:
    """The palette of at most 2^bits - less entries with the smallest sum of squared distances. The weights are given by
    their fp16 bits as uint16. Returns (entries as fp16 bits, flat int32 indices, that sum). Error for weights that are
    not finite."""

def quantise_groups(halves: Array, outer: int, groups: int, bits: int, threads: int) -> tuple[Array, Array]:
    """A palette for each group of weights [outer][groups][inner] given by their fp16 bits as uint16: (entries [groups][2^bits] as fp16
    bits, flat uint8 indices). Error for weights that are not finite, and for parts that are not equal."""

def quantise_vectors(
    halves: Array, outer: int, vectors: int, size: int, bits: int, threads: int
) -> tuple[Array, Array, float]:
    """A palette of vectors for weights [outer][vectors][size][inner], given by their fp16 bits as uint16. Returns
    (entries [2^bits][size] as fp16 bits, flat uint8 indices [outer][vectors][inner], sum of squared distances). The
    size is 2 or 4. Error for weights that are not finite, and for parts that are not equal."""

def quantise_blocks(
    weights: Array, blocks: int, bits: int, threads: int, importance: Array | None = None
) -> tuple[Array, Array]:
    """Quantises equal consecutive blocks of float32 weights to 4 bits (-8 to 7) or 8 bits (-127 to 127), with one scale
    per block that fp16 holds. Returns (flat int8 integers, float32 scales). importance: weights of the squared errors,
    float [rows][channels of a block]. The blocks form equally long runs, one per row, and the weights of a channel are
    neighbours. Error for weights that are not finite, blocks of unequal size, and an importance that is negative, not
    finite, or of another shape."""

def save_file(path: str, data: object, sync: bool = True) -> None:
    """Writes a buffer, a list of buffers one after the other, or a WeightFile to a file atomically. PATH.part is
    written, synced and renamed, so a failure leaves the old file. A link is followed; anything but a regular file is
    refused. With sync=False, a loss of power soon afterwards may leave a truncated file."""

def file_has(path: str, data: object) -> bool:
    """True if the path is a regular file with exactly these bytes: a buffer, a list of buffers, or a WeightFile."""

def exchange_folders(one: str, other: str) -> bool:
    """Exchanges two folders atomically. False if the system or the file system cannot do that."""

class FileMapping:
    """A regular file mapped into memory, read-only. Later writes to the file change the bytes. Reading bytes that the
    file no longer has ends the process."""

    @staticmethod
    def map(descriptor: int, where: str) -> FileMapping | None:
        """Maps the open file; the descriptor may be closed afterwards. None for an empty file, and if the file system
        cannot map it. `where` starts the messages of errors."""

    @staticmethod
    def of(array: Array) -> FileMapping | None:
        """Returns the mapped file in which the array lies; None for an array in memory."""

    def part(self, begin: int, size: int) -> NDArray[np.uint8]:
        """Returns these bytes of the file as a read-only array, which keeps the mapping. Raises Error for a range
        beyond the file."""

    def read(self, begin: int, size: int) -> bytes:
        """Returns a copy of these bytes of the file, read without the mapping. Raises Error for a range beyond the file,
        and for a file that became shorter."""

    def release(self) -> None:
        """Gives back the memory of all pages. The next access reads them from the file again."""

    def check_unchanged(self) -> None:
        """Raises Error if the file's size or modification time differs from those at `map`."""

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
    """Packs buffers that are live at the steps lower <= step < upper, so that no two live buffers overlap. Returns
    their offsets in bytes, the height of the arena, and a lower bound of the height. The bound is at least
    `alloc_bound`; if it equals the height, the packing is optimal. With a capacity, raises Error if no packing fits, or
    if the search finds none within the work budget. The budget counts small steps; by default it is worth about 0.1 s,
    or 10 s with a capacity.

    alignments: one per buffer; 0 takes `alignment`. places: a fixed offset per buffer, or -1. gaps: rows (buffer,
    lower, upper) of steps at which other buffers may use its memory. Gaps lie inside the buffer's live range, in
    order."""

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
    """A lower bound of the arena's height: the largest sum of the sizes of buffers live at one step (each rounded up to
    the alignment), or the highest end of a buffer with a fixed place if that is more."""

# ---- schedules ----

class Scheduling:
    """Layers 0..num_layers - 1 and the tensors between them, to be put in order.

    A tensor takes its bytes from the step of its producer to the step of its last reader, both included. A producer of
    -1 means that it exists before the first step; a kept tensor stays to the end. Raises Error for layers that do not
    exist, or wait for one another in a circle.
    """

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
        """bytes, producers, kept: one for each tensor. reads: rows (tensor, layer). edges: rows (layer, a later layer).
        scratch: extra bytes of each running layer. rings: true for layers that read or write a ring buffer."""

    def greedy(self, ceiling: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The list scheduler's order, and a row for each step. The row starts with the number of the tie-break that
        decided (0: nothing else was ready). The row's other entries are scores: ring, branch sibling, merge sibling,
        the step where the surrounding branch began (0: never), and the footprint in bytes of a branch that begins here
        (0: does not fit)."""

    def optimal(
        self, start: NDArray[np.int64], work_budget: int | None = None
    ) -> tuple[NDArray[np.int64], int, int, int]:
        """The order with the lowest peak found, its peak, a lower bound of the peak of every order, and the number of
        sets of layers that the search visited. Peak and bound are equal if the order is proven optimal. The result
        never needs more than `start`. The search stops when the work budget, a count of small steps, is spent; by
        default it takes 20 s at worst."""

    def peak(self, order: NDArray[np.int64]) -> int:
        """The most bytes live at a step."""

    def partition(self, order: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        """A row for each partition: the half-open range [first, end) of its positions in the order, its peak bytes, and
        the bytes it loads from and stores to main memory."""

    def pairs(self, layers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each layer its co-issue partner (-1: none), and a verdict on it and the next layer. Verdicts: 0 a pair, 1
        not in the order, 2 same class of engine, 3 given to different engines, 4 one waits for the other, 5 an input is
        chained, 6 both outputs stream, 7 no neighbours in a partition, 8 in a pair already. The rows of `layers` are
        (class, engine, position or -1, partition, input is chained, output goes to main memory, product with a resident
        weight). A class is 0 multiply-accumulate, 1 planar or 2 transfer."""

    def why_not_together(self, layers: NDArray[np.int64], a: int, b: int) -> int:
        """The verdict on two layers."""

    def check_pairs(self, layers: NDArray[np.int64], partners: NDArray[np.int64]) -> None:
        """Raises Error for the first pair that breaks a rule, and names the rule."""

    def check(self, order: NDArray[np.int64], peak: int) -> None:
        """Raises the first broken rule of an order, with the layers, got and need."""

    def check_partitions(self, order: NDArray[np.int64], partitions: NDArray[np.int64], limit: int) -> None:
        """Raises the first broken rule of partitions, with got and need."""

# ---- memory of the engine ----

def allocation_types(
    layers: NDArray[np.int64], tensors: NDArray[np.int64], reads: NDArray[np.int64], chaining: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each tensor its allocation type (0..8, csrc/alloc/types.h) and the reason why it is not chained. Reasons: 0
    it is, 1 no edge on chip or no memory of its own, 2 the chip does not chain, 3 fan-out, 4 other class of engine, 5
    other engine, 6 tiles differ, 7 not the next layer of its partition, 8 too few rows for the reader's first tile. The
    rows of `layers` are (class of engine, engine, position, partition). The rows of `tensors` begin with (producer or
    -1, kept, ring, the rewritten tensor or -1). Their next columns are width, height and channels of the producer's
    tiles, and of the reader's. The last two are the rows emitted before the reader may begin, and the rows that its
    first tile needs. The rows of `reads` are (tensor, layer)."""

def check_allocation_types(
    layers: NDArray[np.int64],
    tensors: NDArray[np.int64],
    reads: NDArray[np.int64],
    types: NDArray[np.int64],
    chaining: bool,
) -> None:
    """Raises Error for the first tensor whose type contradicts its uses."""

def working_set(
    tensors: NDArray[np.int64], touches: NDArray[np.int64], capacity: int, alignment: int
) -> tuple[list[bool], list[list[int]], int, int]:
    """Fits the tensors of a partition into on-chip memory of this capacity. Returns the spilled tensors, the offsets on
    chip (one per tensor, or one per touch of a spilled tensor), the bytes in use, and the extra traffic in bytes.
    tensors: rows (bytes; bytes of the tile that a spilled tensor takes at a touch; three flags: the first touch
    computes it, it is stored to main memory even if not spilled, it may not be spilled). touches: rows (tensor, step),
    steps rising. Raises Error if the partition does not fit even with spilled tensors."""

def check_working_set(
    tensors: NDArray[np.int64],
    touches: NDArray[np.int64],
    capacity: int,
    alignment: int,
    spilled: list[bool],
    offsets: list[list[int]],
    height: int,
    traffic: int,
) -> None:
    """Raises the first broken rule of a working set."""

def bank_conflicts(banks: int, bank_bytes: int, rows: int, stride: int) -> int:
    """The most rows in one bank when rows at a stride (bytes) are read at once. The bank of an address is address /
    bank_bytes mod banks."""

def bank_stride(banks: int, bank_bytes: int, rows: int, row_bytes: int, most: int) -> int:
    """The stride in bytes, at least a row's and at most `most`, with the fewest conflicts; of several, the smallest."""

def main_memory_pitch(row_bytes: int, rows: int, planes: int, row_alignment: int, page: int) -> tuple[int, int, int]:
    """Bytes from row to row, from plane to plane, and of a whole tensor in main memory."""

def concat_rows(row_bytes: Sequence[int], granule: int) -> list[tuple[int, bool]]:
    """For each operand of a concatenation within rows: the byte of the row at which the operand begins, and whether it
    may be written there directly. Transfers move whole granules."""

Kernel = tuple[int, int, int, int, int, int, int]
"""outputs, inputs of a group, depth, height, width, groups, bits of a weight (1..16)"""
Engines = tuple[int, int, int]
"""number of engines, output channels of a group that one engine computes at once, alignment of a sub-kernel in bytes"""

def output_group(kernel: Kernel, kernel_memory: int, most: int) -> int:
    """The largest power of two of output channels, up to `most`, whose weights fit an engine's kernel memory (bytes)."""

def output_group_decoded(kernel: Kernel, accumulators: int, bytes: int) -> int:
    """`output_group` in Apple's compiler: the largest power of two up to accumulators / taps and bytes / taps."""

def packed_shape(kernel: Kernel, engines: Engines) -> tuple[int, int, int, int]:
    """The number of groups of output channels, of engines with a group, and of groups per engine, and the bytes from
    one sub-kernel to the next."""

def pack_kernel(kernel: Kernel, engines: Engines, layout: str, weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The sub-kernels of all engines. weights: packed bits, lowest first, in the order of the axes in `layout` ("oidhw")."""

def unpack_kernel(kernel: Kernel, engines: Engines, layout: str, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of pack_kernel."""

# ---- plans ----

Sections = dict[str, Any]
"""The sections of csrc/plan/plan.h by name: structured arrays of `plan_dtypes`, and bytes-like objects for strings,
attrs, weights, packed and state. State and weights may be lists of pieces instead: (offset, bytes-like object), in order.
An absent section is empty; "strings" is at least b"\\0"."""

def plan_dtypes() -> dict[str, np.dtype[Any]]:
    """The row dtypes "spaces", "tensors", "operands", "numerics", "steps", "loops", "moves", "inputs", "outputs", "blocks", with the field names of plan.h."""

def plan_write(sections: Sections) -> bytes:
    """The bytes of a plan file, checksum included. Nothing is verified but section names and row sizes."""

def plan_save(path: str, sections: Sections) -> None:
    """`save_file(path, plan_write(sections))` without the copy in memory."""

def plan_read(data: object) -> dict[str, Array]:
    """Verifies a plan (bytes-like) completely and gives its sections: views of `data`, rows as structured arrays."""

def lz4_unpack(data: object, size: int) -> bytes:
    """The `size` bytes that a block of LZ4 (bytes-like, without a frame) unpacks to. Raises Error for any other block."""

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
    cost: int  # the kernel's estimate: nanoseconds on one core
    parallel: bool
    calls: int  # number of calls since profile(True)
    nanoseconds: int  # total of these calls
    median: int  # median nanoseconds of the last 128 calls
    waited: int  # for a device step: the step that waits for its end; else the next step

class DevicePort(TypedDict):
    name: str
    dtype: str
    shape: tuple[int, int, int, int]  # batches, channels, height, width
    strides: tuple[int, int, int, int]  # strides in bytes
    bytes: int

class DeviceProgram:
    """A program of a device, whose ports are known while it is loaded, in the device's order."""

    def load(self, qos: int) -> None: ...
    def unload(self) -> None: ...
    def purge(self) -> None:
        """Removes the program from the device's cache for later processes."""

    def attributes(self, qos: int) -> str:
        """The device's own description of the program, as an XML property list if possible. A program that is not
        loaded is loaded meanwhile, even if `load` would fail because its ports are not understood."""

    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        qos: int,
        surface_bytes: Sequence[int] = (),
        least_surface_bytes: int = 0,
    ) -> dict[str, Array]:
        """Runs the loaded program once, on surfaces of its own, and returns the outputs by name, with four axes.
        surface_bytes: sizes of the surfaces, inputs first. A missing size, or 0, means the size that the port needs,
        but at least least_surface_bytes."""

    @property
    def inputs(self) -> list[DevicePort]: ...
    @property
    def outputs(self) -> list[DevicePort]: ...

class Device:
    """Compiles MIL text, and runs the resulting programs."""

    @property
    def name(self) -> str: ...
    def compile(self, mil: str, weights: Mapping[str, bytes], qos: int) -> DeviceProgram:
        """weights: the files that the text names, by their paths relative to @model_path/."""

    def find(self, mil: str, weights: Mapping[str, bytes]) -> DeviceProgram | None:
        """The program that the device has cached for this text and these weights; None if there is none. Nothing is
        compiled. Loading it may still raise DeviceError; `compile` then makes it anew."""

    @property
    def counters(self) -> dict[str, int]:
        """The numbers of programs that this process has compiled and has loaded, and their limits (0: no limit).
        "compiles_in_loads": loads that compiled the program again, because the device had not kept it; they count
        against the limit of compiles."""

def ane_device(setup: AneSetup) -> Device:
    """The Neural Engine. Raises DeviceError where there is none."""

def plan_device(to_plan: Callable[[str, dict[str, bytes]], bytes], row_alignment: int) -> Device:
    """A device that runs on the CPU what `to_plan(mil, weights)` makes of a program: the bytes of a plan."""

def null_device(inputs: Sequence[DevicePort], outputs: Sequence[DevicePort]) -> Device:
    """A device whose programs have these ports and do nothing."""

def callback_program(
    inputs: Sequence[DevicePort], outputs: Sequence[DevicePort], bind: Callable[..., Callable[[], None]]
) -> DeviceProgram:
    """A program that is a function of this process. `bind` gets the bytes of each surface as uint8, the inputs'
    (read-only) before the outputs', and returns the function to call in every run. If other steps can run meanwhile,
    the function runs on its own thread. An exception in the function becomes the Error of the run."""

# A loaded program, the names of the ports that are the operands of its step, and the quality of service.
MadeProgram = tuple[DeviceProgram, list[str], list[str], int]

def new_block(bytes: int) -> Array:
    """Zeroed bytes to write. A pool keeps an array of all of them without a copy; nobody may write to them from then
    on."""

class MemoryPool:
    """Memory that programs share: weights with equal bytes, and the forms in which kernels pack them."""

    def keep(self, array: Array) -> Array:
        """The array as a read-only view of the pool's block of these bytes, so that programs with this weight have no
        copy of it. The block lives as long as one of them. An array of a `FileMapping` stays in the file. Raises Error
        for an array that is not C-contiguous."""

    def is_shared(self, array: Array) -> bool:
        """True if the array is a view of a block of this pool that somebody else holds too."""

class Program:
    """A plan that is ready to run: memory allocated, kernels found and prepared. Safe to use from several threads; the
    runs of one program happen one after the other, unless `limit_callers` lets several run."""

    def __init__(
        self,
        plan: object,
        threads: int = 1,
        pool: MemoryPool | None = None,
        programs: Sequence[MadeProgram] = (),
        swaps: Sequence[tuple[str, str]] = (),
        packed_only: bool = False,
    ) -> None:
        """Makes a program of a plan's bytes (bytes-like), or of its sections (`Sections`: no checksum). The buffers are
        kept alive, and weights aligned to 16 bytes are used in place: do not change them afterwards. With a pool, which
        requires sections, weights are copied to the pool and the section is released. programs: the programs of its
        device steps, in order. swaps: pairs of memories that are exchanged after each call: a state, and the buffer
        into which a device computes its new value. packed_only: with a pool, do not keep large weights beside the
        panels into which kernels have packed them. Reading, replacing or saving the weights then raises Error.
        """

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
    def timeline(self) -> list[tuple[int, int, int]]:
        """(step, begin, end) in nanoseconds of one clock, of the last call that was profiled, in order of their begins."""
    @property
    def surfaces(self) -> tuple[dict[str, Surface], dict[str, Surface]]:
        """The inputs and the outputs that are surfaces, by name."""

    @property
    def arithmetics(self) -> list[str]:
        """The arithmetic of the steps, by the name of the target that it belongs to; the program's own target comes
        first."""

    @property
    def threads(self) -> int: ...
    def types(self, kind: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of each named tensor in the "weights" or the "state"."""

    @property
    def cost(self) -> int:
        """Nanoseconds one run takes on one core, as the kernels estimate."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of each memory (arenas, weights, state), by name."""

    def share_states(self, other: Program) -> None:
        """From now on this program uses the states of the other program, which stays alive. Only one of the two runs at
        a time. Raises Error for states of other names, places or types."""

    def limit_callers(self, most: int) -> None:
        """Sets how many runs may happen at the same time, each in a context that is made when needed; 1 by default.
        Bound calls, and programs with states, callbacks or devices, have one context only."""

    @property
    def callers(self) -> int:
        """The number of contexts made so far for simultaneous runs, including the first."""

    @property
    def own_memory(self) -> dict[str, int]:
        """Bytes of the memories that no other context shares, by name: arenas, states, surfaces and scratch."""

    @property
    def table_bytes(self) -> int:
        """Bytes of a context's table of operand addresses, which `own_memory` does not include."""

    @property
    def scratch_bytes(self) -> int: ...
    @property
    def unshared_bytes(self) -> int:
        """About how many bytes would become free if only this program of its pool were destroyed."""

    def context(self) -> Program:
        """A Program with the same plan and weights, and its own states (with their first contents), arena, scratch and
        surfaces. `update` and `drop_first_contents` act on all contexts."""

    def run(self, inputs: Mapping[str, object] | Sequence[object]) -> list[Array]:
        """Returns one new array for each output. Inputs by name or in port order (list, tuple): ndarray, buffer or
        `__dlpack__`, of the port's dtype (native byte order) and shape; any strides."""

    def bind(self, buffers: dict[str, Any]) -> Bound:
        """Binds C-contiguous buffers to ports, by name: every input, and any outputs (the others are allocated).
        Outputs must be writable and overlap no other buffer."""

    def trace(
        self, inputs: Mapping[str, object] | Sequence[object], after: Callable[[int, list[Array]], bool | None]
    ) -> list[Array]:
        """Like `run`, but calls `after(step, copies of the step's outputs)` after each step. If `after` returns True,
        the copies, which it may have changed, replace the outputs for later steps."""

    def profile(self, on: bool) -> None:
        """Starts counting calls and nanoseconds of every step (from zero), or stops."""

    def drop_first_contents(self) -> None:
        """Frees the initial contents of the states. `reset_state` raises Error from then on, and so does `save` with
        the initial contents."""

    def reset_state(self) -> None:
        """Puts the initial contents back."""

    def read_state(self, name: str) -> Array:
        """A copy of the state tensor of that name."""

    def read_param(self, name: str) -> Array:
        """A copy of the weights tensor of that name, as it is now."""

    def write_state(self, name: str, value: Array) -> None: ...
    def update(self, name: str, value: Array) -> None:
        """Replaces the contents of the weights tensor of that name in all contexts and prepares the steps that read it
        again. Waits for calls that run."""

    def save(self, path: str | bytes, states_now: bool = False) -> None:
        """Writes the plan to a file as `save_file` does: weights as they are now, the contents of the state at first, or now."""

    def plan_bytes(self, states_now: bool = False) -> bytes:
        """The bytes that `save` writes."""

@final
class Bound:
    """A program with its buffers: calling it runs the program on them."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    def __call__(self) -> None: ...

def isa() -> str:
    """Highway's name of the instruction set the kernels run on: "AVX3", "AVX2", "NEON", ..."""

def give_back_free_memory() -> None:
    """Gives memory back to the system that was freed but that the C library has kept."""

class AneSetup:
    """Paths of the library of hexane_ane.h and of the private framework ("": the system's), and the limits of the
    system."""

    def __init__(
        self,
        *,
        library: str,
        framework: str,
        compile_limit: int,
        load_limit: int,
        load_retry_ms: int,
        build_limit_ms: int = 0,
        evaluate_limit_ms: int = 0,
    ) -> None: ...

def probe_ane(setup: AneSetup) -> list[tuple[str, str, str, str]]:
    """Rows (kind, name, found, need), where the kind is "class", "selector" or "device". A missing item has found = "";
    an item without a known requirement has need = "". Raises DeviceError where there is no framework."""

def ane_methods(setup: AneSetup) -> list[tuple[str, str, str, str]]:
    """Rows ("method", name, encoding, "") of every method of every class whose name begins with _ANE."""

def run_on_ane(
    setup: AneSetup,
    mil: str,
    weights: Mapping[str, bytes],
    inputs: Mapping[str, Array],
    *,
    least_surface_bytes: int,
    qos: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Array]]:
    """Compiles a program, loads it, runs it once and unloads it. Returns the ports of its inputs and of its outputs
    (name, dtype, shape, strides in bytes), and the outputs by name."""

def ane_counters(setup: AneSetup) -> tuple[int, int, int]:
    """The numbers of programs that this process has compiled, that are loaded now, and that loads compiled again."""

class SurfaceAccess:
    """The time in which the CPU reads or writes a surface: `with surface.access():`."""

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...

class Surface:
    """Memory that the CPU and a device share, and a tensor in it whose rows begin at multiples of `row_alignment` bytes."""

    def __init__(self, shape: Sequence[int], dtype: str, row_alignment: int) -> None:
        """Zeros. Raises Error for a shape that does not fit into memory, or a dtype of less than a byte."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""

    @property
    def dtype(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    def write(self, array: Any, channel_offset: int = 0) -> None:
        """Writes an array whose axis 1 has consecutive channels, the first one at `channel_offset`. A surface of fp16
        takes fp32 too, rounded to nearest even. Raises Error for another shape or dtype."""

    def read(
        self,
        channel_offset: int = 0,
        num_channels: int | None = None,
        dtype: str | None = None,
        out: Array | None = None,
    ) -> Array:
        """A copy of some channels, or all; fp16 is converted to fp32 if dtype or `out` is fp32. out: a C-contiguous
        array of exactly that shape, which is filled and returned. Reusing one array spares the system a new allocation
        for each copy. Raises Error for channels, a dtype or an `out` that do not fit."""

    def view(self) -> Array:
        """The tensor as an array in the surface's memory, without a copy. The array keeps the surface alive."""

    def access(self, read_only: bool = False) -> SurfaceAccess:
        """Locks the surface until the `with` block ends. Read or write its view only inside the block."""
