"""Text encoders by `hx.llm.load`: embeddings, logits, encodings, `hexane embed` and `hexane llm`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import encoders
import hexane as hx
from command import Cli, in_this_process
from hexane.graph import Array
from hexane.importers.encoders import body, holds_encoder
from hexane.importers.encoders.config import config_in
from hexane.llm.encoder_facts import encoded_bytes, encoder_facts
from hexane.llm.encoder_tokenizer import EncoderTokenizer
from hexane.llm.model import load as load_decoder
from in_16_bits import two_folders

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")

RECORDED: dict[str, dict[str, Any]] = json.loads(encoders.RECORD.read_text())
LETTERS = [chr(c) for c in range(97, 123)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS[:6])]
BYTES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *LETTERS, "\u0120", "ab", "\u0120a", "\u0120ab"]
CLOSE = 1e-5
TEXTS = ["a", "b c", "abc def", "x " * 20, "q", "y z", "bad cab", "f e d c b a", "g", "h", "i j", "k " * 9]


def folder_of(name: str, tmp_path: Path, words: bool = True, **changes: Any) -> Path:
    folder = encoders.write_folder(
        tmp_path / "model", name, dict(encoders.tensors(RECORDED[name]["shapes"])), **changes
    )
    if words:
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    else:
        (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(BYTES)}))
        (folder / "merges.txt").write_text("#version: 0.2\na b\n\u0120 ab\n\u0120 a\n")
    return folder


def pooled(folder: Path, files: Mapping[str, Any] | None = None, **fields: Any) -> Path:
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [{"path": path, "type": f"x.{kind}"} for path, kind in zip(paths, kinds, strict=True)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True, **fields}))
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content))
    return folder


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


# What transformers 5.24 makes of these files.
WORDS = {
    "abc": [2, 5, 32, 33, 3],
    "A b  c": [2, 5, 6, 7, 3],
    "x\u00e9 bad": [2, 28, 35, 6, 31, 34, 3],
    "g[MASK]h": [2, 11, 4, 12, 3],
    "\u4e2dabz": [2, 1, 1, 3],
    "zz": [2, 1, 3],
}
OF_BYTES = {
    "abc": [0, 32, 7, 2],
    " ab a": [0, 34, 33, 2],
    "x<mask> ac ab": [0, 28, 4, 33, 7, 34, 2],
    "ba": [0, 6, 5, 2],
}


def test_vocabularies_give_the_ids_of_transformers(tmp_path: Path) -> None:
    made = hx.llm.load(folder_of("bert", tmp_path)).tokenizer
    assert [ids for ids, _ in made.encode(list(WORDS))] == list(WORDS.values())
    assert made.encode([("ab", "c d")]) == [([2, 5, 32, 3, 7, 8, 3], [0, 0, 0, 0, 1, 1, 1])]


def test_vocabularies_of_bytes_give_the_ids_of_transformers(tmp_path: Path) -> None:
    made = hx.llm.load(folder_of("roberta", tmp_path, words=False)).tokenizer
    assert [ids for ids, _ in made.encode(list(OF_BYTES))] == list(OF_BYTES.values())
    assert made.encode([("ab", " c")])[0][0] == [0, 32, 2, 2, 31, 7, 2]
    assert made.encode(["x <mask> a"])[0][0] == [0, 28, 4, 33, 2]  # a mask takes the space before it


def test_embeddings_of_many_texts_are_those_of_each_alone(tmp_path: Path) -> None:
    """The network's own, whose input has no padding."""
    folder = pooled(folder_of("bert", tmp_path))
    model = hx.llm.load(folder, threads=1)
    net = hx.compile(folder, threads=1)
    got = model.embed(TEXTS)
    assert (got.shape, got.dtype) == ((len(TEXTS), 24), np.float32)
    for row, (ids, _) in zip(got, model.tokenizer.encode([one.strip() for one in TEXTS]), strict=True):
        given = np.array([ids], np.int32)
        want = net(input_ids=given, attention_mask=np.ones_like(given))["sentence_embedding"][0]
        assert off(row, want) <= CLOSE
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)
    assert off(model.embed(TEXTS[2]), got[2]) <= CLOSE
    assert model.embed([]).shape == (0, 24)


