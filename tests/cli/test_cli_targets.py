"""`hexane targets`: every target, and all that is known of one."""

import json
import re

import pytest

from hexane.targets import load_target
from hexane.targets.fact import STATUSES
from hexane.targets.tables import listed_names, target_names


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_targets_lists_every_target(cli, options):
    """Those that no product has only with --all."""
    ended = cli("targets", *options)
    assert (ended.code, ended.err) == (0, "")
    names = list(target_names() if options else listed_names())
    table, *more = ended.out.split("\n\n")
    rows = [re.split(r" {2,}", line) for line in table.splitlines()]
    assert rows[0][:3] == ["known as", "target", "chips"]
    assert [row[1].strip() for row in rows[1:]] == names
    assert ["iPhone 12, M1", "h13", "A14, M1", "A13"] in [row[:4] for row in rows]
    about, *rest = "\n\n".join(more).rstrip("\n").split("\n\n")
    title, *lines = about.splitlines()
    assert title == "columns:"
    assert {line.strip().partition(":")[0] for line in lines} == set(rows[0]) - {"chips"}
    left = len(target_names()) - len(names)
    assert rest == ([] if options else [f"{left} more targets, which no product has: `hexane targets --all`"])
    record = json.loads(cli("targets", *options, "--json").out)
    assert [target["name"] for target in record["targets"]] == names
    (m6,) = [target for target in record["targets"] if "M6" in target.get("products", ())]
    assert (m6["name"], m6["cores"], m6["descriptor"]) == ("h18g", 16, 24)


@pytest.mark.parametrize("name", target_names())
def test_a_target_is_shown_with_every_fact(cli, name):
    facts = load_target(name).facts
    record = json.loads(cli("targets", name, "--json").out)
    assert record["name"] == name
    assert {path: (fact["source"], fact["status"]) for path, fact in record["facts"].items()} == {
        path: (fact.source, fact.status) for path, fact in facts.items()
    }
    _, table, *_ = cli("targets", name).out.split("\n\n")
    shown = [line.split()[0] for line in table.splitlines() if not line.startswith("  claim")]
    assert len(shown) == len(facts) + 1


@pytest.mark.parametrize("name", target_names())
def test_every_status_of_a_target_is_defined_below_the_table_as_on_the_page(cli, name):
    facts = load_target(name).facts.values()
    shown = {fact.status for fact in facts} | {claim.status for fact in facts for claim in fact.claims}
    text = " ".join(cli("targets", name).out.split())
    assert {status for status, meaning in STATUSES.items() if f" {status}: {meaning}" in text} == shown


def test_a_target_names_its_devices(cli):
    named = cli("targets", "h12").out.rpartition("\n\n")[2]
    assert named == "devices: iPhone 11, iPhone 11 Pro, iPhone 11 Pro Max, iPhone SE 2, iPad 9\n"
    assert json.loads(cli("targets", "h12", "--json").out)["devices"] == named.removeprefix("devices: ")[:-1].split(
        ", "
    )
    assert json.loads(cli("targets", "host", "--json").out)["devices"] == []
    for name in ("iPad Air M1", "MacBook Pro M1"):
        assert name in " ".join(cli("targets", "iPhone 12").out.rpartition("\n\n")[2].split())


