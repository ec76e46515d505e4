"""hx.compile for a chip, on a machine without one: what users type, see, and are told."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array


def weights(*shape: int) -> Array:
    return (np.arange(np.prod(shape)).reshape(shape) % 5 - 2).astype(np.float32)


def native() -> hx.Graph:
    x = hx.input("image", (1, 3, 8, 8))
    return hx.graph({"y": hx.relu(hx.conv(x, weights(4, 3, 3, 3), pad=1))})


def mixed() -> hx.Graph:
    x = hx.input("x", (4, 6))
    return hx.graph({"y": hx.exp(hx.relu(hx.sinh(hx.tanh(x))))})


def sliced() -> hx.Graph:
    x = hx.input("x", (4, 16))
    return hx.graph({"y": hx.relu(x[:, 4:8])})


@pytest.mark.parametrize(
    ("spelling", "name"), [("h13", "h13"), ("M1", "h13"), ("T8103", "h13"), ("m5", "h17"), ("ipad air 5", "h13")]
)
def test_a_chip_in_any_spelling_compiles_and_says_what_runs_where(spelling: str, name: str, tmp_path: Path) -> None:
    net = hx.compile(native(), target=spelling)
    assert net.target == name
    assert net.device.startswith("cpu (")
    said = "its program in the engine's arithmetic, as far as it is known"
    assert net.device.endswith(f"in the place of {hx.targets.load_target(spelling).label}: {said}")
    net.save(tmp_path / "m.hxp")
    loaded = hx.load(tmp_path / "m.hxp")
    assert loaded.target == name
    assert loaded.device.endswith(f"in the place of {name}: {said}"), "a plan does not say what was asked for"
    assert hx.compile(native()).target == "host"


def test_the_environment_may_name_the_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXANE_TARGET", "M2")
    assert hx.compile(native()).target == "h14"
    assert hx.compile(native(), target="host").target == "host"


def test_ports_keep_the_dtypes_of_the_model_and_numbers_are_fp16_inside() -> None:
    net = hx.compile(native(), target="h13")
    assert [str(p) for p in (*net.inputs, *net.outputs)] == ["image: fp32[1, 3, 8, 8]", "y: fp32[1, 4, 8, 8]"]
    assert net.program is not None
    assert {v.type.dtype.name for s in net.program.steps if s.kernel == "conv" for v in s.outputs} == {"fp16"}
    image = weights(1, 3, 8, 8)
    np.testing.assert_array_equal(net(image), hx.compile(native())(image))
    large = np.float32([1e5, 2049])
    np.testing.assert_array_equal(hx.compile(hx.relu(hx.input("x", (2,))), target="h13")(large), [np.inf, 2048])


def test_io_drops_the_casts_at_the_ports() -> None:
    image = weights(1, 3, 8, 8)
    for target in ("h13", "host"):
        net = hx.compile(native(), target=target, io="fp16")
        assert [p.dtype.name for p in (*net.inputs, *net.outputs)] == ["fp16", "fp16"]
        np.testing.assert_array_equal(net(image.astype(np.float16)), hx.compile(native())(image).astype(np.float16))
    assert not any(step["kernel"] == "cast" for step in hx.compile(native(), target="h13", io="fp16").steps)


def test_what_the_chip_cannot_run_goes_to_the_host_with_one_warning() -> None:
    with pytest.warns(hx.FallbackWarning) as caught:
        net = hx.compile(mixed(), target="h13")
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message).startswith(
        "[compile] h13: 1 of 4 ops runs on the CPU: sinh at test_compile_for_chips.py:"
    )
    assert str(warning.message).endswith("(no chip has a path for it)")
    assert net.program is not None
    assert [s.device for s in net.program.segments] == ["ane", "host", "ane"]
    assert [d.verdict for d in net.program.decisions if d.stage == "segment"] == ["cut", "host", "cut"]
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_allclose(net(x), hx.compile(mixed())(x), rtol=1e-2)


def test_a_host_segment_computes_in_the_dtype_of_the_model() -> None:
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile(mixed(), target="h13")
    with pytest.warns(hx.FallbackWarning):
        halved = hx.compile(mixed(), target="h13", dtype="fp16")
    for model, dtype in ((net, "fp32"), (halved, "fp16")):
        assert model.program is not None
        (step,) = [s for s in model.program.steps if s.kernel == "sinh"]
        assert (step.outputs[0].type.dtype.name, step.numerics.name) == (dtype, "host")


def test_fallback_error_raises_with_the_list_of_the_warning() -> None:
    with pytest.raises(hx.Error, match=r"h13: 1 of 4 ops runs on the CPU: sinh at .*no chip has a path for it"):
        hx.compile(mixed(), target="h13", fallback="error")
    assert hx.compile(native(), target="h13", fallback="error").target == "h13"


def test_many_ops_of_one_reason_are_one_entry_of_the_list() -> None:
    x = hx.input("x", (4, 6))
    for _ in range(30):
        x = hx.exp(hx.sinh(x))
    with pytest.warns(hx.FallbackWarning, match=r"30 of 60 ops run on the CPU: sinh at \S+ and 29 more \(no chip"):
        hx.compile(x, target="h13")


def test_a_chip_below_programs_in_mil_takes_them_as_netplists() -> None:
    net = hx.compile(native(), target="h12")
    assert net.program is not None
    assert {s.device for s in net.program.segments} == {"ane"}
    assert net.target == "h12"
    with pytest.warns(hx.FallbackWarning, match="softmax"):
        hx.compile(hx.graph({"y": hx.softmax(hx.input("x", (4, 4)))}), target="h12")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback": "cpu"}, "fallback: got 'cpu', need 'host' or 'error'"),
        ({"io": "fp32"}, "io: got 'fp32', need 'fp16'"),
        ({"dtype": "fp32"}, "dtype: got 'fp32' for h13, which computes in fp16"),
        ({"trim_output_transpose": True}, "trim_output_transpose: got it for h13, need the host"),
    ],
)
def test_options_that_a_chip_does_not_have_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        hx.compile(native(), target="h13", **options)  # type: ignore[arg-type]


def test_params_and_states_of_a_chip_are_replaced_and_read_by_name() -> None:
    state = hx.state("s", (2, 3))
    x = hx.input("x", (2, 3))
    after = hx.write_state(state, hx.relu(x * hx.param("scale", np.ones((1,), np.float32))), hx.const(np.int32(0)))
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile(hx.graph({"y": hx.mod(after, hx.const(np.float32(4)))}, [after]), target="h13")
    np.testing.assert_array_equal(net(weights(2, 3)), np.maximum(weights(2, 3), 0) % 4)
    net.update(scale=np.float32([3]))
    np.testing.assert_array_equal(net(weights(2, 3)), 3 * np.maximum(weights(2, 3), 0) % 4)
    np.testing.assert_array_equal(net.read_state("s"), 3 * np.maximum(weights(2, 3), 0))


@pytest.mark.parametrize("dtype", ["", "fp16"])
def test_a_state_of_the_host_is_one_for_all_its_segments(dtype: str) -> None:
    state = hx.state("s", (2, 3))
    x = hx.input("x", (2, 3))
    first = hx.write_state(state, hx.mod(x, hx.const(np.float32(4))), hx.const(np.int32(0)))
    later = hx.mod(hx.exp(hx.mod(first, hx.const(np.float32(3)))) * 0.0, hx.const(np.float32(2))) + hx.mod(
        first, hx.const(np.float32(5))
    )
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile(hx.graph({"y": later}, [first]), target="h13", dtype=dtype)
    assert net.program is not None
    assert [s.device for s in net.program.segments].count("host") > 1
    np.testing.assert_array_equal(net(np.full((2, 3), 7, np.float32)), np.full((2, 3), 3))
    np.testing.assert_array_equal(net.read_state("s"), np.full((2, 3), 3))
    assert sum(b.kind == "state" for b in net.program.buffers) == 1


@pytest.mark.parametrize("dtype", ["fp64", "bf16", "fp16"])
def test_every_float_of_a_model_is_fp16_on_the_engine_and_its_own_on_the_host(dtype: str) -> None:
    x = hx.input("x", (2, 3), dtype)
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile(hx.exp(hx.sinh(hx.relu(x))), target="h13")
    assert net.program is not None
    ends = [(s.device, net.program.steps[s.steps[1] - 1]) for s in net.program.segments]
    assert [str(port.type.dtype) for s in net.program.segments for port in s.crossings] == ["fp16", "fp16"]
    assert [step.outputs[0].type.dtype.name for device, step in ends if device == "host"] == [dtype]
    assert net.outputs[0].dtype.name == dtype


def test_outputs_that_no_segment_computes_are_there() -> None:
    x, p = hx.input("x", (2,)), hx.param("p", np.float32([5, 6]))
    graph = hx.graph({"same": x, "kept": p, "fixed": hx.const(np.float32([1, 2])) * 2.0})
    for options, dtype in (({}, np.float32), ({"io": "fp16"}, np.float16)):
        out = hx.compile(graph, target="h13", **options)(np.array([3, 4], dtype))
        assert {name: array.tolist() for name, array in out.items()} == {
            "same": [3, 4],
            "kept": [5, 6],
            "fixed": [2, 4],
        }
        assert {array.dtype for array in out.values()} == {np.dtype(dtype)}


def test_a_length_that_depends_on_the_data_passes_between_segments() -> None:
    where, _ = hx.non_zero(hx.input("x", (3, 4)))
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile({"twice": hx.relu(hx.cast(where, dtype="fp32")) * 2.0}, target="h13")
    x = np.float32([[0, 1, 2, 0], [3, 0, 0, 0], [0, 0, 0, 4]])
    np.testing.assert_array_equal(net(x), 2.0 * np.array(x.nonzero()))


def test_a_model_of_open_shapes_compiles_for_a_chip(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports[:1], ports[1:]))
    net = hx.compile(model, target="h13")
    np.testing.assert_array_equal(net(weights(2, 3)), np.maximum(weights(2, 3), 0))
    assert isinstance(net, hx.OpenModel)


def test_every_pass_of_every_segment_is_dumped(tmp_path: Path) -> None:
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile(mixed(), target="h13", dump=tmp_path)
    hx.compile(native(), target="h13", dump=tmp_path)
    names = sorted((path.name for path in tmp_path.iterdir()), key=lambda name: int(name.split("-")[0]))
    assert names[0] == "00-graph.txt"
    assert names[1:4] == ["01-repair.txt", "02-retarget.txt", "03-segment.txt"]
    assert names[4] == "04-segment0-fold.txt"
    assert names[-2:] == [f"{len(names) - 2}-join.txt", f"{len(names) - 1}-program.txt"]
    assert not any("segment1" in name for name in names)  # of the first of the two
    assert net.program is not None


def test_a_program_prints_its_segments() -> None:
    with pytest.warns(hx.FallbackWarning):
        text = str(hx.compile(mixed(), target="h13").program)
    assert "  segment 0 on the engine\n" in text
    assert "  segment 1 on the host: sinh at " in text


# ---- the slice that saturates, and the check of everything ----


def test_a_slice_that_saturates_on_a13_is_told_when_it_is_compiled_for() -> None:
    with pytest.warns(
        hx.HazardWarning,
        match=r"h13 computes some ops differently from the model: slice_by_size at .*above 4094 become inf",
    ):
        net = hx.compile(sliced(), target="h13")
    (danger,) = [d for d in net.program.decisions if d.verdict == "hazard"]
    assert danger.source
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hx.compile(sliced(), target="h16")
        hx.compile(hx.graph({"y": hx.relu(hx.input("x", (4, 16))[1:, :8])}), target="h13")


def test_a_cross_compile_check_compiles_and_runs_nothing() -> None:
    assert hx.cross_compile_check(native(), "h13")
    assert hx.cross_compile_check(hx.relu(hx.input("x", (2, 3))), "M4")
    with pytest.warns(hx.FallbackWarning):
        assert not hx.cross_compile_check(mixed(), "h13")
    with pytest.warns(hx.HazardWarning):
        assert hx.cross_compile_check(sliced(), "h13")


@pytest.mark.parametrize("target", ["zzz", "h99", "host", ""])
def test_a_cross_compile_check_never_takes_another_target(target: str) -> None:
    with pytest.raises(hx.Error, match="need"):
        hx.cross_compile_check(native(), target)


def test_the_names_of_targets_that_the_front_half_needs_are_there() -> None:
    names = [
        "Family",
        "Tier",
        "parse",
        "detect",
        "op_status",
        "limit",
        "arch_for_family",
        "family_of_arch",
        "native_streams",
    ]
    assert all(hasattr(hx.targets, name) for name in names)


# ---- reports ----


def test_a_report_has_the_segments_that_compile_makes() -> None:
    graph = mixed()
    report = hx.preflight(graph, "h13")
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile(graph, target="h13")
    assert net.program is not None
    assert [s.nodes for s in report.segments] == [s.nodes for s in net.program.segments]
    assert len(report.crossings) == 2
    record = report.record()
    assert [s["device"] for s in record["segments"]] == ["ane", "host", "ane"]
    assert (record["crossings"], record["crossing_bytes"]) == (2, 96)
    assert record["segments"][1]["inputs"][0] == {"name": "%0", "type": "fp16[4, 6]", "from": 0, "to": []}
    assert "3 segments; what crosses between them: 2 values, 96 bytes:" in str(report)


@pytest.mark.parametrize("target", ["h13", "h16g"])
def test_a_product_over_an_axis_of_extent_0_is_its_bias(target: str) -> None:
    bias = hx.input("bias", (16,), "fp32")
    y = hx.matmul(np.zeros((11, 0), np.float32), np.zeros((0, 16), np.float32), bias)
    with pytest.warns(hx.FallbackWarning, match="matmul"):
        net = hx.compile(hx.graph({"y": y}), target=target)
    b = np.arange(16, dtype=np.float32)
    np.testing.assert_array_equal(net(bias=b), np.tile(b, (11, 1)))
