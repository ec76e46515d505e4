"""`hexane tokenize`: converts texts to a file of tokens for training."""

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
from hexane.train.decoder.formats import holds_gguf
from hexane.train.text import (
    NAMES,
    ChatData,
    Tokenizer,
    find_tokenizer,
    learn_tokenizer,
    load_chat_template,
    load_tokenizer,
    read_end_mark,
    save_conversations,
    save_tokens,
    token_dtype,
)
from hexane.train.text.token_record import record_path


@command
def tokenize(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT..", help="UTF-8 files, one document each.")],
    tokenizer: Annotated[
        Path,
        typer.Option(metavar="FILE|DIR", help="tokenizer.bin of llama2.c, a tokenizer.json, or a model's folder."),
    ],
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
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The files are conversations as JSON lines; only their answers will be learnt."),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Convert texts to a file of tokens: ids as little-endian uint16, or uint32 if there are more than 65536.

    \b
    hexane tokenize stories.txt --tokenizer tokenizer.bin -o tokens.bin
    hexane tokenize *.txt --tokenizer tokenizer.json --separator '<|endoftext|>' -o tokens.bin
    hexane tokenize notes.txt --learn 4096 --tokenizer new.json -o tokens.bin
    hexane tokenize data.jsonl --chat --tokenizer DIR -o tokens.bin

    Each document begins with the tokenizer's begin token, if it has one. TOKENS.bin.json gets the size of the
    vocabulary and the tokenizer's digest, which `hexane train` compares with the model's.

    With --chat, a line is {"messages": [{"role": "user", "content": ".."}, ..]} or {"prompt": "..", "completion":
    ".."}. The chat template next to the tokenizer renders it. TOKENS.bin is then a safetensors file that also marks the
    tokens to learn.
    """
    if chat:
        for option, given in (("--separator", separator), ("--learn", learn)):
            if given is not None:
                raise typer.BadParameter(f"{option}: got it with --chat, need one of them")
    if separator == "":
        raise typer.BadParameter("--separator: got an empty text, need at least a character")
    if output.exists() and any(output.samefile(path) for path in [*texts, tokenizer] if path.exists()):
        raise Error(f"[tokenize] {output}: got an input as the output, need another file")
    if learn is not None:
        _learn(texts, separator, learn, tokenizer)
    file = _file_of(tokenizer)
    known = load_tokenizer(file)
    if chat:
        _conversations(texts, tokenizer, file, known, output, json)
        return
    with working(f"tokenizing {counted(len(texts), 'file')}"):
        documents = [ids for path in texts for ids in _documents(path, separator, known)]
    if not documents:
        raise Error(f"[tokenize] {texts[0]}: got no text, need at least a character")
    with named_option("--output", output):
        tokens = save_tokens(output, documents, vocab=known.vocab, tokenizer=known)
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
    if learn is not None:
        fewer = f" instead of {learn}: these texts have no more pairs to merge" if known.vocab < learn else ""
        print(f"{tokenizer}: {counted(known.vocab, 'token')}{fewer}, learnt from {counted(len(texts), 'file')}")
    where = f"{counted(tokens, 'token')} in {counted(len(documents), 'document')}"
    print(f"{output}: {where}, {dtype}, ids below {known.vocab}")
    if dtype == "uint32":
        print(f"note: uint32, as {known.vocab} ids do not fit into uint16; programs that expect uint16 cannot read it")
    if known.begin is None:
        print("note: the tokenizer has no mark for the beginning of a document: none was written")


def _file_of(tokenizer: Path) -> Path:
    """Returns the file of a tokenizer, given by file or by folder. Raises Error for a folder without one."""
    if not tokenizer.is_dir():
        return tokenizer
    path = find_tokenizer(tokenizer)
    if path is None:
        raise Error(f"[tokenize] --tokenizer: got {tokenizer} with no tokenizer in it, need {' or '.join(NAMES)}")
    return path


def _conversations(texts: list[Path], given: Path, file: Path, known: Tokenizer, output: Path, json: bool) -> None:
    """Writes the conversations in files of JSON lines as tokens, and prints their counts."""
    template = load_chat_template(given)
    named = None if holds_gguf(file) else read_end_mark(file.parent)
    end = None if named is None else known.id_of(named)
    data = ChatData(known, template, frozenset() if end is None else frozenset((end,)))
    with working(f"tokenizing {counted(len(texts), 'file')}"):
        conversations = [one for path in texts for one in data.read(path)]
    if not conversations:
        raise Error(f"[tokenize] {texts[0]}: got no conversation, need a line of JSON at least")
    with named_option("--output", output):
        tokens = save_conversations(output, conversations, vocab=known.vocab, tokenizer=known)
        record_path(output).unlink(missing_ok=True)  # deletes the JSON record of an earlier file of plain ids
    learnt, dtype = sum(int(marks.sum()) for _, marks in conversations), token_dtype(known.vocab)
    longest = max(len(ids) for ids, _ in conversations)
    if json:
        print_json(
            {
                "output": str(output),
                "tokens": tokens,
                "learnt": learnt,
                "conversations": len(conversations),
                "longest": longest,
                "unended": data.unended,
                "vocab": known.vocab,
                "dtype": dtype,
            }
        )
        return
    where = f"{counted(tokens, 'token')} in {counted(len(conversations), 'conversation')}, the longest of {longest}"
    print(f"{output}: {where}; {learnt} are learnt; {dtype}, ids below {known.vocab}")
    if data.unended:
        print(
            f"note: the chat template ends {counted(data.unended, 'answer')} with no mark: a model does not learn"
            " where they end"
        )


def _learn(texts: list[Path], separator: str | None, vocab: int, path: Path) -> None:
    """Learns a tokenizer from the texts and writes it. Raises Error for a name that does not end in .json, and for an
    existing file: other files of tokens may need it."""
    if path.suffix.lower() != ".json":
        raise Error(f"[tokenize] --tokenizer: got {path} with --learn, need a name that ends in .json")
    if path.exists():
        raise Error(f"[tokenize] --tokenizer: {path} is there already, need another name, or no --learn")
    with working(f"learning {vocab} tokens"):
        data = learn_tokenizer((text for one in texts for text in _parts(one, separator)), vocab)
    with named_option("--tokenizer", path):
        _core.save_file(str(path), data)


def _documents(path: Path, separator: str | None, tokenizer: Tokenizer) -> Iterator[Array]:
    for document in _parts(path, separator):
        yield np.asarray(tokenizer.encode(document), np.uint32)


def _parts(path: Path, separator: str | None) -> Iterator[str]:
    """Yields the documents of a file, without empty ones."""
    where = f"[tokenize] {path}"
    data = read_all(open_regular(path, where, "text"), where)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Error(f"{where}: byte {error.start}: got {data[error.start]:#04x}, need UTF-8") from None
    for document in [text] if separator is None else (part.strip() for part in text.split(separator)):
        if document:
            yield document