def test_without_a_word_of_the_folder_an_embedding_is_the_mean(tmp_path: Path) -> None:
    folder = folder_of("distilbert", tmp_path)
    model = hx.llm.load(folder, threads=1)
    ids = np.array([model.tokenizer.encode(["bad cab"])[0][0]], np.int32)
    states = hx.compile(folder, threads=1)(input_ids=ids, attention_mask=np.ones_like(ids))
    assert off(model.embed("bad cab"), states[0].mean(0)) <= CLOSE
    assert np.linalg.norm(model.embed("bad cab", normalize=True)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["roberta masked", "distilbert masked", "mpnet masked"])
def test_logits_of_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of a whole text, and of a text whose padding stood behind it."""
    folder = folder_of(name, tmp_path)
    data = json.dumps(tokenizer_json())
    (folder / "tokenizer.json").write_text(data)
    model = hx.llm.load(folder, threads=1)
    given, count = encoders.inputs(name), encoders.COUNT
    whole, cut = given["input_ids"][0].tolist(), given["input_ids"][1, : count - 5].tolist()
    got = np.concatenate(model.logits([whole, cut]))
    want = np.array(RECORDED[name]["outputs"][f"logits of {count}"]).reshape(-1, encoders.VOCAB)
    assert off(got[::4], want[: len(got[::4])]) <= CLOSE
    assert off(model.logits(whole), got[:count]) <= CLOSE


def tokenizer_json() -> dict[str, Any]:
    import tokenizers

    ids = {piece: i for i, piece in enumerate(PIECES)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=ids, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(PIECES[:5])
    made.enable_padding(length=30)
    made.enable_truncation(4)
    found: dict[str, Any] = json.loads(made.to_str())
    return found


@pytest.mark.parametrize("name", ["bert labels", "distilbert labels"])
def test_a_classifier_gives_one_row_for_each_text_or_pair(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    model, net = hx.llm.load(folder, threads=1), hx.compile(folder, threads=1)
    inputs = ["abc", ("a b", "c"), [2, 9, 3]]
    got = model.logits(inputs)
    rows = [*model.tokenizer.encode(inputs[:2]), ([2, 9, 3], [0, 0, 0])]
    for array, (ids, types) in zip(got, rows, strict=True):
        given = {"input_ids": np.array([ids], np.int32), "attention_mask": np.ones((1, len(ids)), np.int32)}
        if name == "bert labels":
            given["token_type_ids"] = np.array([types], np.int32)
        assert array.shape == (3,)
        assert off(array, net(**given)[0]) <= CLOSE


def test_answers_have_starts_and_ends(tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("bert answers", tmp_path), threads=1)
    assert model.logits(("a b", "c d")).shape == (7, 2)


def test_a_padding_and_a_truncation_of_the_tokenizer_do_not_count(tmp_path: Path) -> None:
    folder = folder_of("bert", tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    model = hx.llm.load(folder, threads=1)
    assert model.tokenizer.encode(["a b c d e f"])[0][0] == [2, 5, 6, 7, 8, 9, 10, 3]


def test_long_texts_are_cut_off_before_their_last_mark(tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("bert", tmp_path), threads=1)
    ids = model.tokenizer.encode(["a " * 90])[0][0]
    assert ids == [2, *[5] * 38, 3]
    assert np.isfinite(model.embed("a " * 90)).all()


def test_the_folder_says_the_longest_text_the_case_and_the_prompt(tmp_path: Path) -> None:
    files = {
        "sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"q": "Ab "}, "default_prompt_name": "q"},
        "tokenizer_config.json": {"do_lower_case": False},
    }
    model = hx.llm.load(pooled(folder_of("bert", tmp_path), files), threads=1)
    assert model.tokenizer.most == 6
    want = hx.llm.load(folder_of("bert", tmp_path / "model"), threads=1).embed("ab c d", normalize=True)
    assert off(model.embed("C D"), want) <= CLOSE
    assert off(model.embed("C D", prompt="aB "), want) <= CLOSE
    assert off(model.embed("C D", prompt=""), want) > 1e-3


def wide(tmp_path: Path) -> Path:
    """Matrices that are large enough to be encoded."""
    sizes = {"hidden_size": 96, "intermediate_size": 192, "vocab_size": 64}
    config = config_in("", {**encoders.config_fields("bert"), **sizes})
    shapes = {name: list(shape) for name, shape in body(config).values()}
    folder = encoders.write_folder(tmp_path / "model", "bert", dict(encoders.tensors(shapes)), **sizes)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    return folder


def test_encodings_are_judged_by_the_cosine(tmp_path: Path) -> None:
    folder = wide(tmp_path)
    plain = hx.llm.load(folder, threads=1)
    made = hx.llm.load(folder, threads=1, compress="int8")
    assert made.quality is not None
    assert made.quality > 0.999
    assert made.memory["weights"] < plain.memory["weights"] / 2
    assert off(made.embed("bad cab"), plain.embed("bad cab")) < 0.05
    with pytest.raises(hx.Error, match=r"need at least 0\.98: take more bits, or force=True"):
        hx.llm.load(folder, threads=1, compress="palette1")
    assert hx.llm.load(folder, threads=1, compress="palette1", force=True).quality is None


def test_auto_takes_the_fewest_bits_that_keep_the_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    folder = wide(tmp_path)
    plain = hx.llm.load(folder, threads=1)
    chosen = {}
    for least in (0.9, 0.9999, 1.1):
        monkeypatch.setattr("hexane.llm.encoder.AUTO_COSINE", least)
        made = hx.llm.load(folder, threads=1, compress="auto")
        chosen[made.encoding] = made.memory["weights"]
        assert made.quality is not None
    assert list(chosen) == ["blockwise4:b32", "blockwise8:b32", "none"]
    assert sorted(chosen.values()) == list(chosen.values())
    assert chosen["none"] == plain.memory["weights"]
    monkeypatch.undo()
    said = cli("embed", str(folder), "--text", "bad cab", "--compress", "auto").err
    assert re.fullmatch(
        r"\[embed\] auto: (blockwise[48]:b32); least cosine [01]\.\d{4}\n\[embed\] \1: 19 weight matrices are stored in this encoding\n",
        said,
    )


def test_the_command_says_how_many_weights_are_encoded(tmp_path: Path, cli: Cli) -> None:
    folder = wide(tmp_path)
    asked = ("--text", "bad cab", "--compress")
    made = hx.llm.load(folder, threads=1, compress="int8")
    assert made.encoded > 4
    said = f"[embed] int8: {made.encoded} weight matrices are stored in this encoding\n"
    assert cli("embed", str(folder), *asked, "int8").err == said
    assert cli("embed", str(folder), *asked, "none").err == ""
    assert cli("embed", str(folder), *asked[:2]).err == ""
    (tmp_path / "small").mkdir()
    small = folder_of("bert", tmp_path / "small")
    said = "[embed] int8: no weight is encoded: none has the 4096 numbers that an encoding takes\n"
    assert cli("embed", str(small), *asked, "int8").err == said


def test_facts_have_the_bytes_of_the_weights(tmp_path: Path) -> None:
    folder = wide(tmp_path)
    model = hx.llm.load(folder, threads=1)
    found = encoder_facts(model, ["M1"])
    assert (found.longest, found.dim, found.tokens, found.head) == (40, 96, 40, "")
    for encoding in ("none", "int8"):
        made = hx.llm.load(folder, threads=1, compress=encoding, force=True)
        assert encoded_bytes(model.config, encoding) == pytest.approx(made.memory["weights"], rel=0.05)
    assert found.chips[0].parts == 1
    assert found.chips[0].left == ("gather", "not_equal")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: model.logits([2, 3]), "got a model without a head"),
        (lambda model: model.embed([3]), "texts: got int, need texts"),
        (lambda model: model.embed(3), "texts: got int, need texts"),
        (lambda model: model.embed({"w3": 1}), "texts: got dict, need texts"),
        (lambda model: model.embed("\ud800"), "need text in UTF-8"),
    ],
)
def test_other_inputs_are_errors(call: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=said):
        call(hx.llm.load(folder_of("bert", tmp_path), threads=1))


@pytest.mark.parametrize("given", [3, None, {"w3": 1}, [[2.5]], [["7"]], [[True]], [None], np.array([2.0])])
def test_other_things_than_texts_and_ids_have_no_logits(given: Any, tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("bert masked", tmp_path), threads=1)
    with pytest.raises(hx.Error, match="need a text, a pair of texts as a tuple or a list of ids"):
        model.logits(given)


def test_a_panic_of_a_damaged_tokenizer_is_an_error() -> None:
    class PanicException(BaseException):
        """As pyo3 names it."""

    class Damaged:
        no_padding = enable_truncation = get_vocab = lambda self, *_, **__: {}

        def encode(self, text: str) -> Any:
            raise PanicException("index out of bounds")

    with pytest.raises(hx.Error, match="a tokenizer that fails on a text"):
        EncoderTokenizer(Damaged(), 8, "[llm.load] model")


@pytest.mark.parametrize(("ids", "said"), [([37], "got 37, need 0 to 36"), ([], "got 0, need 1"), ([2] * 41, "got 41")])
def test_ids_that_the_model_lacks_are_errors(ids: list[int], said: str, tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("bert masked", tmp_path), threads=1)
    with pytest.raises(hx.Error, match=said):
        model.logits([ids])


def test_folders_that_cannot_be_loaded_are_errors(tmp_path: Path) -> None:
    folder = folder_of("bert", tmp_path)
    with pytest.raises(hx.Error, match="context: got 5 for a text encoder"):
        hx.llm.load(folder, context=5)
    with pytest.raises(hx.Error, match=r"got a text encoder \(bert\), which makes no text"):
        load_decoder(folder)
    (folder / "vocab.txt").write_text("\n".join([*PIECES, "zz"]))
    with pytest.raises(hx.Error, match="got 37 tokens, need the tokenizer's 38"):
        hx.llm.load(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES[3:]))
    with pytest.raises(hx.Error, match=r"a vocabulary without \[PAD\], \[UNK\], \[CLS\]"):
        hx.llm.load(folder)
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer_json(), "post_processor": None}))
    with pytest.raises(hx.Error, match="puts no marks around a text"):
        hx.llm.load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(hx.Error, match="need an undamaged tokenizer"):
        hx.llm.load(folder)
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink()
    with pytest.raises(hx.Error, match=r"got no tokenizer, need tokenizer.json or vocab.txt"):
        hx.llm.load(folder)


def test_a_damaged_config_is_no_encoder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[")
    assert not holds_encoder(tmp_path)


def test_embed_prints_cosines_and_writes_the_vectors(cli: Cli, tmp_path: Path) -> None:
    folder = pooled(folder_of("bert", tmp_path))
    ended = cli("embed", folder, "--text", "abc", "--text", "x y", "-o", tmp_path / "out.npy")
    assert ended.code == 0, ended.err
    vectors = np.load(tmp_path / "out.npy")
    want = hx.llm.load(folder).embed(["abc", "x y"])
    assert off(vectors, want) <= CLOSE
    assert ended.out.splitlines()[0] == f"2 x 24, in {tmp_path / 'out.npy'}"
    assert f"{float(want[0] @ want[1]):.4f}" in ended.out
    (tmp_path / "texts").write_text("abc\n\nx y\n")
    found = json.loads(cli("embed", folder, "--lines", tmp_path / "texts", "--json").out)
    assert (found["count"], found["dim"]) == (2, 24)
    assert off(np.array(found["vectors"]), want) <= CLOSE


def test_embed_refuses_no_text_and_decoders(cli: Cli, tmp_path: Path) -> None:
    folder = folder_of("bert", tmp_path)
    assert "--text or --lines: got none" in cli("embed", folder).err
    assert "--image: got it for a text encoder" in cli("embed", folder, "--image", "a.png").err
    (folder / "config.json").write_text('{"model_type": "llama"}')
    ended = cli("embed", folder, "--text", "a")
    assert (ended.code, "got no encoder, need" in ended.err) == (1, True)


def test_llm_prints_the_facts_of_an_encoder(cli: Cli, tmp_path: Path) -> None:
    folder = pooled(folder_of("roberta", tmp_path, words=False))
    ended = cli("llm", folder, "--target", "M1")
    assert ended.code == 0, ended.err
    for said in ("roberta, ", "texts of 38 tokens", "the mean of the tokens, of length 1", "1 part on the engine"):
        assert said in ended.out
    found = json.loads(cli("llm", folder, "--json").out)
    assert list(found["weights"]) == ["none", "int8", "blockwise8:b32", "blockwise4:b32", "palette4"]
    assert "--perplexity: got it for a text encoder" in cli("llm", folder, "--perplexity").err
    assert "-o: got it for a text encoder" in cli("llm", folder, "-o", tmp_path / "x").err


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_folder_in_16_bits_computes_as_in_fp32(name: str, tmp_path: Path) -> None:
    short, wide = [hx.llm.load(one, threads=1) for one in two_folders(folder_of(name, tmp_path), ml_dtypes.bfloat16)]
    assert short.embed(TEXTS).tobytes() == wide.embed(TEXTS).tobytes()


def test_products_in_bf16_are_close(tmp_path: Path) -> None:
    folder = folder_of("bert", tmp_path)
    want, got = (hx.llm.load(folder, threads=1, dtype=dtype).embed(TEXTS) for dtype in ("", "bf16"))
    assert 0 < off(got, want) < 0.02
