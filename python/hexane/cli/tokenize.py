"""`hexane tokenize`: texts as a file of tokens, for training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hexane import _core
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import named_option, print_json, working
from hexane.errors import Error
from hexane.graph import Array
from hexane.graph.decisions import counted
from hexane.importers.files import open_regular, read_all
from hexane.train.text import Tokenizer, learn_tokenizer, load_tokenizer, save_tokens, token_dtype


@command
def tokenize(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT..", help="Files of UTF-8, a document each.")],
    tokenizer: Annotated[Path, typer.Option(metavar="FILE", help="tokenizer.bin of llama2.c, or a tokenizer.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="TOKENS.bin", help="The file of tokens.")],
    separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands between documents in a file, as '<|endoftext|>'.")
    ] = None,
    learn: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="First learn a tokenizer of N tokens from these texts, and write it to --tokenizer."
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn texts into a file of tokens: ids as little-endian uint16, or uint32 for more than 65536 of them.

    \b
    hexane tokenize stories.txt --tokenizer tokenizer.bin -o tokens.bin
    hexane tokenize *.txt --tokenizer tokenizer.json --separator '<|endoftext|>' -o tokens.bin
    hexane tokenize notes.txt --learn 4096 --tokenizer new.json -o tokens.bin

    Each document begins with the tokenizer's own mark, where it has one.
    """
    if separator == "":
        raise typer.BadParameter("--separator: got an empty text, need at least a character")
    if output.exists() and any(output.samefile(path) for path in [*texts, tokenizer] if path.exists()):
        raise Error(f"[tokenize] {output}: got an input as the output, need another file")
    if learn is not None:
        _learn(texts, separator, learn, tokenizer)
    known = load_tokenizer(tokenizer)
    with working(f"tokenizing {counted(len(texts), 'file')}"):
        documents = [ids for path in texts for ids in _documents(path, separator, known)]
    if not documents:
        raise Error(f"[tokenize] {texts[0]}: got no text, need at least a character")
    with named_option("--output", output):
        tokens = save_tokens(output, documents, vocab=known.vocab)
    dtype = token_dtype(known.vocab)
    if json:
        print_json(
            {
                "output": str(output),
                "tokens": tokens,
                "documents": len(documents),
                "vocab": known.vocab,
                "dtype": dtype,
                "begin": known.begin,
            }
        )
        return
    where = f"{counted(tokens, 'token')} in {counted(len(documents), 'document')}"
    print(f"{output}: {where}, {dtype}, ids below {known.vocab}")
    if dtype == "uint32":
        print(f"note: uint32, as {known.vocab} ids do not fit into uint16; programs that expect uint16 cannot read it")
    if known.begin is None:
        print("note: the tokenizer has no mark for the beginning of a document: none was written")


def _learn(texts: list[Path], separator: str | None, vocab: int, path: Path) -> None:
    """Writes a tokenizer of the texts. Raises Error for a name that `load_tokenizer` would read otherwise, and for a
    file that is there already: other files of tokens may need it."""
    if path.suffix.lower() != ".json":
        raise Error(f"[tokenize] --tokenizer: got {path} with --learn, need a name that ends in .json")
    if path.exists():
        raise Error(f"[tokenize] --tokenizer: {path} is there already, need another name, or no --learn")
    with working(f"learning {vocab} tokens"):
        data = learn_tokenizer((text for one in texts for text in _parts(one, separator)), vocab)
    with named_option("--tokenizer", path):
        _core.save_file(str(path), data)


def _documents(path: Path, separator: str | None, tokenizer: Tokenizer) -> Iterator[Array]:
    """The ids of each document of a file."""
    for document in _parts(path, separator):
        yield np.asarray(tokenizer.encode(document), np.uint32)


def _parts(path: Path, separator: str | None) -> Iterator[str]:
    """The documents of a file; those without text are left out."""
    where = f"[tokenize] {path}"
    data = read_all(open_regular(path, where, "text"), where)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Error(f"{where}: byte {error.start}: got {data[error.start]:#04x}, need UTF-8") from None
    for document in [text] if separator is None else (part.strip() for part in text.split(separator)):
        if document:
            yield document
