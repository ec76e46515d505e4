"""The chips as data: each row below is a row of a published table, each column a field of the targets."""

import ast
import re

import pytest

from hexane import targets
from hexane.cli.targets_page import page
from hexane.targets import Chip, Family, Tier
from hexane.targets.fact import STATUSES
from hexane.targets.query import chip_names, field_table, load_chip, offsets
from hexane.targets.read import schema
from hexane.targets.tables import FOLDER, table

CHIPS = chip_names(all=True)

# Every chip that the published tables list. Name: family, tier, hardware version, cores the compiler counts with, cores of the silicon, generation in the header of a
# program, generation of task descriptors, image formats
CENSUS = """
h11   A11Legacy  OLDER  1   4   8   0   5    0
h12   A12        OLDER  3   -   8   3   6    0
m9    A12        OLDER  -   1   2   -   -    0
t0    A12        OLDER  -   -   4   2   4    0
h13   A13        A13    4   4   16  4   7    3
h13g  A13        A13    4   8   16  4   7    3
t1    A13        A13    4   4   16  4   7    3
h14   A14        A14    5   4   16  5   11   13
h14g  A14        A14    5   8   16  5   11   13
h14c  A14        A14    5   32  16  5   11   13
h15   A15        A15    6   4   16  6   8    16
h15g  A15        A15    6   8   16  6   8    16
h15c  A15        A15    6   32  16  6   8    16
h16   A15        A16    8   4   16  7   17   14
h16g  A15        A16    8   8   16  7   17   14
h16s  A15        A16    8   16  16  7   17   14
h16c  A15        A16    8   32  16  7   17   14
h17   A16        A16    7   4   16  9   19   14
h17a  A16        A16    7   4   16  9   19   14
h17g  A16        A16    7   8   16  9   19   14
h17s  A17        A16    9   16  16  9   19   14
h17c  A16        A16    7   32  16  9   19   14
h17d  A16        A16    7   64  16  9   19   14
h18   A17        A16    10  4   16  10  20   14
h18g  A17        A16    -   16  16  11  24   14
h19   A17        A16    -   16  16  11  24   14
m11   A15        A15    -   1   1   8   10   16
u1    A13        A13    -   4   4   -   -    0
u2    A13        A13    -   4   4   -   -    0
u3    A13        A13    -   4   4   -   -    0
"""

# field: its value on A11 and A12 | M1 | M2 | M3 | M4 and M5. "-" is no such limit, "?" what nobody has published.
LIMITS = """
extents.width                      16384  16384    16384    16384    65536
extents.height                     16384  16384    16384    16384    65536
extents.depth                      1      16384    16384    16384    65536
extents.channels                   65536  65536    65536    65536    65536
extents.batch                      4096   65536    65536    65536    65536
extents.rank                       5      5        5        5        5
extents.transpose_width            0      16384    16384    16384    65536
extents.transpose_height           0      16384    16384    16384    65536
extents.transpose_elements         ?      8388607  8388607  8388607  16777215
extents.kernel_width               13     13       13       13       15
extents.kernel_width_default       29     29       32       32       32
extents.small_kernel_width         7      7        8        8        8
extents.small_kernel_width_default 15     15       16       16       16
extents.min_kernel_width           8      8        1        1        1
extents.min_kernel_width_default   16     16       1        1        1
extents.kernel_height              29     29       32       32       32
extents.small_kernel_height        15     15       16       16       16
extents.kernel_depth               1      16       16       16       16
extents.small_kernel_depth         1      8        8        8        8
extents.patch_width                15     28       31       31       31
extents.patch_height               15     28       31       31       31
extents.patch_depth                0      15       15       15       15
extents.patch_floor                -      16       16       16       16
extents.patch_cap                  -      512      512      512      512
extents.reduction_route            -      192      192      384      384
extents.group_decompose            64     2048     2048     2048     2048
extents.stride_factors             2,3,4,8 2,3,4,8 2,3,4,8  2,3,4,8  2,3,4,8
extents.live_tensors               2      2        -        -        -
memory.working_set                 2097152 2097152 2097152  2097152  2097152
memory.kernel                      65536  65536    65536    65536    65536
memory.streamed_kernel             ?      16777216 16777216 16777216 16777216
memory.resident_output             ?      0        0        32768    262144
memory.activation_table            150    86       86       86       86
memory.dma_granule                 16     16       16       16       16
memory.banks                       64     64       64       64       64
memory.instruction_alignment       256    256      16       16       16
hal.accumulators                   8      8        8        8        8
hal.extended_kernel_memory         0      0        0        0        0
gates.collective                   no     no       no       no       no
gates.kernel_streaming             no     yes      yes      yes      yes
gates.square_after_reduction       no     no       no       no       no
gates.dropout_random               no     no       no       yes      yes
gates.global_arg                   no     yes      yes      yes      yes
gates.secure_cache_hint            ?      no       no       yes      yes
gates.blockwise_stream             ?      no       no       yes      yes
gates.int8_stream                  ?      no       yes      yes      yes
gates.palette_stream               ?      yes      yes      yes      yes
gates.dma_e4m3                     ?      no       no       no       no
gates.double_int8                  no     no       no       no       no
gates.fifo_dma                     no     no       no       no       no
gates.depth_broadcast              no     no       ?        ?        ?
gates.dynamic_goc                  yes    yes      yes      yes      yes
gates.softmax                      no     yes      yes      yes      yes
gates.instance_norm                no     yes      yes      yes      yes
gates.texture_engine               no     no       yes      yes      yes
gates.sin_cos                      no     no       no       yes      yes
gates.yuv420                       no     no       no       yes      no
gates.shared_kernel_data           no     no       yes      yes      yes
gates.gather_check                 no     yes      no       no       no
hazards.width_slice_limit          ?      4094     4094     -        -
hazards.width_slice_concat         ?      yes      yes      yes      no
formats.streams                    []     int4,sparse int4,sparse,int8 int4,sparse,int8,blockwise int4,sparse,int8,blockwise
"""
COLUMNS = (("h11",), ("h13", "h13g", "t1"), ("h14", "h14g", "h14c"), ("h15", "h15g", "h15c"), ("h16", "h16s", "h17s"))