def test_a_target_is_shown_by_any_spelling_with_offsets_and_claims(cli):
    text = cli("targets", "Apple M1").out
    lines = [re.sub(r" +", " ", line.strip()) for line in text.splitlines()]
    assert lines[0] == "M1: engine h13, in the chips A14 and M1"
    used = (
        "used for: what Hexane does with the value. empty: its compiler decides by it; reports only: only reports read"
    )
    assert used in text
    assert "extents.width 16384 0x138 measured guide ch24" in lines
    assert "extents.live_tensors 2 nothing decoded guide app. A" in lines
    at = lines.index("descriptor 7 disputed tinygrad")
    assert lines[at + 1] == "claim 7 measured tinygrad, live programs"
    assert lines[at + 4] == "claim 10 decoded guide ch20 and ch23"
    fact = json.loads(cli("targets", "m1", "--json").out)["facts"]["memory.working_set"]
    assert (fact["value"], fact["unit"], fact["offsets"], len(fact["claims"])) == (2_097_152, "bytes", ["0x1b8"], 3)
    assert fact["meaning"].startswith("Largest operand on the chip")
    facts = json.loads(cli("targets", "m1", "--json").out)["facts"]
    assert [facts[path]["used"] for path in ("cores", "clocks.engine", "extents.live_tensors")] == [
        True,
        "reports",
        False,
    ]
    assert "memory.working_set 2097152 bytes 0x1b8 disputed guide ch21" in lines


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("h13", "h13: engine in the chips A14 and M1"),
        ("h12", "h12: engine in the chip A13"),
        ("a12", "A12: engine h11, in the chips A12, A12X and A12Z"),
        ("m9", "m9: engine in no known product (embedded)"),
        ("host", "host"),
    ],
)
def test_the_first_line_says_which_chips_have_the_engine(cli, name, first):
    assert cli("targets", name).out.splitlines()[0] == first


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h12", "Ports take no image format"),
        ("h13", "Ports take 3 image formats, YUV 4:2:0 not among them"),
        ("h14", "Ports take 13 image formats, YUV 4:2:0 not among them"),
        ("h15", "Ports take 16 image formats, YUV 4:2:0 among them"),
        ("m11", "Ports take 16 image formats, YUV 4:2:0 among them"),
        ("h17s", "Ports take 14 image formats, YUV 4:2:0 not among them"),
    ],
)
def test_a_target_says_which_images_its_ports_take(cli, name, words):
    assert words in cli("targets", name).out


def test_an_unknown_target_is_told_near_ones(cli):
    ended = cli("targets", "M1 Por")
    assert ended.code == 1
    assert "got 'M1 Por', need one like M1 Pro" in ended.err


# generation: offset of the patch width, families of the table, targets
DESCRIPTORS = {
    1: (None, [], []),
    4: (None, [], ["t0"]),
    5: (None, [], ["h11"]),
    6: (None, [], ["h12"]),
    7: (0x200, ["A13"], ["h13", "h13g", "t1"]),
    8: (0x224, ["A13", "A14"], ["h15", "h15c", "h15g"]),
    10: (0x12C, ["A14"], ["m11"]),
    11: (0x21C, ["A14", "A15"], ["h14", "h14c", "h14g"]),
    17: (0x23C, ["A15", "A16"], ["h16", "h16c", "h16g", "h16s"]),
    19: (0x248, ["A16", "A17"], ["h17", "h17a", "h17c", "h17d", "h17g", "h17s"]),
    20: (0x26C, ["A17"], ["h18"]),
    24: (None, [], ["h18g", "h19"]),
}


def test_generations_of_task_descriptors_are_listed(cli):
    listed = json.loads(cli("targets", "--descriptors", "--json").out)["descriptors"]
    assert {d["generation"]: (d["patch_width_offset"], d["families"], d["targets"]) for d in listed} == DESCRIPTORS
    assert {d["generation"] for d in listed if d["defect"]} == {7}
    assert all(d["source"] and d["status"] == "decoded" for d in listed)
    blocks = {d["generation"]: d["blocks"] for d in listed if d["blocks"]}
    assert {generation: len(rows) for generation, rows in blocks.items()} == {7: 7, 10: 7}
    assert all(b["header"] == b["bytes"] << 24 | b["address"] for b in blocks[7])  # as the engine reads it
    text = cli("targets", "--descriptors").out
    assert re.search(r"^20 +0x26c +A17 +h18 ", text, re.MULTILINE)
    assert "Generation 7: Its last setter of a patch belongs to generation 8" in text


def test_descriptors_are_listed_for_no_single_target(cli):
    assert cli("targets", "h13", "--descriptors").code == 2
