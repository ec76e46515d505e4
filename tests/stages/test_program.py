"""Programs: ordinary calls, threads, state and weights; what is wrong at a call is refused with the port, got and
need."""

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
from plans import BIG, PlanBuilder, copy_plan, many_sided_plan, ramp, transposing_plan

NUMPY = {
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "fp16": np.float16, "fp32": np.float32,
    "fp64": np.float64, "bf16": ml_dtypes.bfloat16, "fp8e4m3": ml_dtypes.float8_e4m3fn,
    "fp8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


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
    """A tensor of another library, with DLPack alone."""

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