# Values of single chips.
EXCEPTIONS = [
    ("m9", "memory.working_set", 1_048_576),
    ("m9", "hal.cycle_divisor", 16),
    ("m9", "gates.dynamic_goc", False),
    ("m9", "gates.m_class", True),
    ("h11", "hal.cycle_divisor", 32),
    ("h13", "hal.cycle_divisor", 64),
    ("m11", "hal.cycle_divisor", 16),
    ("m11", "gates.m_class", True),
    ("m11", "gates.cross_die", True),
    ("m11", "gates.yuv420", True),
    ("m11", "extents.kernel_width", 15),
    ("u1", "extents.width", 65535),
    ("u2", "extents.kernel_width", 1023),
    ("u3", "extents.depth", 1),
    ("u1", "gates.texture_engine", False),
    ("u2", "gates.texture_engine", False),
    ("u3", "gates.texture_engine", False),
    ("u1", "gates.cross_die", False),
    ("u2", "gates.cross_die", True),
    ("h13", "gates.cross_die", False),
    ("h14", "gates.multi_die_hazards", True),
    ("h14", "gates.multi_die_remote", False),
    ("h15", "gates.multi_die_remote", True),
    ("h17", "gates.multi_die_remote", True),
    ("h18", "gates.multi_die_hazards", False),
    ("h18", "gates.cross_die", True),
    ("h18", "gates.dma_e4m3", True),
    ("h18", "gates.fifo_dma", True),
    ("h18", "gates.double_int8", True),
    ("h16", "gates.detect_zeros", False),
    ("h17", "gates.detect_zeros", True),
    ("h16", "gates.winograd", False),
    ("h17s", "gates.winograd", True),
    ("h18g", "gates.winograd", True),
    ("h13", "relocation_stride", 8),
    ("h14", "relocation_stride", 16),
    ("h13", "memory.destination_stride", 2_097_152),
    ("h13", "hal.accumulator_channels", (8, 4, 2, 1)),
    ("h13", "hal.output_group_bytes", (32, 16, 8)),
    ("h11", "hal.cost_policy", "None"),
    ("h17d", "hal.cost_policy", "Simple"),
]

