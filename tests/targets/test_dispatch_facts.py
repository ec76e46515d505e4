"""The numbers of the dispatch service, with their sources."""

from hexane.targets.dispatch import dispatch
from hexane.targets.fact import STATUSES
from hexane.targets.tables import table


def test_every_number_has_a_source_that_is_known() -> None:
    known = tuple(table("sources"))
    for name, fact in dispatch().facts.items():
        assert fact.status in STATUSES, name
        assert all(f.source.startswith(known) for f in (fact, *fact.claims)), name


def test_where_sources_disagree_the_smallest_budget_counts() -> None:
    facts = dispatch()
    for name, value in (("compile_limit", facts.compile_limit), ("load_limit", facts.load_limit)):
        assert value == min(claim.value for claim in facts.facts[name].claims)


def test_classes_of_service_are_in_range() -> None:
    facts = dispatch()
    assert len(facts.qos_names) == len(facts.qos_values)
    assert facts.default_qos == facts.qos_values[facts.qos_names.index("default")]
    assert max(facts.qos_values) <= facts.most_qos
