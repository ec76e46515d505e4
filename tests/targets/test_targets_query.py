"""Asking about targets: families and tiers, limits by name and offset, spellings, and which chip this machine has."""

import re
import subprocess
import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
from hexane import targets
from hexane.errors import Error
from hexane.targets import Family, Tier
from hexane.targets.names import spellings


def test_families_and_tiers_never_compare() -> None:
    assert Family.A13 != Tier.A13
    assert Family.A16.value == Tier.A16.value
    assert Family.A16 != Tier.A16
    assert Family.A16 != 5
    assert Family.A14 < Family.A15 <= Family.A15
    assert Tier.A16 > Tier.A15 >= Tier.A15
    for left, right in ((Family.A13, Tier.A14), (Tier.A13, Family.A14), (Family.A13, 3), (3, Tier.A13)):
        with pytest.raises(TypeError):
            _ = left < right  # type: ignore[operator]
        with pytest.raises(TypeError):
            _ = left >= right  # type: ignore[operator]


def test_families_and_tiers_never_convert() -> None:
    for kind, other in ((Family, Tier.A13), (Tier, Family.A13)):
        with pytest.raises(ValueError, match="is not a valid"):
            kind(other)
    with pytest.raises(TypeError):
        int(Family.A13)  # type: ignore[call-overload]
    with pytest.raises(Error, match="need a Family"):
        targets.arch_for_family(Tier.A13)  # type: ignore[arg-type]
    with pytest.raises(Error, match="need a Tier"):
        targets.arch_for_tier(Family.A13)  # type: ignore[arg-type]


# ---- every question takes a chip by its name, and as an object ----

QUESTIONS: dict[str, Callable[[Any], object]] = {
    "analytic_costs": targets.analytic_costs,
    "arch_for_family": targets.arch_for_family,
    "arch_for_tier": targets.arch_for_tier,
    "fact": lambda chip: targets.fact(chip, "cores"),
    "family_of_arch": targets.family_of_arch,
    "fp16_divergence": lambda chip: (
        targets.fp16_divergence("softmax", chip, "h17"),
        targets.fp16_divergence("softmax", "h17", chip),
    ),
    "limit": lambda chip: targets.limit(chip, 0x138),
    "load_target": targets.load_target,
    "native_streams": targets.native_streams,
    "op_status": lambda chip: (targets.op_status("topk", chip), targets.op_status("topk", chip, "netplist")),
    "parse": targets.parse,
    "tier_of_arch": targets.tier_of_arch,
}
OF_NO_CHIP = {"chip_names", "detect", "family_of_hardware_version", "read_target"}


def test_every_public_function_is_asked_here() -> None:
    functions = {name for name in targets.__all__ if isfunction(getattr(targets, name))}
    assert functions == QUESTIONS.keys() | OF_NO_CHIP


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("h12", ["A13", "a13", "iPhone 11", "T8030"]),
        ("h13", ["A14", "M1", "iPad Air 5"]),
        ("h16", ["A17 Pro"]),
        ("t1", []),
    ],
)
def test_a_chip_is_asked_about_by_any_name_or_as_an_object(question: str, name: str, others: list[str]) -> None:
    ask = QUESTIONS[question]
    for other in (*others, targets.load_target(name), *map(targets.load_target, others)):
        assert ask(other) == ask(name)


def test_a13_is_a_chip_and_family_a13_a_family() -> None:
    assert targets.analytic_costs("A13") == targets.analytic_costs(Family.A12) != targets.analytic_costs(Family.A13)
    assert targets.analytic_costs("family A13") == targets.analytic_costs(Family.A13)
    assert targets.arch_for_family("A13") == "h12"
    assert targets.arch_for_family("Family-A13") == targets.arch_for_tier("tier A13") == "h13"
    assert targets.arch_for_tier("M5") == "h16"


@pytest.mark.parametrize("wrong", ["tier A13", Tier.A13, 3, None, "family"])
def test_what_is_neither_family_nor_chip_has_no_costs(wrong: Any) -> None:
    with pytest.raises(Error, match=r"^\[targets?\] .*got .*need "):
        targets.analytic_costs(wrong)


def test_the_host_has_neither_family_nor_tier() -> None:
    for ask in (targets.analytic_costs, targets.arch_for_family, targets.arch_for_tier):
        with pytest.raises(Error, match="got 'host', which is no chip"):
            ask("host")


def test_the_families_are_the_compilers() -> None:
    names = ("A11Legacy", "A12", "A13", "A14", "A15", "A16", "A17", "A18")
    assert [(f.name, f.value) for f in Family] == [(name, i) for i, name in enumerate(names)]
    assert [t.name for t in Tier] == ["OLDER", "A13", "A14", "A15", "A16"]


def test_hardware_versions_collide_where_the_compilers_do() -> None:
    expected = {1: "A11Legacy", 3: "A12", 4: "A13", 5: "A14", 6: "A15", 8: "A15", 7: "A16", 9: "A17", 10: "A17"}
    assert {v: targets.family_of_hardware_version(v).name for v in expected} == expected
    for version in (0, 2, 11):
        with pytest.raises(Error, match="hardware version: got"):
            targets.family_of_hardware_version(version)


def test_a_representative_is_of_its_family_or_tier() -> None:
    for family in Family:
        if family is Family.A18:
            with pytest.raises(Error, match="A18, which no target has"):
                targets.arch_for_family(family)
        else:
            assert targets.family_of_arch(targets.arch_for_family(family)) is family
    for tier in Tier:
        assert targets.tier_of_arch(targets.arch_for_tier(tier)) is tier
    assert [targets.arch_for_tier(tier) for tier in Tier] == ["h11", "h13", "h14", "h15", "h16"]


