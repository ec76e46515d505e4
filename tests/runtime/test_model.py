"""Compiled models as a user meets them: calls, buffers, names, errors, state, params, files, threads."""

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from compare import assert_close
from hexane.ops.reference import run_reference
from onnx_models import model as onnx_model
from onnx_models import node

pytestmark = pytest.mark.usefixtures("young")
RNG = np.random.default_rng(7)
Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def small_cnn() -> hx.Graph:
    x = hx.input("image", (1, 1, 8, 8))
    y = hx.max_pool(hx.relu(hx.conv(x, normal(5, 1, 3, 3), bias=normal(5), pad=1)), kernel_sizes=2, strides=2)
    return hx.graph({"logits": hx.linear(hx.flatten(y), normal(10, 80), bias=normal(10))})


def two_outputs() -> hx.Model:
    a, b = hx.input("a", (3,)), hx.input("b", (3,))
    return hx.compile({"total": a + b, "product": a * b}, threads=1)


IMAGE = normal(1, 1, 8, 8)


def test_a_model_computes_what_its_graph_says() -> None:
    graph = small_cnn()
    assert_close(hx.compile(graph)(IMAGE), run_reference(graph, {"image": IMAGE})["logits"])


def test_inputs_go_by_position_by_name_or_as_one_mapping() -> None:
    net = two_outputs()
    a, b = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    for out in (net(a, b), net(a=a, b=b), net(a, b=b), net({"a": a, "b": b})):
        np.testing.assert_array_equal(out["total"], a + b)
        np.testing.assert_array_equal(out["product"], a * b)


