"""Whole networks in the C99 runtime beside the host: as they are, streamed, and as the app that codegen writes."""

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hexane as hx
from command import Cli
from hexane import _core
from hexane.emit.c99 import generate
from hexane.emit.plan import emit_plan
from hexane.emit.plan_view import PlanView
from hexane.emit.prepare import prepared
from hexane.errors import Error
from hexane.runtime.c99 import C99Model, library
from hexane.stages.stream.column_tile_choice import StripeChoice
from hexane.stages.stream.spill import Spilled, Spills, TooLarge
from networks import small_networks
from plans import PlanBuilder
from small_devices import SMALL_DEVICE_NETWORKS, camera

SUM = 1e-5  # of the largest number of an output, where sums of floats are added in another order


def plan_of(model: Any, folder: Path, rows: int, numerics: str = "") -> tuple[hx.Model, bytes]:
    net = hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=rows), numerics=numerics)
    assert isinstance(net, hx.Model)
    net.save(folder / "plan.hxp")
    return net, (folder / "plan.hxp").read_bytes()


def feeds_of(net: hx.Model) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {port.name: rng.standard_normal(port.shape).astype(port.dtype.numpy) for port in net.inputs}


@pytest.mark.parametrize("numerics", ["", "q31"])
@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_an_int8_network_has_the_hosts_bits(c99, tmp_path, name, rows, numerics):
    net, plan = plan_of(SMALL_DEVICE_NETWORKS[name](), tmp_path, rows, numerics)
    feeds = feeds_of(net)
    assert C99Model(plan, c99)(feeds)["y"].tobytes() == net(feeds).tobytes()