def test_facts_are_found_by_path_name_and_offset() -> None:
    assert targets.limit("h13", "extents.width") == targets.limit("M1", "width") == 16384
    assert targets.limit("h16", 0x138) == targets.limit("h16", "0x138") == 65536
    assert targets.limit("h13", 0x81D) is False
    assert targets.limit("h14", 0x528) is targets.limit("h14", 0x537) is True
    assert targets.fact("h14", "texture_engine").value is True
    assert targets.limit(targets.load_target("h17d"), "num_nes") == 64
    with pytest.raises(Error, match=r"'widht', need one like width"):
        targets.limit("h13", "widht")
    with pytest.raises(Error, match=r"'resident_output', need one of memory.resident_output, gates.resident_output"):
        targets.limit("h13", "resident_output")
    with pytest.raises(Error, match="'host', which has no such fact"):
        targets.limit("host", "width")
    with pytest.raises(Error, match="the fact 313, need one like 0x"):
        targets.limit("h13", 0x139)


def test_native_streams_grow_with_the_tiers() -> None:
    streams = [set(targets.native_streams(targets.arch_for_tier(tier))) for tier in Tier]
    assert streams == [
        set(),
        {"int4", "sparse"},
        {"int4", "sparse", "int8"},
        {"int4", "sparse", "int8", "blockwise"},
        {"int4", "sparse", "int8", "blockwise"},
    ]


# ---- spellings and detection ----


@pytest.mark.parametrize("spelling", sorted(set(spellings().values())))
def test_every_spelling_parses_whatever_its_case_and_spaces(spelling: str) -> None:
    name = targets.parse(spelling)
    assert targets.parse(name) == name
    for other in (spelling.upper(), f" {spelling.lower()} ", spelling.replace(" ", ""), spelling.replace(" ", "-")):
        assert targets.parse(other) == name
    assert targets.load_target(spelling) == targets.load_target(name)


@pytest.mark.parametrize(
    ("spelling", "near"),
    [
        ("m1 por", "M1 Pro"),
        ("h17x", "h17"),
        ("t8104", "t81"),
        ("h1x", "h1"),
        ("", "h11"),
        ("zzz", "h11"),
        ("t603", "t60"),
    ],
)
def test_an_unknown_spelling_is_told_what_is_near(spelling: str, near: str) -> None:
    with pytest.raises(Error, match=rf"\[target\] got '{spelling}', need one .*{near}"):
        targets.parse(spelling)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (targets.Family.A13, "arch_for_family"),
        (targets.Tier.A16, "arch_for_tier"),
        (2, "'h13'"),
        (0, "'h13'"),
        (b"h13", "'h13'"),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        targets.parse,
        targets.family_of_arch,
        targets.native_streams,
        lambda given: hx.preflight(hx.relu(hx.input("x", (4,))), given),
        lambda given: hx.compile(hx.relu(hx.input("x", (4,))), target=given),
    ],
    ids=["parse", "family_of_arch", "native_streams", "preflight", "compile"],
)
def test_what_is_no_name_is_refused_and_never_taken_for_a_chip(
    ask: Callable[[Any], Any], given: Any, hint: str
) -> None:
    with pytest.raises(Error, match=rf"\[target\] got .*{re.escape(repr(given))}.*, need the name of a target.*{hint}"):
        ask(given)


@pytest.mark.parametrize(
    ("brand", "name"),
    [
        ("Apple M1", "h13"), ("Apple M1 Ultra", "h13g"), ("Apple M2 Max", "h14g"), ("Apple M3 Ultra", "h15g"),
        ("Apple M4", "h16g"), ("Apple M4 Pro", "h16g"), ("Apple M5", "h17"), ("Apple M5 Pro", "h17"), ("Apple M6", "h18g"),
        ("Apple A18 Pro", "h17"), ("", "host"), ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "host"),
    ],
)  # fmt: skip
def test_the_brand_of_the_cpu_says_which_chip_it_is(brand: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXANE_TARGET", raising=False)
    assert targets.detect(lambda: brand) == name


def test_a_chip_of_the_future_is_taken_for_the_oldest_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXANE_TARGET", raising=False)
    with pytest.warns(UserWarning, match="'Apple M99 Max', which no target knows: taking h13"):
        assert targets.detect(lambda: "Apple M99 Max") == "h13"
    assert targets.detect(lambda: "Apple M99 Max") == "h13"  # a second warning would be an error


def test_the_environment_goes_before_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXANE_TARGET", "M3 Max")
    assert targets.detect(lambda: "Apple M1") == "h15g"
    monkeypatch.setenv("HEXANE_TARGET", "m0")
    with pytest.raises(Error, match=r"'m0'.*: the variable HEXANE_TARGET names it"):
        targets.detect(lambda: "Apple M1")


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a brand string")
def test_a_machine_without_the_engine_is_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXANE_TARGET", raising=False)
    assert targets.detect() == "host"


def test_compiling_for_the_host_reads_the_hosts_file_only() -> None:
    script = """
import pathlib
read = pathlib.Path.read_text
def noting(path, *args, **options):
    print(path.name)
    return read(path, *args, **options)
pathlib.Path.read_text = noting
import hexane as hx
hx.compile(hx.relu(hx.input("x", (2,))))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert [line for line in ran.stdout.splitlines() if line.endswith(".toml")] == ["host.toml"]
