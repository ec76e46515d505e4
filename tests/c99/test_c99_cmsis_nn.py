"""Steps that generated code leaves to CMSIS-NN: outputs beside the host's, and the scratch of its functions in the
arena.

CMSIS-NN itself is not there: tests/c99/cmsis_nn computes what the documentation of its functions says.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from c99_apps import CC, build_app, run_app, write_app
from command import Cli
from hexane.emit.cmsis_nn import Body
from hexane.emit.plan_view import PlanView, arena_bytes
from hexane.emit.prepare import prepared
from onnx_models import model, node, rand
from qdq import quantized_model
from small_devices import SMALL_DEVICE_NETWORKS
from symmetric import symmetric

DOUBLE = Path(__file__).parent / "cmsis_nn"
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def layers(shape: tuple[int, ...], nodes: list[Any], weights: dict[str, Any]) -> bytes:
    feeds = {"x": rand(*shape)}
    return symmetric(quantized_model(model(nodes, feeds, ["y"], weights), feeds))


def conv(channels: int, out: int, kernel: tuple[int, int], **attrs: Any) -> bytes:
    weight = rand(out, channels // int(attrs.get("group", 1)), *kernel) / np.float32(8)
    return layers((1, channels, 12, 11), [node("Conv", "x w b", "y", **attrs)], {"w": weight, "b": rand(out)})


def pools() -> bytes:
    nodes = [
        node("Conv", "x w b", "c"),
        node("MaxPool", "c", "m", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("AveragePool", "m", "a", kernel_shape=[2, 3], pads=[0, 1, 1, 1]),
        node("Conv", "a v d", "y"),
    ]
    weights = {"w": rand(8, 3, 1, 1), "b": rand(8), "v": rand(4, 8, 1, 1), "d": rand(4)}
    source = onnx.load_from_string(layers((1, 3, 14, 13), nodes, weights))
    named = {tensor.name: tensor for tensor in source.graph.initializer}
    for what in ("scale", "zero"):  # of an average, TFLite has those of its input
        named[f"a_{what}"].raw_data = named[f"m_{what}"].raw_data
    return source.SerializeToString()


LAYERS = {
    "dilated": conv(5, 7, (3, 2), dilations=[2, 3], pads=[2, 1, 2, 2]),
    "strided": conv(4, 6, (5, 3), strides=[2, 2], pads=[2, 1, 1, 0]),
    "one pixel, strided": conv(6, 5, (1, 1), strides=[3, 2]),
    "depthwise of 5 x 5": conv(6, 6, (5, 5), group=6, pads=[2, 2, 2, 2]),
    "depthwise with two outputs": conv(4, 8, (3, 3), group=4, strides=[2, 1], pads=[1, 0, 1, 2]),
    "depthwise, dilated": conv(4, 4, (3, 3), group=4, dilations=[2, 2], pads=[2, 2, 2, 2]),
    "pools": pools(),
}


def make(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["make", "-s", "-C", folder, "CFLAGS=-O0", *options], capture_output=True, text=True)


@pytest.fixture(scope="session")
def library(runtime_archive) -> list[Path]:
    """The runtime, its bodies for CMSIS-NN, and what stands in for that."""
    folder = runtime_archive.parent
    sources = [*folder.glob("cmsis_nn/*.c"), *DOUBLE.glob("Source/*/*.c")]
    subprocess.run([*CC, "-Iinclude", f"-I{DOUBLE / 'Include'}", "-c", *sources], cwd=folder, check=True)
    return [folder / "cmsis_nn.o", folder / "double.o", runtime_archive]


def calls_in(printed: str) -> dict[str, int]:
    """How often each function of CMSIS-NN was called."""
    return {name: int(count) for name, count in (line.split() for line in printed.splitlines())}


def compiled(source: bytes, rows: int = 0, **options: Any) -> hx.Model:
    net = hx.compile(source, target="host", threads=1, **{"numerics": "q31", "memory": hx.Memory(rows=rows), **options})
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (0, 4))])
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_cmsis_nn_gives_a_network_the_hosts_bits(tmp_path, library, name, rows):
    net = compiled(symmetric(SMALL_DEVICE_NETWORKS[name]()), rows)
    write_app(net, tmp_path, cmsis_nn=True)
    build_app(tmp_path, library)
    got, printed, need = run_app(tmp_path, net)
    assert got == need
    calls = calls_in(printed)
    assert calls["convolve"] > 0
    assert ("elementwise_add" in calls) == (name == "residual")
    assert ("depthwise_conv" in calls) == (name != "residual")


@pytest.mark.parametrize("rows", [0, 3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYERS)
def test_cmsis_nn_gives_a_layer_the_hosts_bits(tmp_path, library, name, rows):
    net = compiled(LAYERS[name], rows)
    write_app(net, tmp_path, cmsis_nn=True)
    build_app(tmp_path, library)
    got, printed, need = run_app(tmp_path, net)
    assert got == need
    calls = calls_in(printed)
    assert calls.keys() == ({"convolve", "avgpool", "max_pool"} if name == "pools" else calls.keys())
    assert calls


@pytest.mark.parametrize(
    ("source", "options", "kernel", "why"),
    [
        (LAYERS["strided"], {"numerics": ""}, "quantized_conv", "no function with its arithmetic"),
        (conv(6, 4, (3, 3), group=2), {}, "q31_conv", "2 groups of 3 channels"),
    ],
)
def test_a_step_that_cmsis_nn_does_not_compute_says_why(tmp_path, source, options, kernel, why):
    net = compiled(source, **options)
    net.save(tmp_path / "net.hxp")
    view = PlanView(prepared((tmp_path / "net.hxp").read_bytes()))
    reasons = {name: body for _, name, body in view.bodies()["dsp"].steps}
    assert why in reasons[kernel]


def test_unsigned_bytes_are_left_to_the_runtimes_kernels(tmp_path):
    feeds = {"x": rand(1, 4, 8, 8)}
    nodes = [node("Conv", "x w b", "y")]
    source = quantized_model(model(nodes, feeds, ["y"], {"w": rand(4, 4, 1, 1), "b": rand(4)}), feeds, kind="uint8")
    compiled(symmetric(source)).save(tmp_path / "net.hxp")
    steps = PlanView(prepared((tmp_path / "net.hxp").read_bytes())).bodies()["mve"].steps
    assert [body for _, kernel, body in steps if kernel == "q31_conv"] == ["got uint8, int8 and uint8, need int8"]


def test_codegen_says_which_steps_cmsis_nn_computes(cli: Cli, tmp_path):
    compiled(symmetric(SMALL_DEVICE_NETWORKS["residual"]()), 1).save(tmp_path / "net.hxp")
    ran = cli("codegen", tmp_path / "net.hxp", "-o", tmp_path / "app", "--backend", "cmsis-nn")
    assert ran.code == 0, ran.err
    assert "CMSIS-NN computes 9 of 16 steps: 6 q31_conv, 2 q31_add, 1 q31_matmul" in ran.out
    assert "not q31_mean (step 10): CMSIS-NN has no function with its arithmetic" in ran.out
    assert "only a part of q31_conv" in ran.out
    assert (tmp_path / "app" / "cmsis_nn" / "cmsis_nn.c").exists()


@needs_make
def test_the_makefile_finds_cmsis_nn_by_its_path(tmp_path):
    net = compiled(LAYERS["strided"])
    write_app(net, tmp_path, cmsis_nn=True)
    made = make(tmp_path, f"CMSIS_NN={DOUBLE}")
    assert made.returncode == 0, made.stderr
    got, printed, need = run_app(tmp_path, net)
    assert got == need
    calls = calls_in(printed)
    assert calls == {"convolve": 1}


@needs_make
def test_the_makefile_says_that_it_needs_cmsis_nn(tmp_path):
    write_app(compiled(LAYERS["strided"]), tmp_path, cmsis_nn=True)
    made = make(tmp_path)
    assert made.returncode != 0
    assert "make CMSIS_NN=FOLDER" in made.stderr
    assert make(tmp_path, "clean").returncode == 0


def test_an_app_of_the_reference_has_nothing_of_cmsis_nn(tmp_path):
    files = write_app(compiled(LAYERS["strided"]), tmp_path)
    assert not [place for place, text in files.items() if place.startswith("cmsis_nn")]
    assert "CMSIS" not in files["Makefile"] + files["net.c"] + files["net.h"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda offset, size: (offset + 8, size), "scratch: need aligned bytes inside the memory of an arena"),
        (lambda offset, size: (1 << 30, size), "scratch: need aligned bytes inside the memory of an arena"),
        (lambda offset, size: (0, 1 << 30), "scratch: need aligned bytes inside the memory of an arena"),
        (lambda offset, size: (0, size), "scratch: need bytes that the step does not read or write"),
        (lambda offset, size: (offset, size - 16), "scratch: this build of the body needs more"),
    ],
)
def test_scratch_is_verified_before_it_is_used(tmp_path, library, change, error):
    """As if the table came from a faulty generator, or CMSIS-NN from another version."""
    net = compiled(LAYERS["strided"])
    write_app(net, tmp_path, cmsis_nn=True)
    view = PlanView(prepared((tmp_path / "net.hxp").read_bytes()))
    ((step, place),) = view.bodies()["dsp"].scratch.items()
    source = (tmp_path / "net.c").read_text()
    row = f"{{{step}, &hx_cmsis_nn_conv, {place.space}, "
    offset, size = change(place.offset, place.bytes)
    assert row in source
    source = source.replace(f"{row}{place.offset}u, {place.bytes}u,", f"{row}{offset}u, {size}u,")
    (tmp_path / "net.c").write_text(source)
    build_app(tmp_path, library)
    (tmp_path / "input.bin").write_bytes(bytes(4 * 4 * 12 * 11))
    ran = subprocess.run([tmp_path / "net"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1
    assert f"cmsis_nn_conv: {error}" in ran.stderr


def test_scratch_lies_in_a_gap_where_there_is_one(tmp_path):
    net = compiled(symmetric(SMALL_DEVICE_NETWORKS["mobile"]()))
    net.save(tmp_path / "net.hxp")
    view = PlanView(prepared((tmp_path / "net.hxp").read_bytes()))
    found = view.bodies()["dsp"]
    assert all(isinstance(body, Body) for _, kernel, body in found.steps if kernel == "q31_conv")
    (size,) = found.sizes.values()
    assert size == view.spaces[[space.name for space in view.spaces].index("arena")].bytes


def test_scratch_goes_to_a_memory_that_has_room(tmp_path):
    """An arena whose limit is met does not grow."""
    net = compiled(symmetric(SMALL_DEVICE_NETWORKS["residual"]()), memory=hx.Memory(sram="4K+64K"))
    net.save(tmp_path / "net.hxp")
    view = PlanView(prepared((tmp_path / "net.hxp").read_bytes()))
    for found in view.bodies().values():
        for space, size in found.sizes.items():
            assert size <= {"arena": 4 << 10}.get(view.spaces[space].name, 64 << 10)


PORTS = 4 * (3 * 16 * 16 + 10)  # bytes of input and output of "residual"


@pytest.mark.parametrize("sram", [6000, 4096, 3200, 2900])
def test_a_budget_holds_the_arena_with_the_scratch_of_cmsis_nn(tmp_path, sram):
    memory = hx.Memory(sram=sram + PORTS, runtime="cmsis-nn")
    net = compiled(symmetric(SMALL_DEVICE_NETWORKS["residual"]()), memory=memory)
    net.save(tmp_path / "net.hxp")
    view = PlanView(prepared((tmp_path / "net.hxp").read_bytes()))
    assert max(arena_bytes(view, found) for found in view.bodies().values()) <= sram
    assert view.port_bytes == PORTS


def test_cmsis_nn_needs_memory_for_its_scratch():
    source = symmetric(SMALL_DEVICE_NETWORKS["residual"]())
    whole = compiled(source).memory["arena"] + PORTS
    assert not compiled(source, memory=hx.Memory(sram=whole, runtime="c99")).program.loops
    streamed = compiled(source, memory=hx.Memory(sram=whole, runtime="cmsis-nn"))
    assert streamed.program.loops, "the buffers of CMSIS-NN need some bytes beside the tensors"
    with pytest.raises(hx.Error, match=r"need .* of arena, .* of inputs, outputs and scratch"):
        compiled(source, memory=hx.Memory(sram=2600 + PORTS, runtime="cmsis-nn"))
