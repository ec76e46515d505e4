"""Reads the tokenizer and the chat template in a GGUF file's metadata."""

import os
from collections.abc import Mapping
from math import isfinite
from typing import Any

from hexane.errors import Error
from hexane.importers.gguf import open_gguf
from hexane.train.text.chat import ChatTemplate
from hexane.train.text.sentencepiece import MOST_PIECES
from hexane.train.text.tokenizer import CHAT_ENDINGS, ENDINGS, Tokenizer

WHERE = "[gguf]"
UNKNOWN, CONTROL, USER, BYTE = 2, 3, 4, 6  # values of tokenizer.ggml.token_type
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{{0}}"
REST_OF_CASED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How these models split a text into words before encoding, as in their tokenizer.json.
PATTERNS = {
    "llama": rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{REST}",
    "qwen": rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{REST}",
    "gpt-4o": CASED.replace("{0}", f"{CONTRACTIONS}?") + rf"|\p{{N}}{{1,3}}|{REST_OF_CASED}",
    "tekken": CASED.replace("{0}", "") + rf"|\p{{N}}|{REST_OF_CASED}",
}
# By tokenizer.ggml.pre. "" splits as GPT-2 does; "digits" first splits digits from each other.
WORDS: Mapping[str, str] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais", "exaone4"), ""),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), "llama"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), "qwen"),
    "gpt-4o": "gpt-4o",
    "tekken": "tekken",
}
# A whole word in the vocabulary is one token, whatever the merges.
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
# In Phi-3 with SentencePiece, white space after a control token is dropped, but not after KEEP_SPACE.
KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")
# Texts for these tokenizers begin with BOS, unless the file says otherwise.
BEGUN = ("llama-bpe", "llama3", "llama-v3", "tekken")


