"""The names that people know: which product and which device is which target, and who says so."""

import re
from collections.abc import Iterator

import pytest

from hexane import targets
from hexane.errors import Error
from hexane.targets import tables
from hexane.targets.names import parse, spellings
from hexane.targets.query import load_chip
from hexane.targets.tables import target_names

# Each product, and its target: the table of products, typed from readings of devices and advertised rates.
PRODUCTS = [
    ("A12", "h11"), ("A12X", "h11"), ("A12Z", "h11"), ("A13", "h12"), ("A14", "h13"), ("M1", "h13"), ("A15", "h14"),
    ("M2", "h14"), ("M2 Pro", "h14g"), ("M2 Max", "h14g"), ("A16", "h15"), ("M3 Pro", "h15g"), ("A17 Pro", "h16"),
    ("M4", "h16g"), ("A18", "h17"), ("A18 Pro", "h17"), ("M5", "h17"), ("M5 Max", "h17"), ("M6", "h18g"), ("A19", "h18"),
    ("A20", "h19"),
]  # fmt: skip

# Other products, and the dies of products.
OTHERS = [
    ("M1 Pro", "h13g"), ("M1 Max", "h13g"), ("M1 Ultra", "h13g"), ("M2 Ultra", "h14g"), ("M3", "h15"), ("M3 Max", "h15g"),
    ("M3 Ultra", "h15g"), ("M4 Pro", "h16g"), ("M4 Max", "h16g"), ("M5 Pro", "h17"), ("A19 Pro", "h18"),
    ("T8020", "h11"), ("T8027", "h11"), ("T8030", "h12"), ("T8101", "h13"), ("T8103", "h13"), ("t6000", "h13g"),
    ("t6002", "h13g"), ("T8110", "h14"), ("T8112", "h14"), ("T6021", "h14g"), ("T8120", "h15"), ("t8122", "h15"),
    ("T6030", "h15g"), ("T8130", "h16"), ("T8132", "h16g"), ("t6041", "h16g"), ("T8140", "h17"), ("T8142", "h17"),
    ("T6050", "h17"),
]  # fmt: skip

DEVICES = [
    ("iPhone XR", "h11"), ("iPhone 11", "h12"), ("iPhone SE 2", "h12"), ("iPhone 12", "h13"), ("iphone-12 pro max", "h13"),
    ("iPad Air 5", "h13"), ("iPad Air (5th generation)", "h13"), ("ipad air 4", "h13"), ("MacBook Air M1", "h13"),
    ("iPhone 13 mini", "h14"), ("iPhone 14", "h14"), ("MacBook Air M2", "h14"), ("MacBook Air (M2)", "h14"),
    ("MacBookAirM2", "h14"), ("MacBook Air (M2, 2022)", "h14"), ("Apple Vision Pro", "h14"), ("iPhone 14 Pro", "h15"), ("iPhone 15", "h15"),
    ("iPhone 15 Pro", "h16"), ("iPad mini (A17 Pro)", "h16"), ("iPad Pro 11-inch (3rd generation)", "h13"),
    ("iPhone 16", "h17"), ("iPhone 16 Pro", "h17"), ("iPhone 17", "h18"), ("iPad Pro M4", "h16g"), ("Mac Studio M3 Ultra", "h15g"),
    ("MacBook Pro 16-inch M2 Max", "h14g"), ("Mac mini M4 Pro", "h16g"), ("MACBOOK PRO 14-INCH M5", "h17"),
]  # fmt: skip

# A product, what the guide calls its target, and the status of what is taken instead. The guide's claims are kept.
GUIDE = [
    ("A12", "h12", "inferred"), ("A13", "h13", "inferred"), ("A14", "h14", "inferred"), ("A15", "h15", "inferred"),
    ("A16", "h16", "inferred"), ("A17 Pro", "h17", "inferred"), ("A18", "h18", "inferred"), ("M4", "h16", "measured"),
    ("M5", "h17s", "measured"), ("M5 Pro", "h17s", "inferred"), ("M5 Max", "h17s", "measured"),
]  # fmt: skip

# What compiler 10.26.6 compiles for, and the names that it knows without parameters.
NEWER = [
    "h13",
    "h13g",
    "h14",
    "h14g",
    "h15",
    "h15g",
    "h16",
    "h16c",
    "h16g",
    "h16s",
    "h17",
    "h17a",
    "h17c",
    "h17d",
    "h17g",
    "h17s",
    "h18",
    "h18g",
    "h19",
    "m11",
    "m12",
    "t1",
    "u1",
    "u2",
    "u3",
    "u4",
    "h18c",
    "h18d",
    "h18s",
    "h19c",
    "h19g",
    "h19s",
    "h20",
    "h20c",
    "h20g",
    "h21",
]


@pytest.mark.parametrize(("product", "name"), PRODUCTS + OTHERS)
def test_a_product_means_its_target(product: str, name: str) -> None:
    assert targets.parse(product) == targets.parse(product.lower().replace(" ", "-")) == name


@pytest.mark.parametrize(("device", "name"), DEVICES)
def test_a_device_means_the_target_of_its_chip(device: str, name: str) -> None:
    assert targets.parse(device) == targets.parse(device.upper()) == name


@pytest.mark.parametrize(("product", "claimed", "status"), GUIDE)
def test_what_the_guide_claims_of_a_product_is_kept(product: str, claimed: str, status: str) -> None:
    name = targets.parse(product)
    fact = targets.fact(name, f"products.{product}")
    assert (fact.value, fact.status) == (name, "disputed")
    assert any(claim.value == claimed and claim.source.startswith("guide") for claim in fact.claims)
    assert {claim.status for claim in fact.claims if claim.value == name} >= {status}


