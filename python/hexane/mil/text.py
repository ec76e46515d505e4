"""Parses the text of a MIL program to its tree (tree.py). The parser knows the grammar, not the ops."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from hexane.errors import Error
from hexane.mil.tree import Argument, Bits, BlobFile, Function, Literal, Name, NestedBlock, Statement, StateType, Type
from hexane.system.limits import MAX_RANK


class Place(NamedTuple):
    """A position in a text, for messages."""

    text: str
    name: str  # name of the file

    def fail(self, at: int, message: str) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        raise Error(f"[{self.name}:{line}:{column}] {message}")


def parse_program(text: str, name: str = "MIL") -> Function:
    """Returns the only function of a program. Raises Error, with line and column, for text that is no program."""
    (function,) = _Parser(text, name).program()
    return function


def parse_functions(text: str, name: str = "MIL") -> tuple[Function, ...]:
    """Returns all functions of a program, which may have states."""
    return _Parser(text, name, of_system=True).program()


_TOKEN = re.compile(
    r"""[\ \t\r\n]*(?:
      (?P<word>[A-Za-z_]\w*)
    | (?P<number>-?(?:0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:[pP][+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<mark>->|[-()\[\]{}<>=,;])
    )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(.)")
_MOST_DIGITS = 400
MOST_BLOCKS = 32  # Most levels of nested blocks.
_OFFSETS = (("uint64", None), ("uint64", ()))  # The shape is () before program(1.3).


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A recursive-descent parser. MAX_RANK limits how deep lists are nested, and MOST_BLOCKS how deep blocks are."""

    def __init__(self, text: str, name: str, of_system: bool = False) -> None:
        """of_system: parse Core ML's own programs, which may have several functions and states, unlike the engine's."""
        self.of_system = of_system
        self.depth = 0  # depth of nested blocks
        self.place = Place(text, name)
        self.tokens = self._tokens(text)
        self.next = self._advance()

    def _tokens(self, text: str) -> Iterator[_Token]:
        at, match = 0, _TOKEN.match
        while word := match(text, at):
            kind = word.lastgroup
            assert kind is not None
            at = word.end()
            yield _Token(kind, word[kind], word.start(kind))
        rest = text[at:]
        at += len(rest) - len(rest.lstrip())
        if at < len(text):
            self.place.fail(at, f"got {text[at]!r}, which begins nothing in MIL")
        while True:
            yield _Token("end", "the end of the text", len(text))

    def _advance(self) -> _Token:
        return next(self.tokens)

    def _fail(self, need: str) -> NoReturn:
        self.place.fail(self.next.at, f"got {self.next.text[:40]!r}, need {need}")

    def take(self, text: str) -> bool:
        """Consumes the next token if it is this mark or word. Returns True if it was."""
        if self.next.text == text and self.next.kind != "string":
            self.next = next(self.tokens)
            return True
        return False

    def need(self, text: str) -> None:
        if not self.take(text):
            self._fail(repr(text))

    def token(self, kind: str, need: str) -> _Token:
        result = self.next
        if result.kind != kind:
            self._fail(need)
        self.next = next(self.tokens)
        return result

    # ---- the program ----

    def program(self) -> tuple[Function, ...]:
        self.need("program")
        self.need("(")
        self.token("number", "a version, as in program(1.3)")
        self.need(")")
        if self.take("["):
            self.word("buildInfo")
            self.need("=")
            self.dictionary()
            self.need("]")
        self.need("{")
        functions = [self.function()]
        while self.next.text == "func":
            if not self.of_system:
                self._fail("the end of the program: only programs of one function can be read")
            functions.append(self.function())
        self.need("}")
        if self.next.kind != "end":
            self._fail("nothing after the program")
        return tuple(functions)

    def word(self, text: str) -> None:
        if not (self.next.kind == "word" and self.take(text)):
            self._fail(repr(text))

    def dictionary(self) -> None:
        """Skips dict<string, string>({{"key", "value"}, ..}), which names the program's writers and has no meaning.
        Before program(1.3) its types are tensor<string, []>."""
        for text in ("dict", "<", "string", ",", "string", ">", "(", "{"):
            if text != "string":
                self.need(text)
                continue
            at = self.next.at
            if (kind := self.type()) != ("string", None):
                self.place.fail(at, f"got {str(kind)!r}, need 'string'")
        while self.take("{"):
            self.token("string", "a string")
            self.need(",")
            self.token("string", "a string")
            self.need("}")
            if not self.take(","):
                break
        self.need("}")
        self.need(")")

    def function(self) -> Function:
        self.word("func")
        name = self.token("word", "the name of a function").text
        self.need("<")
        opset = self.token("word", "an opset, as in <ios18>").text
        self.need(">")
        self.need("(")
        inputs = self.inputs()
        statements, outputs = self.body()
        self.need(";")
        return Function(name, opset, inputs, statements, outputs)

    def inputs(self) -> tuple[tuple[Type, str], ...]:
        """Parses declarations after a ( up to their )."""
        inputs: list[tuple[Type, str]] = []
        while not self.take(")"):
            if inputs:
                self.need(",")
            inputs.append(self.declaration())
        return tuple(inputs)

    def body(self) -> tuple[tuple[Statement, ...], tuple[Name, ...]]:
        """Parses { statements } -> (output, ..)."""
        self.need("{")
        statements = []
        while not self.take("}"):
            statements.append(self.statement())
        self.need("->")
        self.need("(")
        outputs = [self.reference()]
        while self.take(","):
            outputs.append(self.reference())
        self.need(")")
        return tuple(statements), tuple(outputs)

    def blocks(self) -> tuple[NestedBlock, ...]:
        """Parses the blocks of a loop or a branch. Nested blocks are written like functions. A block's name, empty
        inputs, and commas between blocks are optional."""
        result: list[NestedBlock] = []
        self.depth += 1
        while self.next.kind == "word" or self.next.text in ("(", "{", ","):
            if self.depth > MOST_BLOCKS:
                self.place.fail(self.next.at, f"got blocks in blocks, more than {MOST_BLOCKS} deep")
            if self.take(",") and not result:
                self._fail("a block, or ';'")
            if self.next.kind == "word":
                self.token("word", "the name of a block")
            inputs = self.inputs() if self.take("(") else ()
            result.append(NestedBlock(inputs, *self.body()))
        self.depth -= 1
        return tuple(result)

    def reference(self) -> Name:
        word = self.token("word", "the name of a value")
        return Name(word.text, word.at)

    def declaration(self) -> tuple[Type, str]:
        return self.type(), self.token("word", "a name").text

    def statement(self) -> Statement:
        first = self.next
        if first.kind == "word" and first.text not in ("tensor", "state"):  # a scalar's type, or an op without results
            self.next = next(self.tokens)
            if self.of_system and self.next.text == "(":
                return self.call((), first)
            results = [(Type(first.text, None), self.token("word", "a name").text)]
        else:
            results = [self.declaration()]
        while self.take(","):
            results.append(self.declaration())
        self.need("=")
        return self.call(tuple(results), self.token("word", "an op"))

    def call(self, results: tuple[tuple[Type, str], ...], op: _Token) -> Statement:
        arguments = self.arguments("(", ")")
        blocks = self.blocks() if self.of_system else ()
        attributes = self.arguments("[", "]") if self.next.text == "[" else {}
        blocks = blocks or (self.blocks() if self.of_system else ())
        self.need(";")
        return Statement(results, op.text, arguments, attributes, op.at, blocks)

    def arguments(self, begin: str, end: str) -> dict[str, Argument]:
        self.need(begin)
        result: dict[str, Argument] = {}
        while not self.take(end):
            if result:
                self.need(",")
            name = self.token("word", f"the name of an argument, or {end!r}")
            if name.text in result:
                self.place.fail(name.at, f"got the argument {name.text} twice, need it once")
            self.need("=")
            result[name.text] = self.argument()
        return result

    def argument(self) -> Argument:
        if not self.take("("):
            return self.operand()
        items = [self.operand()]
        while self.take(","):
            items.append(self.operand())
        self.need(")")
        return tuple(items)

    def operand(self) -> Name | Literal:
        at = self.next.at
        if self.next.kind == "word" and self.next.text not in ("tensor", "state"):
            word = self.token("word", "a value")
            if self.next.text != "(":
                return Name(word.text, at)
            kind = Type(word.text, None)
        else:
            kind = self.type()
        self.need("(")
        value = self.value(MAX_RANK)
        self.need(")")
        return Literal(kind, value, at)

    # ---- types and values ----

    def type(self) -> Type:
        if self.next.text == "state":
            if self.of_system:
                return self.state()
            self._fail("a type of tensors: states cannot be read, and the engine's programs have none")
        word = self.token("word", "a type, as in tensor<fp16, [1, 8]>")
        if word.text != "tensor":
            return Type(word.text, None)
        self.need("<")
        dtype = self.token("word", "a dtype").text
        self.need(",")
        self.need("[")
        dims: list[int] = []
        while not self.take("]"):
            if dims:
                self.need(",")
            number = self.token("number", "an extent: shapes are fixed")
            if not number.text.isdecimal() or len(number.text) > 15:
                self.place.fail(number.at, f"got the extent {number.text[:40]}, need an integer that is not negative")
            dims.append(int(number.text))
        self.need(">")
        # In program(1.0), the type of a string is tensor<string, []>.
        return Type(dtype, None if dtype == "string" and not dims else tuple(dims))

    def state(self) -> Type:
        self.need("state")
        self.need("<")
        held = self.type()
        self.need(">")
        return StateType(*held)

    def value(self, depth: int) -> Any:
        token = self.next
        if token.kind == "string":
            self.next = next(self.tokens)
            return _ESCAPE.sub(r"\1", token.text[1:-1])
        if self.take("["):
            if not depth:
                self.place.fail(token.at, f"got lists nested deeper than {MAX_RANK}, need a tensor")
            items: list[Any] = []
            while not self.take("]"):
                if items:
                    self.need(",")
                items.append(self.value(depth - 1))
            return items
        if token.kind == "word" and token.text in ("true", "false"):
            self.next = next(self.tokens)
            return token.text == "true"
        if token.kind == "word" and token.text == "BLOBFILE":
            self.next = next(self.tokens)
            return self.blob_file(token.at)
        negative = self.take("-")
        if self.next.kind == "word" and self.next.text.lower() in ("inf", "infinity", "nan"):
            number = float(self.next.text)
            self.next = next(self.tokens)
        else:
            number = self.number()
        return -number if negative else number

    def number(self) -> Any:
        token = self.token("number", "a number, a bool, a string, a list, or BLOBFILE(..)")
        text = token.text.lower()
        try:
            if len(text) > _MOST_DIGITS:
                raise ValueError
            if "0x" in text:
                return float.fromhex(text) if "p" in text or "." in text else Bits(text, 16)
            return float(text) if "." in text or "e" in text else int(text)
        except (ValueError, OverflowError):
            self.place.fail(token.at, f"got {token.text[:40]}, need a number that can be held")

    def blob_file(self, at: int) -> BlobFile:
        arguments = self.arguments("(", ")")
        path, offset = arguments.get("path"), arguments.get("offset")
        if (
            arguments.keys() != {"path", "offset"}
            or not (isinstance(path, Literal) and path.type == ("string", None) and isinstance(path.value, str))
            or not (isinstance(offset, Literal) and offset.type in _OFFSETS and type(offset.value) is int)
            or not 0 <= offset.value < 1 << 64
        ):
            self.place.fail(at, 'need BLOBFILE(path = string(".."), offset = uint64(..))')
        return BlobFile(path.value, offset.value)
