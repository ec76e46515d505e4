"""Programs: a plan that runs, ordinarily and bound; what is wrong at a call is refused with the port, got and need."""

import array
import os
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from plans import PlanBuilder, copy_plan, many_sided_plan

NUMPY = {
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "fp16": np.float16, "fp32": np.float32,
    "fp64": np.float64, "bf16": ml_dtypes.bfloat16, "fp8e4m3": ml_dtypes.float8_e4m3fn,
    "fp8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
BIG = (64, 1024, 16)  # worth more than one thread


def ramp(shape: tuple[int, ...] = (3, 4), dtype: Any = np.float32) -> Any:
    return (np.arange(np.prod(shape)) % 97).astype(dtype).reshape(shape)


def transposing_plan(shape: tuple[int, ...] = BIG) -> PlanBuilder:
    """y is x with its last two axes exchanged, by way of the arena."""
    plan = PlanBuilder()
    a, b, c = shape
    x = plan.port("inputs", "x", shape)
    arena = plan.space("arena", 4 * a * b * c)
    middle = plan.tensor(arena, (a, c, b))
    y = plan.port("outputs", "y", (a, c, b))
    turned = plan.tensor(plan.rows["tensors"][x][3], (a, c, b), strides=(4 * b * c, 4, 4 * c))
    plan.step("copy", [turned], [middle])
    plan.step("copy", [middle], [y])
    return plan


# ---- ordinary calls ----


@pytest.mark.parametrize("dtype", NUMPY)
def test_every_dtype_passes_through(dtype: str):
    x = ramp(dtype=NUMPY[dtype])
    (y,) = _core.Program(copy_plan(dtype=dtype).tobytes()).run([x])
    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4, 5, 1, 2, 1, 2)])
def test_every_shape_passes_through(shape: tuple[int, ...]):
    program = _core.Program(copy_plan(shape).tobytes())
    x = ramp(shape)
    (y,) = program.run([x])
    assert y.shape == shape
    assert np.array_equal(x, y)
    call = program.bind({"x": x})
    call()
    assert np.array_equal(call.outputs["y"], x)


def test_a_program_comes_from_bytes_sections_or_a_file(tmp_path: Path):
    plan = many_sided_plan()
    _core.plan_save(str(tmp_path / "m.hxp"), plan.sections())
    shifted = np.frombuffer(b"---" + plan.tobytes(), np.uint8)[3:]
    outputs = []
    for program in (
        _core.Program(plan.tobytes()),
        _core.Program(plan.sections()),
        _core.Program(memoryview(plan.tobytes())),
        _core.Program(shifted),
        _core.Program.load(str(tmp_path / "m.hxp")),
    ):
        outputs.append([y.tobytes() for y in program.run([ramp((2, 3))])])
    assert outputs == outputs[:1] * 5


def test_outputs_are_new_at_each_run():
    program = _core.Program(copy_plan().tobytes())
    (first,) = program.run([ramp()])
    (second,) = program.run([ramp() + 1])
    assert np.array_equal(first + 1, second)


def test_inputs_go_by_order_or_by_name():
    program = _core.Program(copy_plan().tobytes())
    for inputs in ([ramp()], (ramp(),), {"x": ramp()}):
        assert np.array_equal(program.run(inputs)[0], ramp())