# chip: lowest and highest clock, what the highest is worth, how many there are, factor, fabric and memory clocks
CLOCKS = [
    ("h11", 348, 1260, 1260, 6, 1, (450, 600, 900), (712, 1467, 2133)),
    ("h13", 396, 1428, 1428, 10, 1, (450, 600, 900), (732, 1467, 2133)),
    ("h13g", 432, 1464, 1464, 12, 1, (514, 712, 1068), (732, 1467, 2133)),
    ("t1", 396, 1428, 1428, 10, 1, (450, 600, 900), (712, 1467, 2133)),
    ("h14", 528, 1938, 1452, 9, 1, (450, 600, 900), (732, 1467, 2133)),
    ("h15", 408, 2064, 1524, 20, 1, (450, 600, 900), (732, 1533, 2133, 2733, 3200)),
    ("h15c", 708, 2364, 1776, 7, 2, (533, 800, 1004), (767, 1533, 2133, 2733, 3200)),
    ("h16", 372, 2160, 1620, 29, 1, (450, 600, 900), (732, 1536, 2133, 2733, 3200)),
    ("h16s", 744, 2364, 1788, 25, 1, (534, 800, 1068, 1068), (733, 1467, 2133, 3200, 3733, 4266)),
    ("h17", 396, 2172, 1644, 30, 1, (450, 600, 900), (732, 1467, 2133, 2733, 3200)),
    ("h17s", 744, 2364, 1788, 25, 1, (534, 810, 1068, 1308), (733, 1467, 2133, 2733, 3200, 3733, 4267, 4800)),
    ("h17c", 744, 2364, 1788, 25, 1, (534, 810, 1068, 1308), (733, 1467, 2133, 2733, 3200, 3733, 4267, 4800)),
    ("h17d", 744, 2364, 1788, 25, 1, (534, 810, 1068, 1308), (733, 1467, 2133, 2733, 3200, 3733, 4267, 4800)),
    ("m11", 500, 500, 500, 1, 1, (200, 300, 400), (600, 1533, 2133)),
]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


LISTED = [row[0] for row in rows(CENSUS)]


def test_every_chip_of_the_tables_is_there() -> None:
    assert sorted(set(LISTED) & set(CHIPS)) == sorted(LISTED)
    assert len(LISTED) == 28 + 2


@pytest.mark.parametrize("field", ["family", "hardware_version", "hal.num_nes"])
def test_only_chips_of_the_tables_cite_them(field: str) -> None:
    """So no chip escapes the census. What another chip has from its base it has from other chips."""
    for name in sorted(set(CHIPS) - set(LISTED)):
        fact = load_chip(name).facts[field]
        assert not fact.source.startswith("guide") or fact.status == "inherited", (
            f"{name}, {field}: {fact.source} does not list this chip. Give the source of the value, or `inherited ="
            " true` where its base does; a chip that the guide lists needs a row in CENSUS"
        )


@pytest.mark.parametrize("row", rows(CENSUS), ids=lambda row: row[0])
def test_a_row_of_the_census(row: list[str]) -> None:
    name, family, tier, *numbers = row
    chip = load_chip(name)
    assert (chip.family, chip.tier) == (Family[family], Tier[tier])
    got = (
        chip.hardware_version, chip.hal.num_nes, chip.cores, chip.cpu_subtype, chip.descriptor, chip.hal.interchange_formats
    )  # fmt: skip
    assert got == tuple(None if number == "-" else int(number) for number in numbers)


@pytest.mark.parametrize("row", rows(LIMITS), ids=lambda row: row[0])
def test_a_row_of_the_limits(row: list[str]) -> None:
    path, *cells = row
    for names, cell in zip(COLUMNS, cells, strict=True):
        for name in names:
            fact = targets.fact(name, path)
            got = fact.value
            if cell == "?":
                assert (got, fact.status) == (None, "unknown"), name
            elif cell == "-":
                assert got is None, name
                assert fact.status != "unknown", name
            elif isinstance(got, bool):
                assert cell == ("yes" if got else "no"), name
            else:
                text = ",".join(map(str, got)) or "[]" if isinstance(got, tuple) else str(got)
                assert text == cell, name


@pytest.mark.parametrize(("name", "path", "value"), EXCEPTIONS)
def test_what_a_chip_has_alone(name: str, path: str, value: object) -> None:
    assert targets.limit(name, path) == value


