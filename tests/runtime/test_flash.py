"""Budgets of flash, and weights that are packed: the same bits with less flash, and no plan where it does not fit."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import in_this_process
from hexane.emit.c99 import generate
from hexane.errors import Error
from hexane.planning.flash import flash_of
from hexane.runtime.c99 import C99Model
from hexane.system.c99_library import own_library
from hexane.targets.microcontrollers import code_bytes, cores
from onnx_models import model, node, rand
from qdq import quantized_model
from small_devices import SMALL_DEVICE_NETWORKS, pruned


@cache
def network(name: str) -> bytes:
    return pruned(SMALL_DEVICE_NETWORKS[name]())


def compiled(data: bytes, **memory: object) -> hx.Model:
    net = hx.compile(data, target="host", threads=1, memory=hx.Memory(**memory) if memory else None)  # type: ignore[arg-type]
    assert isinstance(net, hx.Model)
    return net


def saved(net: hx.Model, folder: Path) -> bytes:
    net.save(folder / "plan.hxp")
    return (folder / "plan.hxp").read_bytes()


def feeds(net: hx.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {port.name: rng.standard_normal(port.shape).astype(port.dtype.numpy) for port in net.inputs}


@pytest.fixture(scope="module")
def runtime():
    return own_library()


@pytest.mark.parametrize("sram", [None, "32K"])
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_packed_weights_give_the_same_bits_everywhere(runtime, tmp_path, name, sram):
    plain, packed = compiled(network(name)), compiled(network(name), sram=sram, compress="lz4")
    x = feeds(plain)
    assert packed.program is not None
    assert packed.program.blocks
    assert packed(x).tobytes() == plain(x).tobytes()
    size, data = len(saved(plain, tmp_path)), saved(packed, tmp_path)
    assert len(data) < size
    again = hx.load(tmp_path / "plan.hxp", threads=1)
    assert again(x).tobytes() == plain(x).tobytes()
    assert saved(again, tmp_path) == data
    model = C99Model(data, runtime)
    for _ in range(2):
        assert model(x)["y"].tobytes() == plain(x).tobytes()


def shared_weight() -> bytes:
    """Two convolutions with one weight, and another layer between them."""
    nodes = [
        node("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "ar"),
        node("Conv", "ar v b", "m", pads=[0, 0, 0, 0]),
        node("Relu", "m", "mr"),
        node("Conv", "mr w b", "y", pads=[1, 1, 1, 1]),
    ]
    weights = {"w": rand(8, 8, 3, 3), "v": rand(8, 8, 1, 1), "b": rand(8)}
    x = {"x": rand(1, 8, 12, 12)}
    return pruned(quantized_model(model(nodes, x, ["y"], weights), x))


def test_a_weight_that_two_layers_share_is_packed_once(runtime, tmp_path):
    """TiGrIS refuses such a network: "Weight 0 shared across stages"."""
    plain, packed = compiled(shared_weight()), compiled(shared_weight(), compress="lz4")
    assert packed.program is not None
    blocks = packed.program.blocks
    shared = [block for block in blocks if sum(block.buffers == other.buffers for other in blocks) == 2]
    assert len(shared) == 2
    x = feeds(plain)
    data = saved(packed, tmp_path)
    assert packed(x).tobytes() == plain(x).tobytes()
    assert C99Model(data, runtime)(x)["y"].tobytes() == plain(x).tobytes()
    streamed = compiled(shared_weight(), sram="24K", compress="lz4")
    assert C99Model(saved(streamed, tmp_path), runtime)(x)["y"].tobytes() == plain(x).tobytes()


@cache
def wide() -> bytes:
    """Three convolutions whose weights are worth more than the code that unpacks them."""
    nodes = [node("Conv", f"{x} w{i} b{i}", f"y{i}", pads=[1] * 4) for i, x in enumerate(("x", "y0", "y1"))]
    weights = {f"w{i}": rand(40, 40 if i else 4, 3, 3) for i in range(3)} | {f"b{i}": rand(40) for i in range(3)}
    x = {"x": rand(1, 4, 8, 8)}
    return pruned(quantized_model(model(nodes, x, ["y2"], weights), x))


def test_xip_packs_no_more_than_the_flash_needs():
    everything, nothing = (compiled(wide(), compress="lz4", xip=xip) for xip in (False, True))
    assert nothing.program is not None
    assert everything.program is not None
    assert not nothing.program.blocks
    most, least = flash_of(nothing.program).total, flash_of(everything.program).total
    assert least < most
    between = compiled(wide(), flash=(most + least) // 2, compress="lz4", xip=True)
    assert between.program is not None
    assert 0 < len(between.program.blocks) < len(everything.program.blocks)
    assert flash_of(between.program).total <= (most + least) // 2
    assert flash_of(between.program).in_place > 0


def test_nothing_is_packed_that_takes_more_code_than_it_saves():
    net = compiled(network("mobile"), flash="1M", compress="lz4")
    assert net.program is not None
    assert not net.program.blocks


def test_packing_keeps_to_the_budget_of_sram():
    data = network("mobile")
    plain = compiled(data)
    needs = sum(plain.memory[name] for name in ("arena", "scratch"))
    tight = compiled(data, sram=needs, compress="lz4")
    assert sum(tight.memory[name] for name in ("arena", "scratch")) <= needs
    assert sum(compiled(data, compress="lz4").memory[name] for name in ("arena", "scratch")) >= needs


def test_a_plan_that_is_too_large_for_the_flash_is_refused():
    assert compiled(network("mobile"), flash="1M").program is not None
    with pytest.raises(Error, match=r"got 16384 bytes of flash, need \d+: \d+ of plan, of which \d+ are weights"):
        compiled(network("mobile"), flash="16K")


def test_the_command_writes_no_plan_where_it_does_not_fit(capsys, tmp_path):
    cli, source = in_this_process(capsys), tmp_path / "net.onnx"
    source.write_bytes(network("mobile"))
    plan = tmp_path / "net.hxp"
    ran = cli("compile", source, "--flash", "16K", "-o", plan)
    assert ran.code == 1
    assert "no plan written" in ran.err
    assert not plan.exists()
    options = ("--sram", "64K", "--slow", "1M", "--flash", "1M", "--compress", "lz4", "--xip")
    ran = cli("compile", source, *options, "-o", plan)
    assert ran.code == 0, ran.err
    assert "read in place" in ran.out
    assert plan.exists()


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"compress": "zip"}, "compress: got 'zip'"),
        ({"slow": "1M"}, "slow: got it alone"),
        ({"flash": "1X"}, "flash: got '1X'"),
    ],
)
def test_wrong_budgets_are_named(memory, message):
    with pytest.raises(Error, match=message):
        hx.Memory(**memory)


def test_generated_sources_have_the_decoder_only_where_it_is_needed(tmp_path):
    for compress, has in (("lz4", True), ("", False)):
        net = compiled(network("mobile"), sram="64K", compress=compress)
        files = generate(saved(net, tmp_path), "net", app=True)
        assert ("hx_codec_lz4" in files["net.c"]) is has


@pytest.mark.parametrize("compress", ["lz4", pytest.param("", marks=pytest.mark.slow)])
@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="no make, or no C compiler")
def test_the_app_that_codegen_writes_has_the_hosts_bits(tmp_path, compress):
    net = compiled(network("mobile"), sram="64K", compress=compress)
    for place, text in generate(saved(net, tmp_path), "net", app=True).items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    for options in ((), ("VERIFY=0",)):
        subprocess.run(["make", "-s", "-B", "-C", tmp_path, "CFLAGS=-O0", *options], check=True)
        x = feeds(net)
        (tmp_path / "input.bin").write_bytes(x["x"].tobytes())
        subprocess.run([tmp_path / "net"], cwd=tmp_path, check=True)
        assert (tmp_path / "output.bin").read_bytes() == net(x).tobytes()


def test_the_code_of_every_kernel_is_known():
    from hexane.emit.plan_view import supported

    kernels, activations = supported()
    assert code_bytes([], [], []) < code_bytes(["quantized_conv"], [], []) < code_bytes(kernels, activations, ["lz4"])
    assert {core.name for core in cores()} >= {"cortex-m4", "cortex-m7"}
    assert all(0 < least <= most for core in cores() for least, most in core.instructions.values())


@cache
def classifier() -> bytes:
    """Small images, whose last weights are larger than all else that is in the arena."""
    nodes = [
        node("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "ar"),
        node("Conv", "ar v c", "m"),
        node("Relu", "m", "mr"),
        node("GlobalAveragePool", "mr", "p"),
        node("Flatten", "p", "f"),
        node("MatMul", "f fc", "y"),
    ]
    weights = {"w": rand(16, 3, 3, 3), "b": rand(16), "v": rand(200, 16, 3, 3), "c": rand(200), "fc": rand(200, 100)}
    x = {"x": rand(1, 3, 6, 6)}
    return pruned(quantized_model(model(nodes, x, ["y"], weights), x))


@pytest.mark.parametrize("numerics", ["", "q31"])
def test_weights_without_room_are_unpacked_in_slices_of_channels(runtime, tmp_path, numerics):
    def made(**memory: object) -> hx.Model:
        options = hx.Memory(**memory) if memory else None  # type: ignore[arg-type]
        return hx.compile(classifier(), target="host", threads=1, numerics=numerics, memory=options)

    plain, roomy = made(), made(compress="lz4")
    least = plain.memory["arena"] + plain.memory["scratch"]
    tight = made(sram=least + 3000, compress="lz4")
    x = feeds(plain)
    kernels = [[step["kernel"] for step in net.steps] for net in (plain, roomy, tight)]
    assert kernels[0] == kernels[1]
    for kernel in ("conv", "matmul"):
        assert sum(name.endswith(kernel) for name in kernels[2]) > sum(name.endswith(kernel) for name in kernels[0])
    assert (
        tight.memory["arena"] + tight.memory["scratch"]
        <= least + 3000
        < roomy.memory["arena"] + roomy.memory["scratch"]
    )
    assert flash_of(tight.program).total < flash_of(plain.program).total
    assert max(block_bytes(tight)) <= least + 3000
    assert tight(x).tobytes() == plain(x).tobytes()
    data = saved(tight, tmp_path)
    assert hx.load(tmp_path / "plan.hxp", threads=1)(x).tobytes() == plain(x).tobytes()
    assert C99Model(data, runtime)(x)["y"].tobytes() == plain(x).tobytes()


def block_bytes(net: hx.Model) -> list[int]:
    assert net.program is not None
    return [net.program.buffers[block.home].bytes for block in net.program.blocks]
