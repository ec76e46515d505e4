"""The page docs/targets.md with facts about the chips: `python -m hexane.cli.pages targets.md` prints it."""

from collections.abc import Iterable, Sequence

from hexane.cli.targets import HEAD, MEANINGS, descriptor_row, summary_row, value_text
from hexane.targets import Chip, Fact
from hexane.targets.descriptors import descriptors
from hexane.targets.fact import STATUSES
from hexane.targets.family import Family, hardware_versions
from hexane.targets.groups import analytic_costs
from hexane.targets.names import parse
from hexane.targets.query import chip_names, field_table, load_chip, offsets
from hexane.targets.rules import rules
from hexane.targets.tables import table, target_table

INTRO = """\
# Targets

Everything that is known of the engine's generations and sizes, each number with its source. `hexane targets NAME` shows one chip in
full, `hx.targets` gives the same to programs. Nobody outside of Apple has documentation: the numbers come from people who measured
chips and read the compiler, and where they disagree every claim is kept.

A chip or a device is asked for by its name: `hexane check net.onnx --target "iPhone 12"`. The chips of a
family take the same ops, and the chips of a tier have the same capabilities. A group's name is no product: A14 is of family A13.

This page is derived from `python/hexane/targets/*.toml`.
"""

FAMILIES = """\
A family decides which ops the engine's compiler takes; the compiler finds the family by the chip's hardware version. Two families have two versions
each: the chips of M4 have the ops of M3. A tier is a group of chips with the same capabilities. Tiers share names with families and mean
something else: h16 is of family A15 and tier A16. Neither is the product with the same name, although the guide reads them so: h16 is the chip A17 Pro.
"""

COSTS = """\
`hx.targets.analytic_costs(family)`, in units that nobody published: buckets of sizes end at {sizes} ({source}, {status}).
Families without a row in the source share its default, whose list it does not print to its end. It also says that family A15 has constants of
its own, which it does not print.
""".format(
    **{**table("families")["cost_model"], "sizes": ", ".join(map(str, table("families")["cost_model"]["sizes"]))}
)

FIELDS = """\
One chip of each generation. "?": no source gives the value; "none": a source says that there is no such limit. `hexane targets NAME` shows
the status of each number. Offsets are those of the compiler's parameter block. Numbers that Hexane's compiler does not use are marked: no verdict, rewrite or schedule depends on them.
"""
USED = {True: "", False: "; not used by the compiler", "reports": "; used by reports only"}

HIDDEN = (
    "Targets that no product has: reference targets, embedded parts, and variants that no device was seen to report"
)

UNKNOWN = """\
Asking for one of them is an error that says so. Later compilers than the one whose parameters are here know most of them.
"""

SINGLE = ("target", "field", "value", "status", "source")
DISPUTE = ("fact", "targets", "value", "claims")

DISPUTES = """\
Hexane takes the first column of values. It is what silicon showed, where somebody measured it.
"""


RULES = """\
`hexane check` and `hexane explain` find these in a network, whatever the chip, and fill in the names in braces. Each rule was measured on one or a few devices only.
"""


def page() -> str:
    chips, hidden = _chips()
    every = [*chips, *hidden]
    shown = [next(chip for chip in chips if target_table(chip.name)["base"] == base) for base in _generations(chips)]
    return "\n".join(
        [
            INTRO,
            "## The chips\n",
            *(f"* {name}: {meaning}." for name, meaning in MEANINGS.items()),
            "",
            _table(HEAD, (summary_row(chip) for chip in chips)),
            _folded(HIDDEN, _table(HEAD, (summary_row(chip) for chip in hidden))),
            "## Names that are no target\n",
            UNKNOWN,
            _table(("name", "what is known of it", "instead", "status", "source"), _unknown_names()),
            "## Devices\n",
            _table(("chip", "target", "devices"), _devices()),
            "## Families and tiers\n",
            FAMILIES,
            _table(("hardware version", "family", "targets"), _versions(every)),
            "## What the compiler's cost model assumes\n",
            COSTS,
            _table(("family", "bandwidth clamps by size", "setup ramp"), _costs()),
            "## Numbers\n",
            FIELDS,
            _table(("field", *(f"{chip.lead} ({chip.name})" for chip in shown), "what it is"), _fields(shown)),
            "## Single chips\n",
            "What is known of a chip and differs from the one of its generation in the table above.\n",
            _table(SINGLE, _single(chips, shown)),
            _folded(HIDDEN, _table(SINGLE, _single(hidden, shown))),
            "## Where sources disagree\n",
            DISPUTES,
            _table(DISPUTE, _disputes(chips)),
            _folded(HIDDEN, _table(DISPUTE, _disputes(hidden))),
            "## What goes wrong with ops\n",
            RULES,
            _table(("rule", "ops", "what goes wrong", "instead", "numbers", "systems", "status", "source"), _rules()),
            "## Task descriptors\n",
            (
                "The offset of the patch width in each generation, the families that a published table gives it, and"
                " the chips.\n"
            ),
            _table(("generation", "patch width", "families", "targets", "source"), map(descriptor_row, descriptors())),
            *(f"Generation {d.generation}: {d.defect}\n" for d in descriptors() if d.defect),
            "## Status and sources\n",
            _table(("status", "meaning"), STATUSES.items()),
            _table(("source", "what it is", "chips it measured"), _sources()),
        ]
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines) + "\n"


