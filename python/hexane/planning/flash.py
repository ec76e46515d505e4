"""Fits a plan into flash: counts the bytes of plan and code, and chooses the weights to pack."""

from collections.abc import Iterator
from dataclasses import dataclass

from hexane import _core
from hexane.emit.blocks import pack, packing_once
from hexane.emit.c99_check import why_refused
from hexane.emit.plan import emit_plan
from hexane.emit.plan_view import PlanView
from hexane.emit.prepare import prepared
from hexane.errors import Error
from hexane.memory import Memory
from hexane.planning.extra_memory import ExtraBytes
from hexane.program import Program
from hexane.stages.bufferize.allocate import allocate, live_bytes
from hexane.stages.stream.packed_weights import Candidate, candidates, with_blocks
from hexane.stages.stream.stream import arena_bytes
from hexane.stages.stream.weight_slices import halvings, in_slices, reader_of
from hexane.targets.microcontrollers import code_bytes

STEP_BYTES = 320  # estimated bytes of a step in the plan, with its operands


@dataclass(frozen=True, slots=True)
class Flash:
    """Bytes in flash. plan: as stored for the C99 runtime. weights: of the plan, packed or not. code: for a
    Cortex-M4 at -Os. in_place: the weights that are read from flash directly. missing: why the C99 runtime does not
    run the plan, such as a kernel that it lacks; code is then 0."""

    plan: int
    weights: int
    code: int
    in_place: int
    missing: str = ""

    @property
    def total(self) -> int:
        return self.plan + self.code


def flash_of(program: Program) -> Flash:
    """Returns the flash that the program needs."""
    plan = bytes(_core.plan_write(emit_plan(program)))
    if program.blocks:
        plan = max(plan, prepared(plan), key=len)
    view = PlanView(plan)
    code, missing = 0, ""
    try:
        code = code_bytes(*view.used(), view.codecs, view.streams, view.has_integers())
    except Error as error:
        missing = str(error)
    return Flash(len(plan), view.weight_bytes, code, view.weight_bytes - view.packed_bytes, missing)


def in_flash(program: Program, extra_bytes: ExtraBytes, memory: Memory) -> Program:
    """Returns the program with weights packed if `memory` allows it and its sram has room to unpack them. Packing
    covers all weights that become smaller, or with xip only as many as the flash requires. Raises Error if plan and
    code exceed the flash."""
    limit = memory.flash_bytes
    if memory.compress:
        with packing_once():
            count = extra_bytes(program, len(memory.pools))
            packed = _packed(program, count, memory)
            if packed.blocks and extra_bytes(packed, len(memory.pools)) <= count:
                program = packed
    if limit or memory.runs_on != "host":
        flash = flash_of(program)
        if flash.missing:
            why = "flash: got no code to count" if limit else f"runtime: got {memory.runs_on!r}"
            raise Error(f"[compile] {why}: {flash.missing.removeprefix('[codegen] ')}")
        if 0 < limit < flash.total:
            raise Error(f"[compile] memory: {_shortage(flash, limit, memory)}")
    if memory.runs_on != "host" and (refused := why_refused(bytes(_core.plan_write(emit_plan(program))))):
        raise Error(f"[compile] runtime: got {memory.runs_on!r}: {refused}")
    if memory.xip:
        _check_in_place(program)
    return program


def _packed(program: Program, count: int, memory: Memory) -> Program:
    best, chosen, left = program, list[Candidate](), list[Candidate]()
    for one in candidates(program, pack):
        if _is_enough(best, memory):
            break
        tried = _within(_with_blocks(program, [*chosen, one]), count, memory)
        if tried is not None:
            best = tried
            chosen.append(one)
        else:
            left.append(one)
    plain = program
    for one in left:
        if _is_enough(best, memory):
            break
        for sliced, blocks in _slices(plain, one, chosen, _room(plain, count, memory)):
            tried = _within(_with_blocks(sliced, blocks), count, memory)
            if tried is not None:
                best, plain, chosen = tried, sliced, blocks
                break
    if memory.flash_bytes and flash_of(best).total >= flash_of(program).total:
        return program  # the code for unpacking is larger than the saving
    return best


def _is_enough(program: Program, memory: Memory) -> bool:
    """True if no more weights need packing."""
    return memory.xip and (not memory.flash_bytes or flash_of(program).total <= memory.flash_bytes)


def _room(program: Program, count: int, memory: Memory) -> list[int]:
    """Returns the bytes of arena that are free in each step before any weights are unpacked."""
    free = _memory_of(program, memory) - count
    return [free - live for live in live_bytes(program)]


def _slices(
    program: Program, one: Candidate, chosen: list[Candidate], room: list[int]
) -> Iterator[tuple[Program, list[Candidate]]]:
    """Yields the program with a candidate's step split into 2, 4 and more slices of channels that may fit, with the
    weights to pack after each split. Skips a split if packing saves less than the added steps need."""
    at = next((step for buffer in one.buffers if (step := reader_of(program, buffer)) is not None), None)
    if at is None:
        return
    kept = {candidate.buffers for candidate in chosen}
    for count in halvings(program, at):
        if one.bytes // count > room[at]:
            continue
        sliced, new = in_slices(program, at, count)
        packings = candidates(sliced, pack)
        saved = sum(c.saved for c in packings if new & set(c.buffers)) - STEP_BYTES * (count - 1)
        if saved > 0:
            yield sliced, [c for c in packings if c.buffers in kept or new & set(c.buffers)]


def _with_blocks(program: Program, chosen: list[Candidate]) -> Program | None:
    """Returns the program with offsets, which unpacks weights to the first arena with room for them, or None without
    such an arena."""
    for space in (s for s in program.spaces if s.kind == "arena"):
        try:
            return allocate(with_blocks(program, chosen, space.name))
        except Error:
            continue
    return None


def _within(program: Program | None, count: int, memory: Memory) -> Program | None:
    if program is None or memory.sram is None or arena_bytes(program) + count <= _memory_of(program, memory):
        return program
    return None


def _memory_of(program: Program, memory: Memory) -> int:
    """Returns the bytes of all memories that hold tensors: sram, and slow memory if tensors lie in it."""
    slow = f"{program.space('arena').name}.{len(memory.pools)}"
    has_slow = any(space.name == slow for space in program.spaces)
    return memory.bytes + (memory.slow_bytes if has_slow else 0)


def _check_in_place(program: Program) -> None:
    """Raises Error unless each weight can be read from the plan in place: aligned to its element size, and not copied
    to other memory."""
    packed = {i for block in program.blocks for i in block.buffers}
    for i, buffer in enumerate(program.buffers):
        if buffer.kind == "param":
            raise Error(f"[compile] xip: {buffer.name}: got weights in memory of a device, need them in the plan")
        data = None if buffer.kind != "weights" or i in packed else buffer.data
        if data is not None and program.offsets[i] % data.dtype.itemsize:
            raise Error(f"[compile] xip: {buffer.name}: got offset {program.offsets[i]}, need whole elements")


def _shortage(flash: Flash, limit: int, memory: Memory) -> str:
    packing = "" if memory.compress else " compress='lz4' would help where weights repeat themselves;"
    return (
        f"got {limit} bytes of flash, need {flash.total}: {flash.plan} of plan, of which {flash.weights} are weights,"
        f" {flash.code} of code (an estimate, Cortex-M4 at -Os).{packing} int8 weights take a quarter of fp32"
    )
