"""Damaged plans in the C99 loader, compiled with sanitizers, for 64 and 32 bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_c99_known_networks import NETWORKS
from test_c99_recurrent import GOOD, lstm_plan

import hexane as hx
from hexane.errors import Error
from hexane.runtime.c99 import build
from networks import small_networks
from plans import PlanBuilder, packed_plan
from recurrent_networks import GATES, network
from small_devices import SMALL_DEVICE_NETWORKS, pruned

SANITIZERS = ("-g", "-fno-lto", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BITS = {"64": (), "32": ("-m32", "-msse2", "-mfpmath=sse")}


def plans(folder: Path) -> list[Path]:
    """Streamed networks, float ones, streamed ports, a ring in a loop in a loop, and packed weights."""
    nets = {
        name: hx.compile(build(), target="host", threads=1, memory=hx.Memory(rows=1))
        for name, build in SMALL_DEVICE_NETWORKS.items()
    }
    nets["q31"] = hx.compile(
        SMALL_DEVICE_NETWORKS["residual"](), target="host", threads=1, memory=hx.Memory(rows=1), numerics="q31"
    )
    nets["ports"] = hx.compile(
        SMALL_DEVICE_NETWORKS["keyword_spotting"](),
        target="host",
        threads=1,
        memory=hx.Memory(rows=1, stream_input=True),
    )
    nets["ports-float"] = hx.compile(
        small_networks()["unet"],
        target="host",
        threads=1,
        memory=hx.Memory(rows=1, stream_input=True, stream_output=True),
    )
    for name in ("detector", "mobile-13"):
        nets[name] = hx.compile(small_networks()[name], target="host", threads=1, memory=hx.Memory(rows=1))
    for name in ("key value cache", "file type", "transcription"):  # indices, integers, sorts
        nets[name] = hx.compile(NETWORKS[name]()[0], target="host", threads=1, memory=hx.Memory(runtime="c99"))
    for op in GATES:  # steps with several outputs
        form = {"direction": "bidirectional", "initial": True, "peephole": True}
        nets[op] = hx.compile(
            network(op, (4, 2, 3, 5), form)[0], target="host", threads=1, memory=hx.Memory(runtime="c99")
        )
    for name, net in nets.items():
        net.save(folder / f"{name}.hxp")
    plan = PlanBuilder()
    x, y = plan.port("inputs", "x", (1, 6, 4)), plan.port("outputs", "y", (1, 6, 4))
    ring = plan.tensor(plan.space("arena", 64), (1, 6, 4), ring=2)
    plan.step("copy", [x], [ring], (1, 0, 1))
    plan.step("tanh", [ring], [y], (1, -1, 0))
    plan.loop(0, 2, [4, 4])
    plan.loop(0, 4, [1, 1])
    (folder / "loops.hxp").write_bytes(bytes(plan.tobytes()))
    (folder / "lengths.hxp").write_bytes(lstm_plan(GOOD))
    (folder / "packed.hxp").write_bytes(packed_plan().tobytes())
    return sorted(folder.glob("*.hxp"))


def packed_plans(folder: Path) -> list[Path]:
    """Networks whose weights are packed with LZ4, one in whole tensors, two partly streamed."""
    for name, sram in (("keyword_spotting", "4K"), ("residual", "8K"), ("mobile", "8K")):
        memory = hx.Memory(sram=sram, compress="lz4")
        net = hx.compile(pruned(SMALL_DEVICE_NETWORKS[name]()), target="host", threads=1, memory=memory)
        assert isinstance(net, hx.Model)
        assert net.program is not None
        assert net.program.blocks
        net.save(folder / f"{name}.hxp")
    return sorted(folder.glob("*.hxp"))


# Twenty thousand take longer than the compiler, a hundred and fifty do not.
RUNS = [
    *(pytest.param((bits, "-O0", 150), id=f"{bits}-150") for bits in BITS),
    *(pytest.param((bits, "-O1", 20_000), id=f"{bits}-20000", marks=pytest.mark.slow) for bits in BITS),
]


@pytest.fixture(scope="module", params=RUNS)
def command(request, tmp_path_factory):
    """fuzz.c around the runtime, for so many bits and of a level of optimisation, and its count of mutants."""
    bits, level, count = request.param
    folder = tmp_path_factory.mktemp(bits)
    main = folder / "fuzz.c"
    main.write_text((Path(__file__).parent / "fuzz.c").read_text().replace("../src/", f"{folder}/runtime/src/"))
    try:
        program = build(folder / "runtime", (level, *SANITIZERS, *BITS[bits], "-D_POSIX_C_SOURCE=200112L"), main)
    except Error as error:
        if bits == "64" or not (
            "bits/" in str(error) or "skipping incompatible" in str(error) or "cannot find" in str(error)
        ):
            raise
        pytest.skip("this machine does not build for 32 bits: gcc-multilib is missing")
    return [program, str(count), "1"]


@pytest.mark.parametrize("made", [plans, packed_plans])
def test_damaged_plans_do_no_harm(command, tmp_path, made):
    found = made(tmp_path)
    kept = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=8"}  # an address space of 32 bits is soon full
    ran = subprocess.run([*command, *found], capture_output=True, text=True, env=kept)
    print(ran.stdout, file=sys.stderr)
    assert ran.returncode == 0, ran.stderr[-4000:]
    counts = re.findall(r"(\d+) mutants, (\d+) loaded, (\d+) ran$", ran.stdout, re.MULTILINE)
    assert len(counts) == len(found)
    mutants, loaded, run = (sum(int(count[i]) for count in counts) for i in range(3))
    assert mutants > loaded >= run > mutants // 50  # some are refused, and some reach the kernels