def _chips() -> tuple[list[Chip], list[Chip]]:
    every = [load_chip(name) for name in chip_names(all=True)]
    return [chip for chip in every if chip.products], [chip for chip in every if not chip.products]


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n</details>\n"


def _generations(chips: list[Chip]) -> list[str]:
    """Returns the bases of these chips' tables, oldest first."""
    return list(dict.fromkeys(target_table(chip.name)["base"] for chip in chips))


def _unknown_names() -> Iterable[tuple[str, ...]]:
    for name, row in table("unknown_names").items():
        names = ", ".join((name, *row.get("devices", ())))
        yield names, row["about"], " or ".join(row["near"]), row["status"], row["source"]


def _devices() -> Iterable[tuple[str, str, str]]:
    for chip, row in table("devices")["chips"].items():
        yield chip, parse(chip), ", ".join(row["devices"])


def _versions(chips: list[Chip]) -> Iterable[tuple[str, str, str]]:
    for version, family in hardware_versions().items():
        yield str(version), str(family), ", ".join(c.name for c in chips if c.hardware_version == version)
    yield "?", "inferred", ", ".join(f"{c.name} ({c.family})" for c in chips if c.hardware_version is None)


def _costs() -> Iterable[tuple[str, str, str]]:
    for family in Family:
        costs = analytic_costs(family)
        yield (
            str(family),
            ", ".join(f"{clamp:g}" for clamp in costs.clamps),
            " to ".join(f"{end:g}" for end in costs.ramp),
        )


def _fields(shown: list[Chip]) -> Iterable[tuple[str, ...]]:
    for path, row in field_table().items():
        if "." in path:
            unit = f", {row['unit']}" if "unit" in row else ""
            at = f" ({', '.join(offsets(path))})" if offsets(path) else ""
            what = f"{row['text'].rstrip('.')}{unit}{at}{USED[row.get('used', True)]}"
            yield f"`{path}`", *(value_text(c.facts[path]) for c in shown), what


def _rules() -> Iterable[tuple[str, ...]]:
    for rule in rules().values():
        numbers = ", ".join(f"{name} {value_text(fact)}" for name, fact in rule.numbers.items())
        texts = (", ".join(rule.ops), rule.wrong, rule.instead, numbers, ", ".join(rule.systems))
        yield rule.name, *texts, rule.status, rule.source


def _sources() -> Iterable[tuple[str, str, str]]:
    for name, what in table("sources").items():
        silicon = [
            product for source, row in table("measured_on").items() if source.startswith(name) for product in row
        ]
        yield name, what, ", ".join(silicon)


def _single(chips: list[Chip], shown: list[Chip]) -> Iterable[tuple[str, ...]]:
    for chip in chips:
        like = next(c for c in shown if target_table(c.name)["base"] == target_table(chip.name)["base"])
        for path, fact in chip.facts.items():
            known = path in field_table() and fact.status != "unknown"
            if "." in path and known and fact.value != like.facts[path].value:
                yield (
                    f"{chip.lead} ({chip.name})" if chip.products else chip.name,
                    f"`{path}`",
                    value_text(fact),
                    fact.status,
                    fact.source,
                )


def _disputes(chips: list[Chip]) -> Iterable[tuple[str, str, str, str]]:
    """Yields rows of disputed facts. Chips with equal disputes share a row."""
    rows: dict[tuple[str, Fact], list[str]] = {}
    for path in sorted({path for chip in chips for path in chip.facts}):
        for chip in chips:
            fact = chip.facts.get(path)
            if fact and fact.claims:
                rows.setdefault((path, fact), []).append(chip.name)
    for (path, fact), names in rows.items():
        claims = "; ".join(f"{value_text(claim)} ({claim.status}, {claim.source})" for claim in fact.claims)
        yield f"`{path}`", "all" if len(names) == len(chips) else ", ".join(names), value_text(fact), claims