@pytest.mark.parametrize("holds_ports", [False, True])
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_stages_have_the_hosts_bits(c99, name, holds_ports):
    """Loops of copies from and to slow memory are verified and run as all others."""
    whole = hx.compile(SMALL_DEVICE_NETWORKS[name](), target="host", threads=1)
    assert isinstance(whole, hx.Model)
    assert whole.program is not None
    spills = Spills(whole.program, "", holds_ports)
    least = spills.at(0)
    assert isinstance(least, TooLarge)
    feeds = feeds_of(whole)
    moved = []
    for budget in (least.bytes, (least.bytes + whole.memory["arena"]) // 2):
        found = spills.at(budget)
        assert isinstance(found, Spilled)
        moved.append(sum(found.moved))
        model = C99Model(bytes(_core.plan_write(emit_plan(found.program))), c99)
        model({port: -array for port, array in feeds.items()})
        assert model(feeds)["y"].tobytes() == whole(feeds).tobytes()
    assert moved[0] > 0


@pytest.mark.parametrize("numerics", ["", "q31"])
def test_stripes_of_columns_have_the_hosts_bits(c99, numerics):
    """Every way that there is: steps write some columns of a row, and read some of an input."""
    whole = hx.compile(camera(), target="host", threads=1, numerics=numerics)
    assert isinstance(whole, hx.Model)
    assert whole.program is not None
    choice, feeds = StripeChoice(whole.program), feeds_of(whole)
    ways = list(choice.ways())
    assert len(ways) > 2
    for chosen in ways:
        model = C99Model(bytes(_core.plan_write(emit_plan(choice.streamed(chosen)))), c99)
        model({port: -array for port, array in feeds.items()})
        assert model(feeds)["y"].tobytes() == whole(feeds).tobytes()


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_rows_that_hooks_bring_have_the_hosts_bits(c99, tmp_path, name, rows, output):
    """C99Model stops the run where rows do not come in order, each once."""
    memory = hx.Memory(rows=rows, stream_input=True, stream_output=output)
    net = hx.compile(SMALL_DEVICE_NETWORKS[name](), target="host", threads=1, memory=memory)
    net.save(tmp_path / "plan.hxp")
    model, feeds = C99Model((tmp_path / "plan.hxp").read_bytes(), c99), feeds_of(net)
    assert [port.rows is not None for port in (*model.inputs, *model.outputs)] == [True, output]
    for sign in (1, -1):
        signed = {port: sign * array for port, array in feeds.items()}
        assert model(signed)["y"].tobytes() == net(signed).tobytes()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", ["detector", "mobile-13", "unet"])
def test_rows_of_images_come_and_go_through_hooks(c99, tmp_path, name, rows):
    net = hx.compile(
        small_networks()[name],
        target="host",
        threads=1,
        memory=hx.Memory(rows=rows, stream_input=True, stream_output=True),
    )
    net.save(tmp_path / "plan.hxp")
    feeds = feeds_of(net)
    results = net(feeds)
    need = results if isinstance(results, dict) else {net.outputs[0].name: results}
    for port, got in C99Model((tmp_path / "plan.hxp").read_bytes(), c99)(feeds).items():
        assert np.abs(got - need[port]).max() <= SUM * np.abs(need[port]).max()


def streamed_copy(**changes: Any) -> bytes:
    """x to y through the arena, x streamed."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (1, 6, 4), streamed=1)
    y = plan.port("outputs", "y", (1, 6, 4), streamed=1)
    ring = plan.tensor(plan.space("arena", 256), (1, 6, 4), ring=2, strides=changes.get("strides"))
    plan.step("copy", [x], [ring], changes.get("cut", (1, 0, 1)))
    plan.step("copy", [ring], [y], (1, 0, 1))
    plan.loop(0, 6, [1, 1])
    return bytes(plan.tobytes())


def test_a_streamed_port_needs_its_hook_and_a_copy_of_rows_in_order(c99):
    model, x = C99Model(streamed_copy(), c99), np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    assert model({"x": x})["y"].tobytes() == x.tobytes()
    c99.hx_shared_hooks(model._net, None, None)
    assert c99.hx_run(model._net) == 3
    assert c99.hx_shared_error(model._net, 2) == b"need a hook for its rows"
    for data, what in (
        (_patched(streamed_copy(), "steps", "begin", 0, -1), "need its rows in order, each once"),
        (_patched(streamed_copy(), "inputs", "streamed", 0, 2), "streamed: need 0 or 1"),
        (_patched(streamed_copy(), "moves", None, 0, 2), "need its rows in order, each once"),
    ):
        with pytest.raises(Error, match=what):
            load_unverified(c99, data)


def _patched(data: bytes, section: str, field: str | None, row: int, value: int) -> bytes:
    """With one number changed; what writes plans does not look at them."""
    sections = {
        name: np.array(rows) if isinstance(rows, np.ndarray) else rows
        for name, rows in _core.plan_read(np.frombuffer(data, np.uint8)).items()
    }
    (sections[section] if field is None else sections[section][field])[row] = value
    return bytes(_core.plan_write(sections))


def load_unverified(runtime: Any, data: bytes, spaces: int = 3) -> None:
    """In the C99 runtime alone: C99Model reads plans with the host's reader first."""
    plan = np.frombuffer(data, np.uint8).copy()
    net = ctypes.create_string_buffer(runtime.hx_shared_net_bytes())
    held = np.zeros(1024 + 4096, np.uint8)
    at = held.ctypes.data + -held.ctypes.data % 4096
    memory = ((ctypes.c_void_p * 2) * spaces)(*((at, 1024) for _ in range(spaces)))
    if runtime.hx_shared_load(net, ctypes.c_void_p(plan.ctypes.data), ctypes.c_size_t(plan.size), memory, spaces):
        raise Error(runtime.hx_shared_error(net, 2).decode())


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", ["detector", "mobile-13", "unet"])
def test_a_float_network_is_near_the_host(c99, tmp_path, name, rows):
    net, plan = plan_of(small_networks()[name], tmp_path, rows)
    feeds = feeds_of(net)
    results = net(feeds)
    need = results if isinstance(results, dict) else {net.outputs[0].name: results}
    for port, got in C99Model(plan, c99)(feeds).items():
        assert np.abs(got - need[port]).max() <= SUM * np.abs(need[port]).max()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", ["ds_cnn", "resnet8", "mobilenet_v2_035_96"])
def test_the_float_benchmark_networks_are_near_the_host(c99, tmp_path, model_file, name, rows):
    net, plan = plan_of(model_file(name), tmp_path, rows)
    feeds = feeds_of(net)
    need, (got,) = net(feeds), C99Model(plan, c99)(feeds).values()
    assert np.abs(got - need).max() <= SUM * np.abs(need).max()


def test_the_second_run_is_the_first(c99, tmp_path):
    net, plan = plan_of(SMALL_DEVICE_NETWORKS["residual"](), tmp_path, 1)
    model, feeds = C99Model(plan, c99), feeds_of(net)
    first = model(feeds)["y"]
    model({name: -array for name, array in feeds.items()})
    assert model(feeds)["y"].tobytes() == first.tobytes()


def test_the_app_that_codegen_writes_builds_and_has_the_hosts_bits(cli: Cli, tmp_path):
    net, _ = plan_of(SMALL_DEVICE_NETWORKS["mobile"](), tmp_path, 1)
    feeds = feeds_of(net)
    ran = cli("codegen", tmp_path / "plan.hxp", "-o", tmp_path / "app", "--name", "mobile")
    assert ran.code == 0, ran.err
    assert "quantized_conv" in ran.out
    files = [path for path in (tmp_path / "app").rglob("*") if path.is_file()]
    assert tmp_path / "app" / "golden" / "input.bin" in files
    assert ran.out.startswith(f"{tmp_path / 'app'}: {len(files)} files; flash: plan ")
    if shutil.which("make") is None:
        pytest.skip("no make")
    subprocess.run(["make", "-s", "-C", tmp_path / "app", "CFLAGS=-O1"], check=True)
    (tmp_path / "app" / "input.bin").write_bytes(feeds["x"].tobytes())
    subprocess.run([tmp_path / "app" / "mobile"], cwd=tmp_path / "app", check=True)
    assert (tmp_path / "app" / "output.bin").read_bytes() == net(feeds).tobytes()
    symbols = subprocess.run(["nm", tmp_path / "app" / "mobile"], capture_output=True, text=True).stdout
    assert "hx_kernel_quantized_conv" in symbols
    assert "hx_kernel_max_pool" not in symbols, "kernels that are not used are left out"


def test_the_app_of_a_streamed_input_reads_its_rows_from_a_file_or_from_a_driver(cli: Cli, tmp_path):
    if shutil.which("make") is None:
        pytest.skip("no make")
    net = hx.compile(
        SMALL_DEVICE_NETWORKS["mobile"](), target="host", threads=1, memory=hx.Memory(rows=1, stream_input=True)
    )
    net.save(tmp_path / "plan.hxp")
    app = tmp_path / "app"
    assert cli("codegen", tmp_path / "plan.hxp", "-o", app, "--name", "mobile").code == 0
    header = (app / "mobile.h").read_text()
    assert "streamed in 32 rows of 384 bytes, each with the axes 3, 1, of which the last changes fastest" in header
    assert "(pixels, channels fastest: NHWC, not NCHW). The arrays of `hexane run` have another order" in header
    assert "NHWC, not NCHW" in (app / "app" / "main.c").read_text()
    assert "#define MOBILE_INPUT_0_ROW_BYTES 384u" in header
    assert f"#define MOBILE_PORT_BYTES {5 * 4}u" in header

    def output(*options: str) -> bytes:
        subprocess.run(["make", "-s", "-B", "-C", app, "CFLAGS=-O0", *options], check=True)
        subprocess.run([app / "mobile"], cwd=app, check=True)
        return (app / "output.bin").read_bytes()

    x = feeds_of(net)["x"]
    (app / "input.bin").write_bytes(x.transpose(0, 2, 3, 1).tobytes())  # row by row, channels innermost
    assert output() == net(x).tobytes()
    checked = subprocess.run(["make", "-C", app, "CFLAGS=-O0", "check"], capture_output=True, text=True)
    assert "output.bin is golden/output.bin" in checked.stdout
    golden = (app / "golden" / "input.bin").read_bytes()
    as_array = np.frombuffer(golden, np.float32).reshape(1, 32, 32, 3).transpose(0, 3, 1, 2)
    assert (app / "golden" / "output.bin").read_bytes() == net(as_array).tobytes()
    (app / "golden" / "input.bin").write_bytes(np.ascontiguousarray(as_array).tobytes())  # as `hexane run` takes it
    assert subprocess.run(["make", "-C", app, "CFLAGS=-O0", "check"], capture_output=True).returncode
    row, element = np.arange(32)[:, None], np.arange(32 * 3)
    pattern = ((31 * row + 7 * element) % 256 / 128 - 1).astype(np.float32).reshape(1, 32, 32, 3)
    assert output("INPUT=app/pattern.c") == net(pattern.transpose(0, 3, 1, 2)).tobytes()


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="no make, or no C compiler")
def test_an_app_in_fp32_computes_its_golden_output(cli: Cli, tmp_path: Path) -> None:
    """Whose bits are not the host's, which adds in another order."""
    rng = np.random.default_rng(3)
    x = hx.input("x", (1, 3, 8, 8))
    y = hx.relu(hx.conv(x, rng.standard_normal((16, 3, 3, 3), np.float32), pad=1))
    net = hx.compile(hx.graph(hx.linear(hx.reshape(y, shape=(1, -1)), rng.standard_normal((10, 1024), np.float32))))
    net.save(tmp_path / "net.hxp")
    assert cli("codegen", tmp_path / "net.hxp", "-o", tmp_path / "app").code == 0
    checked = subprocess.run(["make", "-C", tmp_path / "app", "check"], capture_output=True, text=True)
    assert "output.bin is golden/output.bin" in checked.stdout, checked.stderr


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="no make, or no C compiler")
@pytest.mark.parametrize("name", ["sequence", "images"])
def test_an_app_whose_port_comes_in_one_call_computes_its_golden_output(cli: Cli, tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(3)

    def numbers(*shape: int) -> NDArray[np.float32]:
        return rng.uniform(-0.3, 0.3, shape).astype(np.float32)

    if name == "sequence":
        y = hx.gru(hx.input("x", (12, 1, 5)), numbers(1, 12, 5), numbers(1, 12, 4), numbers(1, 24))[0]
    else:
        y = hx.conv(hx.input("x", (2, 3, 6, 7)), numbers(4, 3, 3, 3))
    memory = hx.Memory(runtime="c99", stream_input=True, stream_output=True)
    hx.compile(hx.graph(y), target="host", threads=1, memory=memory).save(tmp_path / "net.hxp")
    assert cli("codegen", tmp_path / "net.hxp", "-o", tmp_path / "app").code == 0
    checked = subprocess.run(["make", "-C", tmp_path / "app", "CFLAGS=-O0", "check"], capture_output=True, text=True)
    assert "output.bin is golden/output.bin" in checked.stdout, checked.stderr


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_the_golden_input_of_bytes_has_all_values(cli: Cli, tmp_path: Path, dtype: str) -> None:
    """Zeros and ones tell nothing of an image; an index into a small table still has them."""
    image, index = hx.input("x", (1, 3, 16, 16), dtype), hx.input("i", (5,), dtype)
    table = np.arange(8, dtype=np.float32).reshape(2, 4)
    for name, y in (
        ("image", hx.cast(image, dtype="fp32") * 0.5),
        ("index", hx.gather(table, hx.cast(index, dtype="int32"))),
    ):
        hx.compile(hx.graph({"y": y})).save(tmp_path / f"{name}.hxp")
        assert cli("codegen", tmp_path / f"{name}.hxp", "-o", tmp_path / name).code == 0
    golden = np.fromfile(tmp_path / "image" / "golden" / "input.bin", dtype)
    assert len(np.unique(golden)) > 200
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "image" / "golden" / "output.bin", np.float32), golden.astype(np.float32) * 0.5
    )
    assert set(np.fromfile(tmp_path / "index" / "golden" / "input.bin", dtype).tolist()) <= {0, 1}