def test_one_output_is_an_array_and_ports_have_types() -> None:
    net = hx.compile(small_cnn(), threads=1)
    assert isinstance(net(IMAGE), np.ndarray)
    assert [(p.name, p.shape, p.dtype.name) for p in net.inputs] == [("image", (1, 1, 8, 8), "fp32")]
    assert [(p.name, p.shape) for p in net.outputs] == [("logits", (1, 10))]
    assert "image: fp32[1, 1, 8, 8]" in repr(net)
    assert net._repr_html_().startswith("<p>")


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "image"),
        ({"picture": IMAGE}, "picture"),
        ({"image": IMAGE[0]}, r"\(1, 1, 8, 8\)|\[1, 1, 8, 8\]"),
        ({"image": IMAGE.astype("f8")}, "float32"),
        ({"image": IMAGE.astype(">f4")}, "byte order|native"),
        ({"image": "text"}, "image"),
        ({"image": None}, "image"),
    ],
)
def test_a_call_with_bad_inputs_names_the_port(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.compile(small_cnn(), threads=1)(feeds)


def test_a_call_with_too_many_or_repeated_inputs_is_refused() -> None:
    net = two_outputs()
    a = np.zeros(3, "f")
    with pytest.raises(hx.Error):
        net(a, a, a)
    with pytest.raises(hx.Error, match="'a' twice"):
        net(a, a=a)


def test_any_strides_and_dlpack_go_in_by_call() -> None:
    net = hx.compile(small_cnn(), threads=1)
    want = net(IMAGE)

    class Exported:
        """Nothing but DLPack."""

        def __dlpack__(self, **kwargs: Any) -> Any:
            return IMAGE.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return IMAGE.__dlpack_device__()

    wide = np.zeros((1, 1, 8, 16), "f")
    wide[..., ::2] = IMAGE
    for image in (wide[..., ::2], np.asfortranarray(IMAGE), memoryview(IMAGE), Exported()):
        np.testing.assert_array_equal(net(image), want)


def test_a_bound_call_reads_and_writes_the_users_buffers() -> None:
    net = hx.compile(small_cnn(), threads=1)
    image, logits = IMAGE.copy(), np.zeros((1, 10), "f")
    call = net.bind(image=image, logits=logits)
    call()
    np.testing.assert_array_equal(logits, net(image))
    image *= 2
    call()
    np.testing.assert_array_equal(logits, net(image))
    np.testing.assert_array_equal(net.bind(image=image).outputs["logits"].shape, (1, 10))


def test_bound_buffers_are_kept_alive() -> None:
    net = hx.compile(small_cnn(), threads=1)
    call = net.bind(image=IMAGE.copy())
    call()
    np.testing.assert_array_equal(call.outputs["logits"], net(IMAGE))


def read_only() -> Array:
    out = np.zeros((1, 10), "f")
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ({}, "image"),
        ({"image": IMAGE, "logit": np.zeros((1, 10), "f")}, "logit"),
        ({"image": IMAGE, "logits": np.zeros((10,), "f")}, "logits"),
        ({"image": IMAGE, "logits": np.zeros((1, 10), "d")}, "logits"),
        ({"image": np.zeros((1, 1, 8, 16), "f")[..., ::2]}, "image"),
        ({"image": IMAGE, "logits": read_only()}, "logits"),
        ({"image": IMAGE, "logits": IMAGE.reshape(-1)[:10].reshape(1, 10)}, "overlap"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(buffers: dict[str, Any], message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.compile(small_cnn(), threads=1).bind(**buffers)


def test_nan_and_infinity_flow_through() -> None:
    x = hx.input("x", (4,))
    net = hx.compile([hx.relu(x), x * 0.0, hx.maximum(x, 1.0)], threads=1)
    out = net(np.float32([np.nan, np.inf, -np.inf, 1]))
    np.testing.assert_array_equal(out["relu"], np.float32([np.nan, np.inf, 0, 1]))
    np.testing.assert_array_equal(out["mul"], np.float32([np.nan, np.nan, np.nan, 0]))
    np.testing.assert_array_equal(out["maximum"], np.float32([np.nan, np.inf, 1, 1]))


def test_outputs_may_be_inputs_constants_views_and_twice_the_same() -> None:
    x = hx.input("x", (2, 3))
    y = hx.relu(x)
    outputs = {
        "x_again": x,
        "c": hx.const([1.5, 2.5]),
        "t": hx.transpose(x),
        "y1": y,
        "y2": y,
        "flat": hx.reshape(y, shape=(6,)),
    }
    array = np.float32([[1, -2, 3], [-4, 5, -6]])
    out = hx.compile(outputs, threads=1)(array)
    np.testing.assert_array_equal(out["x_again"], array)
    np.testing.assert_array_equal(out["c"], np.float32([1.5, 2.5]))
    np.testing.assert_array_equal(out["t"], array.T)
    np.testing.assert_array_equal(out["y1"], np.maximum(array, 0))
    np.testing.assert_array_equal(out["y2"], np.maximum(array, 0))
    np.testing.assert_array_equal(out["flat"], np.maximum(array, 0).reshape(6))


def test_an_output_may_have_the_name_of_an_input_which_bind_means(tmp_path: Path) -> None:
    net = hx.compile(onnx_model([node("Neg", "x", "y")], {"x": normal(3)}, ["x", "y"]), threads=1)
    net.save(tmp_path / "echo.hxp")
    a, y = normal(3), np.empty(3, np.float32)
    for form in (net, hx.load(tmp_path / "echo.hxp", threads=1)):
        np.testing.assert_equal(form(a), {"x": a, "y": -a})
        call = form.bind(x=a, y=y)
        call()
        np.testing.assert_equal(dict(call.outputs), {"x": a, "y": -a})


def test_in_place_results_do_not_overwrite_what_is_read_later() -> None:
    x = hx.input("x", (3, 3))
    a = hx.exp(x)
    b = hx.tanh(a)
    c = a + hx.transpose(a)
    array = normal(3, 3)
    out = hx.compile({"c": c, "d": b * c + a}, threads=1)(array)
    e = np.exp(array.astype("d"))
    np.testing.assert_allclose(out["c"], e + e.T, rtol=1e-6)
    np.testing.assert_allclose(out["d"], np.tanh(e) * (e + e.T) + e, rtol=1e-6)


def counter() -> hx.Graph:
    """Writes x at a position of a log of 4 rows, and gives the log's sum before and after."""
    x, at = hx.input("x", (1, 2)), hx.input("at", (), "int32")
    log = hx.state("log", (4, 2))
    before = hx.exp(log)
    after = hx.write_state(log, x, at, axis=0)
    return hx.graph({"before": before, "after": after * 1.0})


def test_state_survives_calls_and_old_contents_are_read_before_they_are_overwritten() -> None:
    net = hx.compile(counter(), threads=1)
    expected = np.zeros((4, 2), "f")
    for step in range(4):
        out = net(np.full((1, 2), step + 1, "f"), np.int32(step))
        np.testing.assert_allclose(out["before"], np.exp(expected), rtol=1e-6)
        expected[step] = step + 1
        np.testing.assert_array_equal(out["after"], expected)
    np.testing.assert_array_equal(net.read_state("log"), expected)
    net.reset_state()
    np.testing.assert_array_equal(net.read_state("log"), np.zeros((4, 2)))


def test_initial_states_are_let_go() -> None:
    """Once they are, nobody holds the array of a param but the graph."""
    w = hx.param("w", np.ones((64, 64), "f"))
    assert w.value.node.data is not None
    held = weakref.ref(w.value.node.data)
    net = hx.compile(hx.train.step(hx.reduce_sum(w * hx.input("x", (64,))), [w], hx.train.sgd(0.5)), threads=1)
    assert isinstance(net, hx.Model)
    del w
    gc.collect()
    assert held() is not None
    net.drop_initial_states()
    gc.collect()
    assert held() is None
    x = np.arange(64, dtype="f")
    net(x=x)
    np.testing.assert_array_equal(net.read_state("w"), np.broadcast_to(1 - 0.5 * x, (64, 64)))


def test_initial_states_that_were_let_go_are_not_asked_for(tmp_path: Path) -> None:
    net = hx.compile(counter(), threads=1)
    assert isinstance(net, hx.Model)
    net(np.ones((1, 2), "f"), np.int32(2))
    net.drop_initial_states()
    net.drop_initial_states()
    with pytest.raises(hx.Error, match=r"\[reset_state\] got a program whose first contents have been dropped"):
        net.reset_state()
    with pytest.raises(hx.Error, match=r"\[save\] states: got 'initial', need 'now'"):
        net.save(tmp_path / "net.hxp")
    assert not list(tmp_path.iterdir())
    net.save(tmp_path / "net.hxp", states="now")
    again = hx.load(tmp_path / "net.hxp")
    np.testing.assert_array_equal(again.read_state("log"), net.read_state("log"))
    again.reset_state()
    np.testing.assert_array_equal(again.read_state("log"), net.read_state("log"))


def test_a_position_outside_the_state_is_refused() -> None:
    net = hx.compile(counter(), threads=1)
    for position in (-1, 4):
        with pytest.raises(hx.Error, match=str(position)):
            net(np.zeros((1, 2), "f"), np.int32(position))


def test_a_state_that_is_updated_twice_is_refused() -> None:
    log, at = hx.state("log", (4,)), hx.input("at", (), "int32")
    written = hx.write_state(log, hx.input("x", (1,)), at)
    again = hx.write_state(log, hx.input("y", (1,)), at)
    with pytest.raises(hx.Error, match="second update"):
        hx.compile([written, again])


def test_an_update_that_no_output_needs_is_kept_by_updates() -> None:
    x, at = hx.input("x", (1,)), hx.input("at", (), "int32")
    log = hx.state("log", (3,))
    net = hx.compile(hx.relu(x), updates=[hx.write_state(log, x, at)], threads=1)
    net(np.float32([5]), np.int32(1))
    np.testing.assert_array_equal(net.read_state("log"), np.float32([0, 5, 0]))


def test_params_are_replaced_by_name() -> None:
    x = hx.input("x", (2, 3))
    weight = normal(4, 3)
    net = hx.compile(hx.linear(x, hx.param("weight", weight)), threads=1)
    array = normal(2, 3)
    np.testing.assert_allclose(net(array), array @ weight.T, rtol=1e-5)
    net.update(weight=2 * weight)
    np.testing.assert_allclose(net(array), array @ (2 * weight).T, rtol=1e-5)
    with pytest.raises(hx.Error, match="wieght"):
        net.update(wieght=weight)
    with pytest.raises(hx.Error, match="weight"):
        net.update(weight=weight.T)


@pytest.mark.parametrize("loaded", [False, True])
def test_params_kept_in_fp16_are_replaced_by_fp32_ones(loaded: bool, tmp_path: Path) -> None:
    x = hx.input("x", (1, 3))
    net = hx.compile(hx.linear(x, hx.param("weight", normal(4, 3))), dtype="fp16", threads=1)
    if loaded:
        net.save(tmp_path / "m.hxp")
        net = hx.load(tmp_path / "m.hxp", threads=1)
    net.update(weight=np.full((4, 3), 2, np.float32))
    np.testing.assert_array_equal(net(np.ones((1, 3), np.float32)), np.full((1, 4), 6, np.float32))
    with pytest.raises(hx.Error, match="fp16 does not hold"):
        net.update(weight=np.full((4, 3), 1e9, np.float32))
    with pytest.raises(hx.Error, match="got float64"):
        net.update(weight=np.ones((4, 3)))


def test_a_saved_model_loads_and_computes_the_same_bits(tmp_path: Path) -> None:
    net = hx.compile(small_cnn(), threads=1)
    net.save(tmp_path / "m.hxp")
    loaded = hx.load(tmp_path / "m.hxp", threads=1)
    np.testing.assert_array_equal(loaded(IMAGE), net(IMAGE))
    loaded.save(tmp_path / "again.hxp")
    assert (tmp_path / "again.hxp").read_bytes() == (tmp_path / "m.hxp").read_bytes()


def test_saving_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    net = hx.compile(small_cnn(), threads=1)
    with pytest.raises(hx.Error, match="nowhere"):
        net.save(tmp_path / "nowhere" / "m.hxp")


@pytest.mark.parametrize("content", [b"", b"HEXANE", b"x" * 1000])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.hxp").write_bytes(content)
    with pytest.raises(hx.Error):
        hx.load(tmp_path / "m.hxp")
    with pytest.raises(hx.Error, match="missing"):
        hx.load(tmp_path / "missing.hxp")


def test_fp16_keeps_the_ports_and_rounds_in_between() -> None:
    graph = small_cnn()
    net = hx.compile(graph, dtype="fp16", threads=1)
    assert net.inputs[0].dtype.name == net.outputs[0].dtype.name == "fp32"
    want = run_reference(graph, {"image": IMAGE})["logits"]
    np.testing.assert_allclose(net(IMAGE), want, rtol=0.02, atol=0.02)
    assert net.memory["weights"] < hx.compile(graph, threads=1).memory["weights"]


def test_steps_that_are_prepared_together_all_see_an_update() -> None:
    rng = np.random.default_rng(0)
    x, old, new = (rng.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(3))
    y = hx.input("x", x.shape)
    weight = hx.param("w", old)
    for _ in range(4):
        y = hx.clip(y @ weight, alpha=-3, beta=3)
    net = hx.compile(y, threads=1)
    for w in (old, new, old):
        net.update(w=w)
        want = x
        for _ in range(4):
            want = np.clip(want @ w, -3, 3)
        assert np.array_equal(net(x), want)


def test_an_unknown_target_of_the_environment_is_told_to_be_that(monkeypatch):
    x = hx.input("x", (2,))
    monkeypatch.setenv("HEXANE_TARGET", "m99")
    with pytest.raises(hx.Error, match=r"\[target\] got 'm99', need one of .*: the variable HEXANE_TARGET names it"):
        hx.compile(hx.relu(x))
    with pytest.raises(hx.Error, match=r"\[target\] got 'm98', need one of [^:]*$"):
        hx.compile(hx.relu(x), target="m98")
    assert hx.compile(hx.relu(x), target="host")(np.ones(2, np.float32)).tolist() == [1, 1]


@pytest.mark.parametrize("options", [{"dtype": "fp8"}, {"target": "m99"}, {"threads": 0}, {"threads": 10_000}])
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(hx.Error, match="need"):
        hx.compile(small_cnn(), **options)


@pytest.mark.parametrize("model", [3, None, [], {}, [3], "", "nothing.onnx", b"garbage"])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(hx.Error):
        hx.compile(model)


def larger_net(threads: int) -> hx.Model:
    x = hx.input("x", (1, 3, 40, 40))
    for channels in (16, 32, 32):
        x = hx.relu(hx.conv(x, normal(channels, x.shape[1], 3, 3), pad=1))
    return hx.compile(hx.softmax(hx.linear(hx.flatten(x), normal(50, 32 * 1600))), threads=threads)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    image = normal(1, 3, 40, 40)
    np.testing.assert_array_equal(larger_net(threads)(image), larger_net(1)(image))


@pytest.mark.parametrize("threads", [1, 2])
def test_models_run_concurrently_and_one_model_from_many_threads_is_safe(threads: int) -> None:
    nets = [larger_net(threads), larger_net(threads)]
    images = [RNG.standard_normal((1, 3, 40, 40)).astype("f") for _ in range(4)]
    want = [nets[0](image) for image in images]
    failures: list[int] = []

    def work(which: int) -> None:
        for _ in range(10):
            if not np.array_equal(nets[which % 2](images[which]), want[which]):
                failures.append(which)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures


def open_onnx() -> bytes:
    """y = reshape(relu(x), shape): x has a free batch, shape is an input."""
    helper, proto = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Reshape", ["r", "shape"], ["y"])],
        "open",
        [helper.make_tensor_value_info("x", proto.FLOAT, ["n", 4]), helper.make_tensor_value_info("shape", proto.INT64, [2])],
        [helper.make_tensor_value_info("y", proto.FLOAT, [None, None])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def test_an_open_model_compiles_for_each_shape_and_value_once() -> None:
    net = hx.compile(open_onnx(), threads=1)
    assert isinstance(net, hx.OpenModel)
    for batch, shape in ((2, (4, 2)), (3, (2, 6)), (2, (4, 2)), (2, (1, 8))):
        x = normal(batch, 4)
        np.testing.assert_array_equal(net(x, np.int64(shape)), np.maximum(x, 0).reshape(shape))
    assert "3 sets" in repr(net)
    x, y = normal(2, 4), np.zeros((8, 1), "f")
    net.bind(x=x, shape=np.int64([8, 1]), y=y)()
    np.testing.assert_array_equal(y, np.maximum(x, 0).reshape(8, 1))
    with pytest.raises(hx.Error):
        net(x, np.int64([3, 3]))
    with pytest.raises(hx.Error):
        net(x)


def test_shapes_and_values_given_at_compile_time_close_the_model() -> None:
    net = hx.compile(open_onnx(), input_shapes={"x": (2, 4)}, input_values={"shape": np.int64([4, 2])}, threads=1)
    assert isinstance(net, hx.Model)
    x = normal(2, 4)
    np.testing.assert_array_equal(net(x), np.maximum(x, 0).reshape(4, 2))


def test_copies_of_graphs_are_refused() -> None:
    y = hx.relu(hx.input("x", (3,)))
    for thing, way in ((y, "hx.parse"), (hx.graph(y), "hx.parse")):
        for copying in (pickle.dumps, copy.deepcopy):
            with pytest.raises(hx.Error, match=rf"\[pickle\] .*{way}"):
                copying(thing)


@pytest.mark.parametrize("threads", [0, 257, 1.5, "2", True])
def test_threads_that_are_no_number_of_threads_are_refused(threads: Any) -> None:
    with pytest.raises(hx.Error, match=rf"threads: got {threads!r}, need an integer in 1..256"):
        hx.compile(hx.relu(hx.input("x", (3,))), threads=threads)


def test_arguments_that_a_form_of_model_does_not_have_are_refused() -> None:
    y = hx.relu(hx.input("x", (3,)))
    with pytest.raises(hx.Error, match="updates: got some with a Graph"):
        hx.compile(hx.graph(y), updates=[y])
    for model in (y, hx.graph(y)):
        with pytest.raises(hx.Error, match="input_shapes: got some"):
            hx.compile(model, input_shapes={"x": (4,)})


def test_names_of_inputs_that_are_no_strings_are_told() -> None:
    with pytest.raises(hx.Error, match=r"\[call\] got the inputs 3, need x"):
        hx.compile(hx.relu(hx.input("x", (3,))))({3: np.ones(3, "f")})
