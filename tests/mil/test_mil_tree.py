"""The tree of a program: printed and read again it is the same."""

import pytest
from test_mil_round_trip import graph_of

from cases import CASES, IDS
from hexane.errors import Error
from hexane.mil.text import parse_program
from hexane.mil.tree import Bits, BlobFile, Function, Literal, Name, Statement, Type
from hexane.ops import Op
from mil_programs import program
from random_graphs import KINDS, random_graph

FP16 = Type("fp16", (2,))


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_what_is_written_for_an_op_is_read_and_printed_alike(op: Op, index: int) -> None:
    try:
        mil = program(graph_of(op, op.cases[index], constants=True))
    except Error:
        return  # has no form in MIL
    assert str(parse_program(mil.text)) == mil.text


@pytest.mark.parametrize("count", [60, pytest.param(240, marks=pytest.mark.slow)])
def test_what_is_written_for_random_graphs_is_read_and_printed_alike(count: int) -> None:
    written = 0
    for seed in range(count):
        graph, _ = random_graph(seed, KINDS[seed % len(KINDS)])
        try:
            mil = program(graph)
        except Error:
            continue
        assert str(parse_program(mil.text)) == mil.text
        written += 1
    assert written >= count // 6


def test_each_kind_of_value_is_printed_as_it_is_read() -> None:
    values = [
        Literal(Type("string", None), 'a "b" \\ c'),
        Literal(Type("bool", (2,)), [True, False]),
        Literal(FP16, [0.5, -3.0]),
        Literal(FP16, [float("inf"), -float("inf")]),
        Literal(FP16, BlobFile("@model_path/a.bin", 64)),
        Literal(Type("fp16", None), Bits(0x3C00)),
        Literal(Type("int32", (2, 2)), [[1, -2], [3, 4]]),
        (Name("x"), Literal(Type("int32", None), 7)),
    ]
    statement = Statement(((FP16, "y"), (FP16, "z")), "split", {f"a{i}": v for i, v in enumerate(values)}, {})
    function = Function("main", "ios18", ((FP16, "x"),), (statement,), (Name("y"), Name("z")))
    (read,) = parse_program(str(function)).statements
    given = [
        v if isinstance(v, tuple) and not isinstance(v, (Name, Literal)) else (v,) for v in read.arguments.values()
    ]
    assert [tuple(v._replace(at=0) for v in several) for several in given] == [
        v if not isinstance(v, (Name, Literal)) else (v,) for v in values
    ]
    assert isinstance(read.arguments["a5"], Literal)
    assert isinstance(read.arguments["a5"].value, Bits)
    assert str(parse_program(str(function))) == str(function)