def test_run_says_that_the_bits_are_the_hosts(cli: Cli, tmp_path, monkeypatch):
    quickly = partial(library, ("-O0", "-fno-lto"))
    monkeypatch.setattr("hexane.runtime.c99.library", quickly)
    plan_of(SMALL_DEVICE_NETWORKS["keyword_spotting"](), tmp_path, 0)
    ran = cli("run", tmp_path / "plan.hxp", "--runtime", "c99")
    assert ran.code == 0, ran.err
    assert "the same numbers" in ran.out


def test_codegen_names_a_kernel_that_the_runtime_has_not_got(tmp_path):
    net = hx.compile(hx.acos(hx.input("x", (4,))), target="host")
    net.save(tmp_path / "plan.hxp")
    with pytest.raises(Error, match=r"\[codegen\] step 0.*acos"):
        generate((tmp_path / "plan.hxp").read_bytes(), "net", app=True)


def test_codegen_refuses_a_ring_whose_row_was_overwritten_before_it_is_read(cli: Cli, c99, tmp_path):
    """The runtime's own loader takes such a plan: its steps stay in their memory, but compute with a stale row."""
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (1, 6, 4)), plan.port("outputs", "y", (1, 6, 4))
    ring = plan.tensor(plan.space("arena", 2 * 16), (1, 6, 4), ring=2)
    plan.step("copy", [x], [ring], (1, 0, 1))
    plan.step("tanh", [ring], [y], (1, -2, -1))  # two rows behind: the third row has taken the place of the first
    plan.loop(0, 8, [1, 1])
    data = bytes(plan.tobytes())
    C99Model(data, c99)
    with pytest.raises(Error, match="row 0 is not there"):
        generate(data, "net", app=True)
    (tmp_path / "x.hxp").write_bytes(data)
    ran = cli("codegen", tmp_path / "x.hxp", "-o", tmp_path / "app")
    assert ran.code == 1
    assert "row 0 is not there" in ran.err
    assert not (tmp_path / "app").exists()