def read_gguf_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Returns the tokenizer in a GGUF file. Raises Error for an unknown or damaged one, and without the package
    tokenizers."""
    try:
        import tokenizers
    except ImportError:
        raise Error(f"{WHERE} {path}: got no package tokenizers, need: pip install 'hexane[train]'") from None
    with open_gguf(path, WHERE) as file:
        return _Metadata(file.metadata, file.where).tokenizer(tokenizers)


def read_gguf_template(path: str | os.PathLike[str]) -> ChatTemplate:
    """Returns the chat template in a GGUF file. Raises Error if the file has none, and as `ChatTemplate` does."""
    where = "[train.load_chat_template]"
    with open_gguf(path, where) as file:
        text = file.metadata.get("tokenizer.chat_template")
        if not isinstance(text, str):
            raise Error(f"{file.where}: got no tokenizer.chat_template, need it")
        pieces = file.metadata.get("tokenizer.ggml.tokens", [])
        marks = {}
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("pad_token", "padding"),
            ("unk_token", "unknown"),
        ):
            at = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            if type(at) is int and isinstance(pieces, list) and 0 <= at < len(pieces):
                marks[name] = pieces[at]
        return ChatTemplate(text, marks, file.where)


class _Metadata:
    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.metadata, self.where = metadata, where
        self.pieces: list[str] = self.get("tokens", list)
        if not self.pieces or len(self.pieces) > MOST_PIECES:
            raise Error(f"{where}: tokenizer.ggml.tokens: got {len(self.pieces)}, need 1 to {MOST_PIECES}")
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        if len(ids) != len(self.pieces):
            twice = next(piece for i, piece in enumerate(self.pieces) if ids[piece] != i)
            raise Error(f"{where}: tokenizer.ggml.tokens: got {twice!r} twice, need distinct pieces")
        self.ids = ids
        self.types = self.numbers("token_type", 1)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is None or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            got = "none" if value is None else type(value).__name__
            raise Error(f"{self.where}: tokenizer.ggml.{key}: got {got}, need {kind.__name__}")
        return value

    def numbers(self, key: str, default: float) -> list[float]:
        """Returns the field's number for each piece."""
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return [default] * len(self.pieces)
        if getattr(value, "shape", None) != (len(self.pieces),):
            raise Error(f"{self.where}: tokenizer.ggml.{key}: got another count, need {len(self.pieces)} numbers")
        numbers: list[float] = value.tolist()
        if not all(map(isfinite, numbers)):
            raise Error(f"{self.where}: tokenizer.ggml.{key}: got a number that is not finite, need finite ones")
        return numbers

    def id_of(self, key: str) -> int | None:
        name = f"{key}_token_id"
        if f"tokenizer.ggml.{name}" not in self.metadata:
            return None
        number: int = self.get(name, int)
        if not 0 <= number < len(self.pieces):
            raise Error(f"{self.where}: tokenizer.ggml.{name}: got {number}, need one below {len(self.pieces)}")
        return number

    def tokenizer(self, package: Any) -> Tokenizer:
        kind = self.get("model", str)
        if kind not in ("gpt2", "llama"):
            raise Error(
                f"{self.where}: tokenizer.ggml.model: got {kind!r}, need 'gpt2' or 'llama', or tokenizer= with a file"
            )
        pre = self.get("pre", str, "")
        if kind == "gpt2" and not pre and self.metadata.get("general.architecture") == "gpt2":
            pre = "gpt-2"
        try:
            inner = self.words(package, pre) if kind == "gpt2" else self.sentences(package)
            self.mark(package, inner)
        except (KeyboardInterrupt, SystemExit, Error):
            raise
        except BaseException as error:  # panics of the package tokenizers are no Exception
            raise Error(f"{self.where}: tokenizer: {error}, need one of a published model") from None
        adds = self.get("add_bos_token", bool, kind == "llama" or pre in BEGUN)
        begin, end = self.id_of("bos"), self.id_of("eos")
        if begin is None and kind == "llama":
            begin = self.ids.get("<s>")
        # A file names one end token. Instruct models have two end tokens: for an answer, and for the document.
        chat_ends = {self.ids[name] for name in (*CHAT_ENDINGS, *ENDINGS) if name in self.ids} | {
            one for one in (self.id_of("eot"), self.id_of("eom")) if one is not None
        }
        marks = frozenset(one for one in (begin, end) if one is not None)
        adds = adds and begin is not None
        return Tokenizer(inner, len(self.pieces), begin, end, marks, adds_begin=adds, chat_ends=frozenset(chat_ends))

    def words(self, package: Any, pre: str) -> Any:
        """Returns a tokenizer of byte-level BPE."""
        if pre not in WORDS:
            known = ", ".join(WORDS)
            raise Error(
                f"{self.where}: tokenizer.ggml.pre: got {pre or 'none'}, need one of {known}, or tokenizer= with a file"
            )
        merges = []
        for one in self.get("merges", list):
            left, _, right = str(one).partition(" ")
            merges.append((left, right))
        how, cut = WORDS[pre], package.pre_tokenizers
        inner = package.Tokenizer(
            package.models.BPE(vocab=self.ids, merges=merges, fuse_unk=False, ignore_merges=pre in WHOLE_WORDS)
        )
        if how in PATTERNS:
            first = cut.Split(package.Regex(PATTERNS[how]), behavior="isolated")
            inner.pre_tokenizer = cut.Sequence([first, cut.ByteLevel(add_prefix_space=False, use_regex=False)])
        else:
            steps = [cut.Digits(individual_digits=True)] if how == "digits" else []
            inner.pre_tokenizer = cut.Sequence([*steps, cut.ByteLevel(add_prefix_space=False)])
        if how == "qwen":
            inner.normalizer = package.normalizers.NFC()
        inner.decoder = package.decoders.ByteLevel()
        return inner

    def sentences(self, package: Any) -> Any:
        """Returns a SentencePiece tokenizer: of all joinable pairs of pieces, the one with the highest score is
        joined."""
        scores, normalizers, decoders = self.numbers("scores", 0.0), package.normalizers, package.decoders
        plain = {p: i for i, p in enumerate(self.pieces) if self.types[i] not in (UNKNOWN, CONTROL, BYTE)}
        merges = [
            (-scores[i], i, plain[piece[:cut]], plain[piece[cut:]])
            for piece, i in plain.items()
            for cut in range(1, len(piece))
            if piece[:cut] in plain and piece[cut:] in plain
        ]
        merges.sort()
        unknown = next((self.pieces[i] for i, kind in enumerate(self.types) if kind == UNKNOWN), None)
        inner = package.Tokenizer(
            package.models.BPE(
                vocab=self.ids,
                merges=[(self.pieces[left], self.pieces[right]) for _, _, left, right in merges],
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=BYTE in self.types,
            )
        )
        prefix = self.get("add_space_prefix", bool, True)
        begin = [normalizers.Prepend("▁")] if prefix else []
        inner.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", "▁")])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        inner.decoder = decoders.Sequence([*steps, *([decoders.Strip(content=" ", left=1)] if prefix else [])])
        return inner

    def mark(self, package: Any, inner: Any) -> None:
        """Adds the tokens that are recognised before the text is split: control and user tokens, and all end tokens."""
        named = {*CHAT_ENDINGS, *ENDINGS}
        typed = list(zip(self.pieces, self.types, strict=True))
        special = [piece for piece, kind in typed if kind == CONTROL or piece in named]
        plain = [piece for piece, kind in typed if kind == USER and piece not in named]
        token, drops = package.AddedToken, self.drops_space()
        inner.add_special_tokens(
            [token(one, special=True, normalized=False, rstrip=drops and one not in KEEP_SPACE) for one in special]
        )
        inner.add_tokens([token(one, special=False, normalized=False) for one in plain])

    def drops_space(self) -> bool:
        """True if white space after a control token is dropped. GGUF files of Phi-3 and 3.5 lack this property, which
        their tokenizer.json and llama.cpp have."""
        name = str(self.metadata.get("general.name", "")).lower()
        is_phi3 = self.metadata.get("general.architecture") == "phi3" or "phi-3" in name or "phi3" in name
        return is_phi3 and self.metadata.get("tokenizer.ggml.model") == "llama"
