"""Replaces ops that overflow or underflow fp16 by equal forms that do not."""

import os

from hexane.bounds.weight_sizes import remembered
from hexane.errors import Error
from hexane.graph import Graph, Value
from hexane.graph.decisions import Decision
from hexane.ops.match import Found, rewrite
from hexane.passes.repair import (
    areas,
    cosines,
    differences,
    distances,
    exponentials,
    factors,
    groups,
    linear_attention,
    logarithms,
    norms,
    products,
    quotients,
    roots,
    spectra,
    spellings,
    sums,
    totals,
    weighted,
    wide_views,
)
from hexane.passes.repair.form import Form
from hexane.passes.repair.masks import clamp_mask_inputs
from hexane.targets import Chip, Target

FORMS = (
    # Group norms on views match first. Then ops move off wide views, before other forms match. Group norms match again
    # after norms.
    *groups.VIEWED,
    *wide_views.FORMS,
    linear_attention.QUOTIENT,
    products.BROADCAST,
    quotients.WEIGHTED,
    sums.WEIGHTED,
    sums.MOVED,
    totals.SUM_OVER_SUM,
    factors.MERGED,
    factors.BEHIND,
    spectra.SPECTRUM,
    spellings.HIDDEN_EPSILON,
    spellings.PRODUCT_OF_TWO,
    *exponentials.FORMS,
    *logarithms.FORMS,
    weighted.DEVIATION,
    *spellings.FORMS,
    *cosines.FORMS,
    *roots.FORMS,
    *norms.FORMS,
    *groups.FORMS,
    totals.INSIDE,
    totals.OVER_TOTAL,
    quotients.OVER_MEAN,
    quotients.PRODUCT_OVER_SUM,
    areas.AREAS,
    distances.DISTANCE,
    sums.SQUARES,
    sums.PRODUCTS,
    sums.RUNNING,
    sums.QUOTIENT,
    sums.MEAN,
    factors.SCALED,
    factors.OUT,
    products.PRODUCT,
    products.GATE,
    products.INTO,
    differences.SPAN,
    differences.SUM,
    differences.AVERAGE,
)


def repair(graph: Graph, target: Target) -> Graph:
    """x / sqrt(sum(x^2))  ->  l2_norm(x), and other forms that are equal in exact arithmetic and safe in fp16

    The files of passes/repair define the forms, each with the failure that it repairs and the source. Each replacement
    is a Decision of the stage "repair". A second run changes nothing. Graphs for targets that are not chips, and graphs
    from `without_repair`, stay unchanged.
    """
    if not isinstance(target, Chip) or OFF in graph.decisions:
        return graph
    decisions: list[Decision] = []
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    with remembered():
        for form in FORMS:
            if form.needs(graph):
                graph = _written(graph, form, decisions)
            elif checks and _written(graph, form, []) != graph:
                raise Error(f"[repair] {form.name}: got a match in a graph for which the form's `needs` is false")
    graph, scores = clamp_mask_inputs(graph)
    decisions += [_decision(node.where, MASK, "cactus#734, reported from a device") for node in scores]
    return graph.decided(*decisions) if decisions else graph


OFF = Decision("repair", "the model", "off", "written as it is, as its user asked", "user")
MASK = "limited to -49152: a mask of -1e9 is -infinity in fp16, and a row whose keys are all hidden would be NaN"


def without_repair(graph: Graph) -> Graph:
    """Returns the graph with a mark that makes `repair` leave it unchanged."""
    return graph if OFF in graph.decisions else graph.decided(OFF)


def repairs_of(graph: Graph) -> tuple[Decision, ...]:
    """Returns the repairs recorded in a graph."""
    return tuple(d for d in graph.decisions if d.stage == OFF.stage and d != OFF)


def _written(graph: Graph, form: Form, decisions: list[Decision]) -> Graph:
    def build(m: Found) -> tuple[Value, ...] | None:
        value = form.build(m)
        if value is None or value.type != m.node.types[0]:
            return None
        if not form.quiet:
            decisions.append(_decision(m.node.where, form.reason, form.source))
        return (value,)

    return rewrite(graph, form.pattern, build)


def _decision(where: str, reason: str, source: str) -> Decision:
    return Decision("repair", where, "repaired", reason, source)