@pytest.mark.parametrize(("product", "status"), [("A18 Pro", "measured"), ("M6", "measured"), ("M2 Max", "measured"),
    ("M3 Pro", "read"), ("A19", "inferred"), ("A20", "read")])  # fmt: skip
def test_a_product_says_how_it_is_known(product: str, status: str) -> None:
    assert targets.fact(product, f"products.{product}").status == status


def test_a20_has_the_parameters_of_m6() -> None:
    for path, fact in load_chip("M6").facts.items():
        if "." in path and not path.startswith(("products", "dies")):
            assert targets.limit("A20", path) == fact.value, path


# ---- names that are no target ----


@pytest.mark.parametrize("name", NEWER)
def test_a_name_of_the_newer_compiler_is_a_target_or_explained(name: str) -> None:
    if name in target_names():
        assert targets.parse(name) == name
    else:
        with pytest.raises(Error, match=rf"got '{name}', a .*\(M6 study, decoded\), need another, such as [hmu]\d"):
            targets.parse(name)


def test_the_newer_compiler_s_names_are_36_of_which_ten_have_no_parameters() -> None:
    assert len(NEWER) == len(set(NEWER)) == 36
    assert sorted(set(NEWER) - set(target_names())) == sorted({"m12", "u4", *NEWER[-10:]})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("A11", "a chip whose two engine cores Core ML does not reach.*such as A12"),
        ("iPhone X", "which has A11, a chip whose two engine cores"),
        ("A17", "no product.*such as A17 Pro or A18"),
        ("family A18", "a family that no target has, need a chip"),
        ("family A13", "a group of chips, need one of them, such as h13"),
        ("Family-A16", "a group of chips, need one of them, such as h17"),
        ("tier A14", "a group of chips, need one of them, such as h14"),
        ("A21", "need one like A20, A19"),
        ("M8", "need one like .*M6"),
        ("iphon 12", "need one like iPhone 12,"),
        ("MacBook Air", "need one like MacBook Air M"),
        ("A17 Prp", "need one like A17 Pro"),
        ("zzz", r"need one of h11, h12, h13, .*such as A14 or iPhone 12 \(`hexane targets` lists the chips"),
    ],
)
def test_a_wrong_name_is_told_what_to_ask_for(asked: str, said: str) -> None:
    with pytest.raises(Error, match=rf"\[target\] got '{asked}', {said}"):
        targets.parse(asked)


TEXTS = ("because", "change", "taken", "why", "says", "about", "reject")
BARE = re.compile(r"(?<!family )(?<!families )(?<!A1\d, )(?<!A1\d and )\bA1[1-8]\b(?! Pro)")


def texts(table: object) -> Iterator[str]:
    if isinstance(table, dict):
        for key, value in table.items():
            yield from [value] if key in TEXTS and isinstance(value, str) else texts(value)
    elif isinstance(table, list):
        for value in table:
            yield from texts(value)


def test_texts_do_not_call_a_family_by_the_name_of_a_product() -> None:
    """Whoever asks for the chip A15, of family A14, would read "from A15 on" as theirs."""
    found = list(texts(dict(tables.table("floors"))))
    assert len(found) > 100
    assert any("family A15" in text for text in found)
    assert [text for text in found if BARE.search(text)] == []


# ---- the name that was asked for, and the names that nobody asks for ----


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        ("a14", "A14 (h13)"),
        ("Apple M1", "M1 (h13)"),
        ("iphone-12", "iPhone 12 (h13)"),
        ("iPad Air (5th generation)", "iPad Air 5 (h13)"),
        ("T8103", "t8103 (h13)"),
        ("t6001", "t6001 (h13g)"),
        ("a17pro", "A17 Pro (h16)"),
        ("H13", "h13"),
        ("host", "host"),
    ],
)
def test_a_target_is_called_what_it_was_asked_for(asked: str, label: str) -> None:
    target = targets.load_target(asked)
    assert target.label == label
    assert target is targets.load_target(asked)
    assert target == targets.load_target(target.name)
    assert hash(target) == hash(targets.load_target(target.name))


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("M9", "m9 (embedded, in no known product)"),
        ("t0", "t0 (reference, in no known product)"),
        ("h13", "h13 (iPhone 12, M1)"),
        ("H17S", "h17s (M5 generation, M5 by the guide)"),
    ],
)
def test_the_first_line_of_a_report_says_which_chip_a_name_means(name: str, title: str) -> None:
    assert targets.query.load_chip(name).title == title


def test_chips_that_no_product_has_are_listed_when_asked_for_only() -> None:
    hidden = [
        "h14c",
        "h15c",
        "h16c",
        "h16s",
        "h17a",
        "h17c",
        "h17d",
        "h17g",
        "h17s",
        "m11",
        "m9",
        "t0",
        "t1",
        "u1",
        "u2",
        "u3",
    ]
    assert sorted(set(targets.chip_names(all=True)) - set(targets.chip_names())) == hidden
    assert {name for _, name in PRODUCTS + OTHERS} <= set(targets.chip_names())
    assert [targets.parse(name) for name in hidden] == hidden
    with pytest.raises(Error) as raised:
        targets.parse("zzz")
    assert not any(f" {name}," in str(raised.value) for name in hidden)


@pytest.mark.parametrize(
    ("identifier", "target"),
    [("iPhone13,2", "h13"), ("IPHONE11,8", "h11"), ("Mac17,6", "h17"), ("MacBookPro17,1", "h13")],
)
def test_an_identifier_is_a_device(identifier: str, target: str) -> None:
    assert parse(identifier) == target


def test_names_of_devices_differ_from_those_of_targets() -> None:
    written = list(spellings().values())
    assert len(written) == len(set(written)) > 200