@pytest.mark.parametrize("row", CLOCKS, ids=lambda row: row[0])
def test_a_row_of_the_clocks(row: tuple[str, int, int, int, int, int, tuple[int, ...], tuple[int, ...]]) -> None:
    name, low, high, worth, count, factor, fabric, dram = row
    clocks = load_chip(name).clocks
    assert clocks.engine is not None
    assert clocks.effective is not None
    assert (clocks.engine[0], clocks.engine[-1], clocks.effective[-1]) == (low, high, worth)
    assert len(clocks.engine) == len(clocks.effective) == count
    assert list(clocks.engine) == sorted(set(clocks.engine))
    assert (clocks.fabric, clocks.dram, load_chip(name).hal.clock_multiplier) == (fabric, dram, factor)


def test_chips_without_published_clocks_have_none() -> None:
    with_clocks = {row[0] for row in CLOCKS}
    assert all((load_chip(name).clocks.engine is None) == (name not in with_clocks) for name in LISTED)


# ---- facts ----


@pytest.mark.parametrize("name", ["host", *CHIPS])
def test_every_value_has_a_source_and_a_status(name: str) -> None:
    target = targets.load_target(name)
    known = tuple(table("sources"))
    for path, fact in target.facts.items():
        assert fact.status in STATUSES, path
        assert fact.source, path
        assert bool(fact.claims) == (fact.status == "disputed"), path
        said = [f for f in (fact, *fact.claims) if f.status in ("measured", "decoded", "read", "verified")]
        assert all(f.source.startswith(known) for f in said), (path, fact)


@pytest.mark.parametrize("name", CHIPS)
def test_plain_values_are_those_of_the_facts(name: str) -> None:
    chip = load_chip(name)
    for path in schema(Chip):
        value: object = chip
        for part in path.split("."):
            value = getattr(value, part)
        if path in ("products", "dies"):
            assert isinstance(value, tuple)
            assert all(chip.facts[f"{path}.{spelling}"].value == name for spelling in value)
        else:
            assert value == chip.facts[path].value, path


def test_families_that_no_source_gives_are_inferred() -> None:
    by_status = {name: load_chip(name).facts["family"].status for name in LISTED}
    inferred = {"t0", "m9", "m11", "u1", "u2", "u3", "h18g", "h19"}
    assert by_status == {name: "inferred" if name in inferred else "decoded" for name in LISTED}


@pytest.mark.parametrize("name", CHIPS)
def test_the_family_is_that_of_the_hardware_version(name: str) -> None:
    chip = load_chip(name)
    if chip.hardware_version is not None:
        assert targets.family_of_hardware_version(chip.hardware_version) is chip.family


@pytest.mark.parametrize("name", CHIPS)
def test_a_claim_about_cores_is_what_the_compiler_counts_with(name: str) -> None:
    chip = load_chip(name)
    for claim in chip.facts["cores"].claims:
        if "0x238" in claim.source:
            assert claim.value == chip.hal.num_nes


