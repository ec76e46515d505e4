"""Reading a target's file: what is refused, and what a new chip takes."""

import dataclasses
from pathlib import Path

import pytest

from hexane import targets
from hexane.errors import Error
from hexane.targets import Chip, Family, read, tables
from hexane.targets.fact import Place, read_fact
from hexane.targets.tables import FOLDER, base_table, target_names

# A chip that does not exist: all it takes is this text in a file.
H99 = """
base = "a17"
source = "a data sheet"
status = "read"
silicon = "M87"
products = ["M87", { name = "M87 Pro", source = "a guess", status = "inferred" }]
dies = ["t999x"]
cores = 24
hardware_version = 12
family = { value = "A18", source = "a compiler", status = "decoded" }

[extents]
width = 131072

[extents.kernel_width]
value = 31
source = "a Mac"
status = "disputed"
claims = [
  { value = 31, source = "a Mac", status = "measured" },
  { value = 32, source = "a compiler", status = "decoded" },
]

[hal]
num_nes = 24
"""


def changed(old: str, new: str) -> str:
    assert old in H99
    return H99.replace(old, new)


def test_a_chip_is_added_by_one_text() -> None:
    chip = targets.read_target(H99, name="h99")
    assert isinstance(chip, Chip)
    assert (chip.name, chip.family, chip.cores, chip.extents.width) == ("h99", Family.A18, 24, 131072)
    assert (chip.products, chip.dies) == (("M87", "M87 Pro"), ("t999x",))
    assert chip.facts["products.M87 Pro"].status == "inferred"
    assert chip.facts["cores"] == targets.Fact(24, "a data sheet", "read")
    assert [claim.value for claim in chip.facts["extents.kernel_width"].claims] == [31, 32]
    base = targets.load_target("h17")
    assert chip.facts["extents.height"] == base.facts["extents.height"]
    assert targets.limit(chip, "width") == 131072
    assert targets.native_streams(chip) == targets.native_streams("h17")


def test_a_chip_is_added_by_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FOLDER.rglob("*.toml"):
        copy = tmp_path / path.relative_to(FOLDER)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "h99.toml").write_text(H99)
    cached = (tables.target_names, targets.names.spellings, targets.names._meanings)
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    for function in cached:
        function.cache_clear()
    try:
        assert targets.parse("M87 Pro") == targets.parse("t9991") == targets.parse("H99") == "h99"
        assert targets.load_target("apple m87").name == "h99"
    finally:
        monkeypatch.undo()
        for function in cached:
            function.cache_clear()


def test_what_a_file_inherits_for_a_chip_nobody_has_seen_says_so() -> None:
    chip = targets.read_target(changed('base = "a17"', 'base = "a17"\ninherited = true'), name="h99")
    assert chip.facts["extents.height"].status == "inherited"
    assert chip.facts["extents.width"].status == "read"
    assert chip.facts["gates.square_after_reduction"].status == "disputed"
    assert chip.facts["gates.chaining"].status == "unknown"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base = ", "[h99.toml] got no TOML"),
        (changed("cores = 24\n", ""), "[h99.toml] got no cores, need a value in this file or a base of it"),
        (changed("cores = 24\n", "").replace("num_nes = 24", ""), "[h99.toml] got no cores, hal.num_nes, need"),
        (changed("[hal]", "[hal]\nfast = true"), "[h99.toml] hal.fast: got a value, need a known key"),
        (changed("cores =", "colour = 3\ncores ="), "[h99.toml] colour: got a value, need a known key"),
        (changed("cores = 24", "cores = -1"), "[h99.toml] cores: got -1, need an integer of at least 0"),
        (changed("cores = 24", "cores = true"), "[h99.toml] cores: got True, need an integer"),
        (changed("cores = 24", "cores = 24.0"), "[h99.toml] cores: got 24.0, need an integer"),
        (changed("cores = 24", 'cores = "24"'), "[h99.toml] cores: got '24', need an integer"),
        (changed("cores = 24", 'cores = "unknown"'), "[h99.toml] cores: got 'unknown', need an integer"),
        (changed("cores = 24", 'cores = "none"'), "[h99.toml] cores: got 'none', need an integer"),
        (changed('value = "A18"', 'value = "A19"'), "[h99.toml] family: got 'A19', need one of A11Legacy, A12"),
        (changed('value = "A18"', "value = 7"), "[h99.toml] family: got 7, need one of A11Legacy"),
        (changed('source = "a data sheet"\n', ""), "[h99.toml] source: got none"),
        (changed('status = "read"\n', ""), "[h99.toml] status: got none"),
        (changed('status = "read"', 'status = "heard"'), "[h99.toml] file.status: got 'heard', need one of measured"),
        (changed('status = "read"', 'status = "disputed"'), "[h99.toml] file.status: got 'disputed'"),
        (changed('source = "a data sheet"', 'source = " "'), "[h99.toml] file.source: got ' ', need who says so"),
        (
            changed(', status = "decoded" }\n\n', " }\n\n"),
            "[h99.toml] family: got the keys source, value, need exactly",
        ),
        (changed("value = 31\n", "value = 30\n"), "kernel_width: got 30, need the value of one of its claims"),
        (changed('  { value = 32, source = "a compiler", status = "decoded" },\n', ""), "kernel_width.claims: got [{"),
        (changed('status = "disputed"', 'status = "read"'), "kernel_width: got the keys claims, source, status, value"),
        (changed("{ value = 32, ", "{ "), "kernel_width.claims: got the keys source, status, need exactly"),
        (changed("{ value = 32", "{ value = false"), "kernel_width.claims: got False, need an integer"),
        (changed('"a Mac", status = "measured"', '"a Mac", status = "disputed"'), "claims: got 'disputed', need"),
        (changed('base = "a17"', 'base = "a99"'), "[h99.toml] base: got 'a99', need one of a13, a14"),
        (changed('base = "a17"', "base = 17"), "[h99.toml] base: got 17, need one of a13, a14"),
        (changed('base = "a17"', 'base = "a17"\ninherited = "read"'), "[h99.toml] inherited: got 'read'"),
        (changed('status = "read"', 'status = "inherited"'), "[h99.toml] file.status: got 'inherited', need one of"),
        (changed('["M87", ', "[87, "), "[h99.toml] products: got 87, need a name"),
        (changed('["t999x"]', '"t999x"'), "[h99.toml] dies: got 't999x', need a list of names"),
        (changed('{ name = "M87 Pro", ', "{ "), "[h99.toml] products: got the keys source, status, need exactly name"),
        (changed("cores = 24", "clocks = 24"), "[h99.toml] clocks: got a value, need a known key"),
        (
            'device = "cpu"\nsource = "x"\nstatus = "read"',
            "[h99.toml] got no alignment, channels_last, numerics, resid",
        ),
        ((FOLDER / "host.toml").read_text() + "cores = 3\n", "[h99.toml] cores: got values, need none"),
    ],
)
def test_a_broken_file_is_refused_by_file_and_key(text: str, words: str) -> None:
    with pytest.raises(Error) as caught:
        targets.read_target(text, name="h99")
    assert words in str(caught.value)