def test_codegen_takes_a_step_whose_second_operand_is_absent(tmp_path):
    net = hx.compile(hx.layer_norm(hx.input("x", (2, 6)), axes=(-1,)), target="host")
    net.save(tmp_path / "plan.hxp")
    assert "net.c" in generate((tmp_path / "plan.hxp").read_bytes(), "net", app=False)


def test_codegen_refuses_what_is_no_plan(cli: Cli, tmp_path):
    (tmp_path / "x.hxp").write_bytes(b"HEXANE\x1a\n" + bytes(100))
    ran = cli("codegen", tmp_path / "x.hxp", "-o", tmp_path / "app")
    assert ran.code == 1
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_names_of_layers_do_not_go_to_the_device(tmp_path, name):
    net, plan = plan_of(SMALL_DEVICE_NETWORKS[name](), tmp_path, 1)
    view = PlanView(prepared(plan))
    sources = {step["source"] for step in net.steps}
    assert sources
    assert not any(source.encode() in view.data for source in sources if source)
    assert len(view.data) < len(plan)
    assert view.used() == PlanView(plan).used()
    assert ([port.name for port in view.inputs], [port.name for port in view.outputs]) == (["x"], ["y"])


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(1, 2, 1), (1, 4, 1), (2, 3, 2)])
def test_windows_in_the_padding_need_no_rows(c99, tmp_path, kernel, stride, pad):
    rng = np.random.default_rng(0)
    y = hx.conv(hx.input("x", (1, 4, 9, 8)), rng.standard_normal((8, 4, 3, 3)).astype(np.float32), pad=1)
    y = hx.conv(y, rng.standard_normal((8, 8, kernel, kernel)).astype(np.float32), strides=stride, pad=pad)
    for rows in (1, 2, 4):
        net = hx.compile({"y": hx.relu(y)}, target="host", threads=1, memory=hx.Memory(rows=rows))
        assert net.program.loops
        net.save(tmp_path / "plan.hxp")
        feeds = feeds_of(net)
        got, need = C99Model((tmp_path / "plan.hxp").read_bytes(), c99)(feeds)["y"], net(feeds)
        assert np.abs(got - need).max() <= SUM * np.abs(need).max()