@pytest.mark.parametrize(
    ("name", "path", "values"),
    [
        ("h13", "cores", {4, 8, 16}),
        ("h17d", "cores", {64, 16}),
        ("h13", "descriptor", {7, 10}),
        ("h15", "descriptor", {8, 11, 17}),
        ("h17s", "descriptor", {19, 20}),
        ("h14", "extents.kernel_width", {13, 16}),
        ("h16", "extents.kernel_width", {15, 16}),
        ("h13", "gates.winograd", {False, True}),
        ("h14", "gates.square_after_reduction", {False, True}),
        ("h13", "gates.global_arg", {False, True}),
        ("h14", "hazards.width_slice_limit", {4094, None}),
        ("h15", "hazards.width_slice_limit", {4094, None}),
        ("h13", "memory.working_set", {2_097_152, 4_194_304}),
        ("h17s", "memory.working_set", {2_097_152, 4_720_000}),
        ("t1", "hal.num_nes", {4, 16}),
        ("h13", "hal.struct_bytes", {0x348, 0x938, 0xA10}),
        ("h17", "memory.working_set", {2_097_152, 4_720_000}),
        ("h13", "products.A14", {"h13", "h14"}),
        ("h13", "products.M1", {"h13", "h13g"}),
        ("h14", "products.M2", {"h14", "h14g"}),
        ("h17", "products.M5", {"h17", "h17s"}),
        ("h17", "products.M5 Pro", {"h17", "h17s", "h17g"}),
        ("h17", "products.M5 Max", {"h17", "h17s", "h17g"}),
        ("h17", "dies.t8142", {"h17s", "h17"}),
        ("h16g", "products.M4", {"h16", "h16g"}),
    ],
)
def test_a_disputed_fact_keeps_every_claim(name: str, path: str, values: set[object]) -> None:
    fact = targets.fact(name, path)
    assert fact.status == "disputed"
    assert {claim.value for claim in fact.claims} == values
    assert all(claim.source and claim.status in STATUSES for claim in fact.claims)


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("h13", "extents.width", "measured"),  # by the guide, on M1
        ("h13g", "extents.height", "measured"),  # by ANEForge, on M1 Max
        ("h13g", "memory.row_alignment", "inherited"),  # by eiln, on M1
        ("t1", "extents.width", "inherited"),
        ("u1", "extents.channels", "inherited"),
        ("h14", "extents.width", "measured"),
        ("h14g", "extents.width", "inherited"),
        ("h14c", "extents.height", "inherited"),
        ("h16", "extents.transpose_elements", "inherited"),
        ("h16g", "extents.transpose_elements", "measured"),
        ("h17", "extents.transpose_elements", "measured"),
        ("h17", "gates.winograd", "verified"),
        ("h17s", "gates.winograd", "inherited"),
        ("h18", "extents.transpose_elements", "inherited"),
        ("h18g", "gates.winograd", "verified"),
        ("h19", "gates.winograd", "inherited"),
        ("h11", "hal.output_group", "inherited"),
        ("h16g", "hal.output_group", "measured"),
        ("u1", "gates.softmax", "inherited"),  # decoded for other chips
    ],
)
def test_what_was_measured_on_another_chip_is_inherited(name: str, path: str, status: str) -> None:
    assert targets.fact(name, path).status == status


@pytest.mark.parametrize("name", ["t1", "u1", "u2", "u3", "h18", "h14c", "m11", "t0"])
def test_a_chip_without_measured_silicon_has_no_measured_fact(name: str) -> None:
    """h18 is A19, which no source has measured; the others have no product."""
    for path, fact in load_chip(name).facts.items():
        assert not {"measured", "verified"} & {fact.status, *(claim.status for claim in fact.claims)}, path


def test_sources_of_measured_silicon_are_known_and_their_products_too() -> None:
    for source, silicon in table("measured_on").items():
        assert source.startswith(tuple(table("sources")))
        assert all(targets.parse(product) in CHIPS for product in silicon)


def test_what_silicon_showed_is_taken_where_sources_disagree() -> None:
    """Where a claim is measured, the value is a measured one; but a working set that only shows as a smooth rise does
    not change what the compiler plans with."""
    exempt = {("h17", "memory.working_set"), ("h17s", "memory.working_set")}
    for name in CHIPS:
        for path, fact in load_chip(name).facts.items():
            seen = [claim.value for claim in fact.claims if claim.status in ("measured", "verified", "inherited")]
            assert not seen or fact.value in seen or (name, path) in exempt, (name, path)


def test_every_field_is_described() -> None:
    described = field_table()
    assert described.keys() == schema(Chip).keys()
    for path, row in described.items():
        assert row.keys() <= {"text", "unit", "offset", "used"}, path
        assert re.fullmatch(r"[A-Za-z0-9].*\.", row["text"]), path


def test_offsets_are_those_of_one_field() -> None:
    found = [offset for path in field_table() for offset in offsets(path)]
    assert len(found) == len(set(found)) > 60
    assert all(re.fullmatch(r"0x[0-9a-f]{1,3}", offset) for offset in found)


@pytest.mark.parametrize("name", ["host", *CHIPS])
def test_passes_find_what_they_ask_of_any_target(name: str) -> None:
    target = targets.load_target(name)
    assert (target.device, target.numerics) == (("cpu", "ieee") if name == "host" else ("ane", "engine"))
    assert target.residual_epilogue == target.channels_last == (name == "host")
    assert target.alignment == 64


def test_no_number_of_a_chip_stands_in_python() -> None:
    """Numbers of hardware belong to the TOML files; the code has counts and indices only."""
    for path in FOLDER.glob("*.py"):
        text = path.read_text().replace("sys.version_info >= (3, 11)", "True")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                assert node.value in range(10), f"{path.name}:{node.lineno}: {node.value}"


def test_the_page_of_targets_has_every_chip() -> None:
    text = page()
    assert all(f" | {name} | " in text for name in CHIPS)