def test_bases_that_go_in_a_circle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = {"x": {"base": "y", "source": "s", "status": "read"}, "y": {"base": "x", "source": "s", "status": "read"}}
    monkeypatch.setattr(read, "base_names", lambda: tuple(loop))
    monkeypatch.setattr(read, "base_table", loop.__getitem__)
    with pytest.raises(Error, match=r"circle h99.toml -> bases/x.toml -> bases/y.toml -> bases/x.toml, need an end"):
        targets.read_target('base = "x"\nsource = "s"\nstatus = "read"', name="h99")


def test_every_base_is_used() -> None:
    used, ahead = set(), [tables.target_table(name).get("base") for name in target_names()]
    while ahead:
        name = ahead.pop()
        if name is not None and name not in used:
            used.add(name)
            ahead.append(base_table(name).get("base"))
    assert used == set(tables.base_names())


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.toml")), ids=lambda path: path.name)
def test_no_file_repeats_what_its_base_says(path: Path) -> None:
    own = tables.parse_toml(path.read_text(), path.name)
    if "base" in own and "inherited" not in own:
        place = read._place(path.name, own)
        base = read._facts("", "", base_table(own["base"]))
        for key, fact in read._own_facts(place, "", own):
            assert base.get(key) != fact, key


def test_targets_cannot_be_changed() -> None:
    chip = targets.load_target("h13")
    assert isinstance(chip, Chip)
    for value, name in ((chip, "cores"), (chip.extents, "width"), (chip.facts["cores"], "value")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)
        assert not hasattr(value, "__dict__")
    with pytest.raises(TypeError):
        chip.facts["cores"] = chip.facts["extents.width"]  # type: ignore[index]


def test_targets_are_equal_by_their_values_and_go_into_sets() -> None:
    again = targets.read_target((FOLDER / "h13.toml").read_text(), name="h13")
    assert again == targets.load_target("h13") != targets.load_target("h13g")
    assert len({again, targets.load_target("h13"), targets.load_target("host")}) == 2


HOST_TEXT = (FOLDER / "host.toml").read_text()


def test_a_target_declares_its_memories() -> None:
    rows = ('sram = { kind = "arena", limit = 131072 }', 'slow = { kind = "arena", alignment = 4096 }')
    text = "\n".join([HOST_TEXT, "[spaces]", *rows, 'flash = { kind = "weights" }', 'state = { kind = "state" }'])
    spaces = targets.read_target(text, "small").spaces
    assert spaces[:2] == (targets.Space("sram", "arena", 64, 131072), targets.Space("slow", "arena", 4096))
    assert [space.name for space in spaces] == ["sram", "slow", "flash", "state"]
    assert [space.name for space in targets.read_target(HOST_TEXT, "plain").spaces] == ["arena", "weights", "state"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('a = { kind = "arena" }', "spaces: got 0 of the kind weights, need one"),
        ('w = { kind = "weights" }\nv = { kind = "weights" }\na = { kind = "arena" }', "got 2 of the kind weights"),
        ('a = { kind = "arena", size = 1 }', "spaces.a: got .* need a table of kind, alignment and limit"),
        ("a = 1", "spaces.a: got 1, need a table"),
    ],
)
def test_wrong_memories_are_refused(row: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        targets.read_target(f"{HOST_TEXT}\n[spaces]\n{row}", "small")


@pytest.mark.parametrize("given", [0, -1.5, float("nan"), float("inf"), True, "1"])
def test_a_rate_is_a_finite_number_above_0(given: object) -> None:
    place = Place("rates.toml", "hexane", "measured")
    with pytest.raises(Error, match="a number above 0"):
        read_fact(place, "gops", given, float)
    assert read_fact(place, "gops", 2, float).value == 2.0