class DLPack:
    """What another library's tensor offers."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize(
    "value",
    [
        ramp((4, 3)).T,
        np.repeat(ramp(), 2, axis=1)[:, ::2],
        ramp()[::-1],
        np.broadcast_to(ramp((4,)), (3, 4)),
        memoryview(ramp()),
        DLPack(ramp()),
        np.frombuffer(b"-" + ramp().tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4),
    ],
    ids=["transposed", "strided", "reversed", "broadcast", "memoryview", "dlpack", "misaligned"],
)
def test_an_input_may_be_any_array_of_its_shape(value: Any):
    expected = np.asarray(value.values if isinstance(value, DLPack) else value)
    assert np.array_equal(_core.Program(copy_plan().tobytes()).run([value])[0], expected)


def test_an_array_of_the_standard_library_is_a_buffer():
    program = _core.Program(copy_plan((3,)).tobytes())
    assert program.run([array.array("f", [1, 2, 3])])[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], r"inputs: got 0, need 1"),
        ([ramp(), ramp()], r"inputs: got 2, need 1"),
        ({}, r"\[input 'x'\] got nothing, need an array"),
        ({"z": ramp()}, r"\[input 'x'\] got nothing"),
        ({"x": ramp(), "z": ramp()}, r"got the name 'z', which no input has"),
        (ramp(), r"inputs: got numpy.ndarray, need a mapping, a list or a tuple"),
        ([[[1.0]]], r"\[input 'x'\] got list, need an array"),
        ([None], r"\[input 'x'\] got NoneType, need an array"),
        ([ramp((4, 3))], r"\[input 'x'\] shape: got \(4, 3\), need \(3, 4\)"),
        ([ramp((1, 3, 4))], r"\[input 'x'\] shape: got \(1, 3, 4\), need \(3, 4\)"),
        ([ramp(dtype=np.float64)], r"\[input 'x'\] dtype: got float64, need float32"),
        ([ramp(dtype=">f4")], r"\[input 'x'\] dtype: got >f4, need float32 in native byte order"),
    ],
)
def test_wrong_inputs_are_refused(inputs: Any, message: str):
    with pytest.raises(Error, match=message):
        _core.Program(copy_plan().tobytes()).run(inputs)


def test_nan_and_inf_pass_through():
    x = np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32)
    (y,) = _core.Program(copy_plan((1, 4)).tobytes()).run([x])
    assert y.tobytes() == x.tobytes()


def test_a_program_says_what_it_is():
    program = _core.Program(many_sided_plan().tobytes(), threads=2)
    port = {"name": "x", "emitted_name": "x", "dtype": "fp32", "shape": (2, 3), "length": 0, "axis": 0}
    assert program.inputs == [port]
    assert [(port["name"], port["shape"]) for port in program.outputs] == [("y", (3, 4)), ("z", (2, 3))]
    assert [step["kernel"] for step in program.steps] == ["copy"] * 5 + ["reverse"]
    assert program.steps[1]["source"] == "step 1"
    assert (program.threads, program.memory) == (2, {"weights": 64, "state": 128, "arena": 64})
    assert program.cost > 0
    assert _core.isa()


@pytest.mark.parametrize("threads", [0, -1])
def test_a_program_needs_a_thread(threads: int):
    with pytest.raises(Error, match=f"threads: got {threads}, need at least 1"):
        _core.Program(copy_plan().tobytes(), threads)


# ---- what the executor refuses when it loads a plan ----


def one_step(kernel: str, **fields: Any) -> dict[str, Any]:
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (3, 4))
    y = plan.port("outputs", "y", (3, 4))
    plan.step(kernel, [x], [y], **fields)
    return plan.sections()


def test_a_missing_kernel_is_named_with_its_step():
    with pytest.raises(Error, match=r"no kernel is named 'frobnicate' \(step 0, frobnicate, step 0\)"):
        _core.Program(one_step("frobnicate"))


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 1), (2, 1), (1, 2)])
def test_a_wrong_number_of_operands_is_refused(inputs: int, outputs: int):
    plan = PlanBuilder()
    x = [plan.port("inputs", f"x{i}", (3, 4)) for i in range(inputs)]
    y = [plan.port("outputs", f"y{i}", (3, 4)) for i in range(outputs)]
    plan.step("copy", x, y)
    with pytest.raises(Error, match=r"copy: got .* need one of"):
        _core.Program(plan.sections())


def test_unknown_numerics_are_refused():
    with pytest.raises(Error, match=r"family: got 'engine:h13', need one of ieee"):
        _core.Program(one_step("relu", numerics="engine:h13"))


def test_a_program_may_mix_arithmetics():
    plan = copy_plan()
    plan.rows["steps"][1] = (plan.rows["steps"][1][0], plan.numerics("ieee", "other"), *plan.rows["steps"][1][2:])
    assert len(plan.rows["numerics"]) == 2
    assert np.array_equal(_core.Program(plan.sections()).run([ramp()])[0], ramp())


def test_attributes_of_another_size_are_refused():
    sections = one_step("reverse", axes=[0])
    sections["steps"]["attrs_bytes"] = 8
    with pytest.raises(Error, match=r"\[reverse\] attributes: got 8 bytes, need 72"):
        _core.Program(sections)


def test_a_list_attribute_that_is_too_long_is_refused():
    sections = one_step("reverse", axes=[0])
    sections["attrs"].view(np.int64)[0] = 9
    with pytest.raises(Error, match="attribute axes: got 9 values, need at most 8"):
        _core.Program(sections)


def rows_of_a_ring(kernel: str, cuts: list[tuple[int, int, int]], **attrs: Any) -> dict[str, Any]:
    """Steps on a state of four rows, of which two are kept, into an output of four."""
    plan = PlanBuilder()
    ring = plan.tensor(plan.space("state", 2 * 3 * 4), (1, 4, 3), strides=(24, 12, 4), name="ring")
    y = plan.port("outputs", "y", (1, 4, 3))
    for cut in cuts:
        plan.step(kernel, [ring], [y], cut=cut, **attrs)
    sections = plan.sections()
    sections["tensors"]["ring"][ring] = 2
    return sections


@pytest.mark.parametrize(
    ("kernel", "cuts", "attrs", "message"),
    [
        ("relu", [(-1, 0, 0)], {}, "cut: got axis -1, need 1 for rings"),
        ("relu", [(2, 0, 3)], {}, "cut: got axis 2, need 1 for rings"),
        ("relu", [(1, 0, 3), (1, 3, 4)], {}, "operand 0: got a ring of 2 rows, need 3"),
        ("reverse", [(1, 0, 2), (1, 2, 4)], {"axes": [1]}, "operand 0: got a ring of 2 rows, need all rows"),
    ],
)
def test_a_ring_that_a_step_cannot_read_is_refused(kernel, cuts, attrs, message):
    with pytest.raises(Error, match=message):
        _core.Program(rows_of_a_ring(kernel, cuts, **attrs))


def test_steps_read_rows_of_a_ring_around_its_end():
    program = _core.Program(rows_of_a_ring("relu", [(1, 0, 1), (1, 1, 3), (1, 3, 4)]))
    program.write_state("ring", np.arange(12, dtype=np.float32).reshape(1, 4, 3))  # rows 2 and 3 are kept
    (y,) = program.run([])
    assert y[0, :, 0].tolist() == [6, 9, 6, 9]


def test_state_in_a_ring_is_read_and_written_inside_its_rows():
    plan = copy_plan()
    ring = plan.tensor(plan.space("state", 2 * 3 * 4), (1, 5, 3), strides=(24, 12, 4), name="ring")
    sections = plan.sections()
    sections["tensors"]["ring"][ring] = 2
    program = _core.Program(sections)
    program.write_state("ring", np.arange(15, dtype=np.float32).reshape(1, 5, 3))
    rows = program.read_state("ring")[0, :, 0]
    assert rows.tolist() == [12, 9, 12, 9, 12]  # the last two rows written are kept, row 4 in the place of row 2


@pytest.mark.parametrize(("axis", "begin", "end"), [(3, 0, 1), (1, 0, 99)])
def test_a_cut_outside_the_output_is_refused(axis: int, begin: int, end: int):
    with pytest.raises(Error, match="cut: got"):
        _core.Program(one_step("copy", cut=(axis, begin, end)))


def test_steps_that_are_cut_cover_the_output_together():
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (5, 4))
    y = plan.port("outputs", "y", (4, 5))
    turned = plan.tensor(plan.rows["tensors"][x][3], (4, 5), strides=(4, 16))
    for begin, end in ((2, 4), (0, 1), (1, 2)):
        plan.step("copy", [turned], [y], cut=(0, begin, end))
    assert np.array_equal(_core.Program(plan.tobytes()).run([ramp((5, 4))])[0], ramp((5, 4)).T)


def test_a_step_that_is_cut_writes_its_range_only():
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (4, 5))
    y = plan.port("outputs", "y", (4, 5))
    for begin, end in ((0, 1), (2, 4)):
        plan.step("copy", [x], [y], cut=(0, begin, end))
    with pytest.raises(Error, match="outputs: y: no step writes all of it"):
        _core.Program(plan.tobytes())


# ---- threads ----


def test_the_result_is_the_same_with_any_number_of_threads():
    x = ramp(BIG)
    for threads in (1, 2, 3, 8):
        program = _core.Program(transposing_plan().tobytes(), threads)
        assert program.steps[0]["parallel"] == (threads > 1)
        for _ in range(10):
            assert np.array_equal(program.run([x])[0], x.transpose(0, 2, 1))


def test_little_work_wakes_no_threads():
    program = _core.Program(transposing_plan((1, 200, 200)).tobytes(), 2)
    assert program.cost > 10_000
    assert not any(step["parallel"] for step in program.steps)


def in_threads(count: int, work: Any) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("shape", [(2, 3, 4), BIG], ids=["small", "big"])
def test_one_program_may_be_used_from_several_threads(shape: tuple[int, ...]):
    program = _core.Program(transposing_plan(shape).tobytes(), threads=2)

    def work(index: int) -> None:
        x = ramp(shape) + index
        call = program.bind({"x": x})
        for _ in range(50):
            assert np.array_equal(program.run([x])[0], x.transpose(0, 2, 1))
            call.outputs["y"][:] = 0
            call()
            assert np.array_equal(call.outputs["y"], x.transpose(0, 2, 1))

    in_threads(4, work)


def test_several_programs_run_at_once():
    def work(index: int) -> None:
        program = _core.Program(transposing_plan().tobytes(), threads=2)
        for _ in range(20):
            x = ramp(BIG) + index
            assert np.array_equal(program.run([x])[0], x.transpose(0, 2, 1))

    in_threads(3, work)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_program_still_runs_in_a_forked_child():
    program = _core.Program(transposing_plan().tobytes(), threads=2)
    x = ramp(BIG)
    program.run([x])
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(program.run([x])[0], x.transpose(0, 2, 1)) else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- bound calls ----


def test_a_bound_call_works_in_its_buffers():
    program = _core.Program(copy_plan().tobytes())
    x, y = ramp(), np.zeros((3, 4), np.float32)
    call = program.bind({"x": x, "y": y})
    assert call.inputs["x"] is x
    assert call.outputs["y"] is y
    for value in (1, 2):
        x[:] = value
        assert call() is None
        assert (y == value).all()


def test_two_bound_calls_of_a_program_do_not_mix():
    program = _core.Program(copy_plan().tobytes())
    calls = [program.bind({"x": np.full((3, 4), value, np.float32)}) for value in range(3)]
    for _ in range(2):
        for value, call in enumerate(calls):
            call()
            assert (call.outputs["y"] == value).all()
            assert (program.run([ramp()])[0] == ramp()).all()


def test_a_bound_call_keeps_program_and_buffers_alive():
    buffer = bytearray(ramp().tobytes())
    view = memoryview(buffer).cast("B").cast("f", (3, 4))
    call = _core.Program(copy_plan().tobytes()).bind({"x": view})
    del view
    with pytest.raises(BufferError):
        buffer.clear()
    call()
    assert np.array_equal(call.outputs["y"], ramp())


def test_a_bound_call_takes_no_arguments():
    call = _core.Program(copy_plan().tobytes()).bind({"x": ramp()})
    with pytest.raises(TypeError, match="takes no arguments"):
        call(1)
    with pytest.raises(TypeError, match="takes no arguments"):
        call(x=1)


def test_a_bound_call_is_only_made_by_bind():
    with pytest.raises(TypeError, match="cannot create"):
        _core.Bound()


def read_only() -> Any:
    y = np.zeros((3, 4), np.float32)
    y.flags.writeable = False
    return y


SHARED = np.zeros(64, np.float32)
MISALIGNED = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ({}, r"\[input 'x'\] got nothing, need a buffer"),
        ({"x": ramp(), "z": ramp()}, "got the name 'z', which no port has"),
        ({"x": ramp(), "y": ramp((4, 3))}, r"\[output 'y'\] shape: got \(4, 3\), need \(3, 4\)"),
        ({"x": ramp(), "y": ramp(dtype=np.float16)}, r"\[output 'y'\] dtype: got float16, need float32"),
        ({"x": ramp(dtype=">f4")}, r"\[input 'x'\] dtype: got >f4, need float32 in native byte order"),
        ({"x": ramp((4, 3)).T}, r"\[input 'x'\] strides: got \(4, 12\), need C-contiguous"),
        ({"x": ramp(), "y": np.zeros((3, 8), np.float32)[:, ::2]}, r"\[output 'y'\] strides: got \(32, 8\), need"),
        ({"x": MISALIGNED}, r"\[input 'x'\] address: got .* need it aligned to 4 bytes"),
        ({"x": ramp(), "y": read_only()}, r"\[output 'y'\] got a read-only buffer"),
        ({"x": ramp(), "y": bytes(48)}, r"\[output 'y'\] dtype: got uint8"),
        (
            {"x": SHARED[:12].reshape(3, 4), "y": SHARED[11:23].reshape(3, 4)},
            r"\[output 'y'\] its buffer overlaps that of input 'x'",
        ),
        (
            {"x": SHARED[11:23].reshape(3, 4), "y": SHARED[:12].reshape(3, 4)},
            r"\[input 'x'\] its buffer overlaps that of output 'y'",
        ),
        (
            {"x": SHARED[:12].reshape(3, 4), "y": SHARED[:12].reshape(3, 4)},
            "its buffer overlaps that of",
        ),
        ({"x": [1.0]}, r"\[input 'x'\] got list, need an array"),
    ],
)
def test_wrong_buffers_are_refused(buffers: dict[str, Any], message: str):
    with pytest.raises(Error, match=message):
        _core.Program(copy_plan().tobytes()).bind(buffers)


def test_buffers_that_touch_do_not_overlap():
    x, y = SHARED[:12].reshape(3, 4), SHARED[12:24].reshape(3, 4)
    x[:] = ramp()
    _core.Program(copy_plan().tobytes()).bind({"x": x, "y": y})()
    assert np.array_equal(y, ramp())


# ---- state, weights, what happens inside ----


def test_state_survives_calls():
    program = _core.Program(many_sided_plan().tobytes())
    x = ramp((2, 3))
    assert (program.run([x])[1] == 1).all()
    assert np.array_equal(program.run([x + 1])[1], x)
    assert np.array_equal(program.read_state("s"), x + 1)
    program.write_state("s", x + 2)
    assert np.array_equal(program.run([x])[1], x + 2)
    program.reset_state()
    assert (program.run([x])[1] == 1).all()


def test_state_that_the_file_does_not_cover_is_zero():
    plan = many_sided_plan()
    plan.state = np.ones(2, np.float32).tobytes()
    assert _core.Program(plan.tobytes()).read_state("s").ravel().tolist() == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("source", ["bytes", "file"])
def test_update_replaces_a_weight_of_this_program_only(tmp_path: Path, source: str):
    data = many_sided_plan().tobytes()
    (tmp_path / "m.hxp").write_bytes(data)
    first, second = (
        _core.Program(data) if source == "bytes" else _core.Program.load(str(tmp_path / "m.hxp")) for _ in range(2)
    )
    x = ramp((2, 3))
    before = first.run([x])[0]
    first.update("w", np.full((2, 3), 7, np.float32).T)
    after = first.run([x])[0]
    assert np.array_equal(after[:, :2], before[:, :2])
    assert (after[:, 2:] == 7).all()
    assert np.array_equal(second.run([x])[0], before)
    assert (tmp_path / "m.hxp").read_bytes() == data


def test_update_prepares_the_kernels_that_packed_the_weight():
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (5, 20))
    weights = plan.space("weights", 2 * 1600)
    plan.weights = bytes(2 * 1600)
    rows = [plan.tensor(weights, (20, 20), offset=1600 * i, name=f"w{i}") for i in range(2)]
    for i, row in enumerate(rows):
        y = plan.port("outputs", f"y{i}", (5, 20))
        plan.step("matmul", [x, row], [y], transpose_x=0, transpose_y=0, epilogue=[])
    program = _core.Program(plan.tobytes())
    values = ramp((5, 20))
    for name, factor in (("w1", 2), ("w0", 3), ("w1", 4)):
        program.update(name, np.eye(20, dtype=np.float32) * factor)
        assert np.array_equal(program.run([values])[int(name[1])], values * factor)
    assert np.array_equal(program.run([values])[0], values * 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("v", ramp((3, 2)), "weights: got the name 'v', need one of w"),
        ("w", ramp((2, 3)), r"\[weights 'w'\] shape: got \(2, 3\), need \(3, 2\)"),
        ("w", ramp((3, 2), np.float64), "dtype: got float64"),
    ],
)
def test_update_refuses_what_does_not_fit(name: str, value: Any, message: str):
    with pytest.raises(Error, match=message):
        _core.Program(many_sided_plan().tobytes()).update(name, value)


def test_trace_shows_the_outputs_of_every_step():
    program = _core.Program(many_sided_plan().tobytes())
    x = ramp((2, 3))
    seen: list[Any] = []
    outputs = program.trace([x], lambda step, tensors: seen.append((step, tensors)))
    assert [step for step, _ in seen] == list(range(6))
    assert np.array_equal(seen[0][1][0], x.T)
    assert np.array_equal(seen[2][1][0], outputs[0])
    assert np.array_equal(seen[5][1][0], x[:, ::-1])


def test_an_exception_of_a_tracer_arrives_and_the_program_goes_on():
    program = _core.Program(copy_plan().tobytes())

    def raise_error(step: int, tensors: Any) -> None:
        raise KeyError(step)

    with pytest.raises(KeyError):
        program.trace([ramp()], raise_error)
    assert np.array_equal(program.run([ramp()])[0], ramp())


def test_profile_counts_calls_and_time():
    program = _core.Program(copy_plan().tobytes())
    program.profile(True)
    for _ in range(3):
        program.run([ramp()])
    assert [step["calls"] for step in program.steps] == [3, 3]
    assert all(step["nanoseconds"] > 0 for step in program.steps)
    program.profile(False)
    program.run([ramp()])
    assert program.steps[0]["calls"] == 3
