"""MIL text that we write is accepted by a reader of the grammar that shares nothing with ours (tests/fake_ane)."""

import ctypes as c
import warnings
from collections.abc import Callable

import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane.ops.spec import Op
from hexane.runtime.mil import emit_pieces
from hexane.targets.query import load_chip
from stand_in import FRAMEWORK, needs_stand_in

TEXT = """\
program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}})]
{
    func main<ios18>(tensor<fp16, [1, 3]> x) {
        fp16 half = const()[name = string("half"), val = fp16(-0x1p-1)];
        tensor<int32, [2]> shape = const()[name = string("shape"), val = tensor<int32, [2]>([3, 1])];
        tensor<fp16, [4]> w = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string("@model_path/w"), offset = uint64(64)))];
        tensor<fp16, [1, 3]> y = mul(x = x, y = half)[name = string("y")];
        tensor<fp16, [1, 6]> z = concat(values = (x, y), axis = int32(1), interleave = bool(false))[name = string("z")];
    } -> (y, z);
}
"""

Check = Callable[[str], str]


@pytest.fixture(scope="module")
def check() -> Check:
    """What the reader says of a text, "" if it accepts it."""
    needs_stand_in()
    known = c.CDLL(str(FRAMEWORK)).fake_ane_check_text
    known.restype, known.argtypes = c.c_bool, (c.c_char_p, c.c_size_t, c.c_char_p, c.c_size_t)

    def said(text: str) -> str:
        why, data = c.create_string_buffer(256), text.encode()
        return "" if known(data, len(data), why, len(why)) else why.value.decode().removeprefix("InvalidMILProgram: ")

    return said


def test_a_text_with_each_form_is_accepted(check: Check) -> None:
    assert check(TEXT) == ""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("-> (y, z);", "-> (y, z)", "line 11, column 1: need ';'"),
        ("-> (y, z);", "-> (y, q);", "line 10, column 14: need q defined before it is used"),
        ("y = half", "y = z", "line 8, column 49: need z defined before it is used"),
        ("[1, 6]> z", "[1, 6]> y", "line 9, column 30: need another name than y, which is defined"),
        ("int32(1)", "int32(1.0)", "line 9, column 72: need ')'"),
        ("bool(false)", "bool(0)", "line 9, column 93: need true or false"),
        ("([3, 1])", "([3, 1, 1])", "line 6, column 93: need 2 numbers, got 3"),
        ("fp16(-0x1p-1)", "fp16(inf)", "line 5, column 63: need a finite number of fp16"),
        ("fp16(-0x1p-1)", 'fp16(BLOBFILE(path = string("w"), offset = uint64(64)))', "need a finite number of fp16"),
        ("offset = uint64(64)", "offset = 64", "need uint64"),
        ('[name = string("y")]', "", "line 8, column 54: need '['"),
        ("<int32, [2]> shape", "<half, [2]> shape", "line 6, column 16: need a dtype"),
        ("(x, y), axis", "[x, y], axis", "line 9, column 50: need a name"),
        ("program(1.3)", "program(2.0)", "line 1, column 9: need a version 1.N"),
        ('"3510.2.1"}', '"3510.2.1}', "line 2, column 75: need the end of the string"),
        ("\n}\n", "\n}\nfunc", "line 12, column 1: need the end of the text"),
    ],
)
def test_a_fault_is_named_with_its_place(before: str, after: str, why: str, check: Check) -> None:
    assert TEXT.count(before) == 1
    assert check(TEXT.replace(before, after)).endswith(why)


def test_no_beginning_of_a_text_is_accepted(check: Check) -> None:
    for end in range(len(TEXT) - 1):
        assert check(TEXT[:end]) != "", TEXT[:end]


@pytest.mark.parametrize(("op", "case"), CASES, ids=IDS)
def test_every_case_is_written_in_the_grammar(op: Op, case: int, check: Check) -> None:
    graph = graph_of(op, op.cases[case], arrays(op, op.cases[case]))
    for target in ("h13", "h17s"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                _, pieces = emit_pieces(graph, load_chip(target))
            except hx.Error:
                continue
        for piece in pieces:
            assert piece.mil is None or check(piece.mil.text) == ""
