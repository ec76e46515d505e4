"""Language models in GGUF files: tokenizer, chat template and encoded weights, as a user of `hx.llm` meets them."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_writer
import hexane as hx
import tiny_llm
from command import in_this_process
from decoders import decoder_weights
from gguf_llm import sentence_pieces, write_model
from hexane._core import FileMapping
from hexane.graph import Array
from hexane.train.decoder.files import read_stored
from hexane.train.decoder.generate import Steps
from hexane.train.text import load_tokenizer
from model_memory import bytes_of_a_model

GREEDY: dict[str, Any] = {"temperature": 0, "steps": 12}
CHAT = [{"role": "user", "content": "What is a tide?"}]
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")


def byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes, as its encoder.py has them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


LETTERS = byte_letters()
WORDS = ["th", "the", "Ġthe", "an", "Ġan", "12", "123", "ĠĠ", "Ġa", "ing", "in", "ĊĊ"]
MERGES = ["t h", "th e", "Ġ the", "Ġ a", "a n", "Ġ an", "1 2", "12 3", "Ġ Ġ", "i n", "in g", "Ċ Ċ"]
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def of_bytes(pre: str) -> dict[str, Any]:
    tokens = [*LETTERS.values(), *WORDS, *MARKS]
    named = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3 if one in MARKS else 1 for one in tokens],
        "merges": MERGES,
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
    }
    found = {f"tokenizer.ggml.{key}": value for key, value in named.items()}
    return {**found, "tokenizer.chat_template": tiny_llm.TEMPLATE}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf", of_bytes("qwen2"))[0]


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def wide_model(folder: Path, kind: str) -> Path:
    """Returns a file with weights that are large enough to be shared."""
    metadata = of_bytes("qwen2")
    c = tiny_llm.config(vocab=len(metadata["tokenizer.ggml.tokens"]), dim=256, hidden=512, layers=2)
    tensors = gguf_writer.tensors_of("llama", c, decoder_weights(c), kind)
    return gguf_writer.write(folder / "wide.gguf", {**gguf_writer.metadata_of("llama", c), **metadata}, tensors)


TEXT = "The 1234 things\n\n  an  other's WAY… naïve ¿qué? 漢字 \t end"


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_a_text_is_cut_as_the_published_tokenizer_cuts_it(pre: str, tmp_path: Path) -> None:
    made = load_tokenizer(write_model(tmp_path / "m.gguf", of_bytes(pre))[0])
    assert made.decode(made.encode(TEXT, begin=False)) == TEXT
    ids = made.encode("123 the\n\nthing 5", begin=False)
    pieces = [inner_piece(made, i) for i in ids]
    digits = ["1", "2", "3"] if pre in ("smollm", "qwen2", "tekken") else ["123"]
    lines = ["Ċ", "Ċ"] if pre in ("gpt-2", "smollm") else ["ĊĊ"]
    last = ["Ġ", "5"]
    assert pieces == [*digits, "Ġthe", *lines, "th", "ing", *last]


def inner_piece(made: Any, i: int) -> str:
    return str(made._inner.id_to_token(i))


def test_messages_go_through_the_template_of_the_file(file: Path) -> None:
    model = hx.llm.load(file, threads=1)
    marks = {name: 256 + len(WORDS) + i for i, name in enumerate(MARKS)}
    ids = model.encode(CHAT)
    assert ids[0] == marks["<|im_start|>"]
    assert ids.count(marks["<|im_start|>"]) == 2
    assert ids.count(marks["<|im_end|>"]) == 1
    assert model.stops >= {marks["<|im_end|>"]}
    assert model.generate(CHAT, **GREEDY).ended_by in ("", "steps", "end")


def test_a_text_begins_as_the_metadata_say(tmp_path: Path) -> None:
    begin = 256 + len(WORDS) + 1
    for pre, given, want in (("qwen2", None, False), ("llama-bpe", None, True), ("gpt-2", True, True)):
        metadata = of_bytes(pre) | ({} if given is None else {"tokenizer.ggml.add_bos_token": given})
        model = hx.llm.load(write_model(tmp_path / "m.gguf", metadata)[0], threads=1)
        assert (model.encode("a")[0] == begin) == want


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q5_0", "Q4_0", "Q4_1"])
def test_logits_are_those_of_the_decoded_weights(kind: str, tmp_path: Path) -> None:
    file, c = write_model(tmp_path / "m.gguf", of_bytes("qwen2"), kind)
    model = hx.llm.load(file, threads=1)
    config, weights = hx.train.read_llama(file)
    plain = hx.train.Generator.of_weights(config, weights, options=hx.Options(target="host", threads=1))
    ids = np.random.default_rng(2).integers(0, c.vocab, 70).tolist()
    assert off(model.logits(ids), np.stack(list(plain.logits(ids)))) <= 2e-5


def test_blocks_of_integers_stay_integers_in_memory(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", of_bytes("qwen2"))[0]
    for kind, mode in (("Q8_0", "blockwise8:b32"), ("Q4_0", "blockwise4:b32")):
        stored = write_model(tmp_path / "stored.gguf", of_bytes("qwen2"), kind)[0]
        want = hx.llm.load(file, compress=mode).memory["weights"]
        assert hx.llm.load(stored).memory["weights"] == want < 0.5 * hx.llm.load(file).memory["weights"]


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_matrices_in_16_bits_stay_in_16_bits(kind: str, tmp_path: Path) -> None:
    metadata = of_bytes("qwen2")
    c = tiny_llm.config(vocab=len(metadata["tokenizer.ggml.tokens"]), dim=256, hidden=384)
    tensors = gguf_writer.tensors_of("llama", c, decoder_weights(c), kind)
    file = gguf_writer.write(tmp_path / "m.gguf", {**gguf_writer.metadata_of("llama", c), **metadata}, tensors)
    model = hx.llm.load(file, threads=1)
    config, weights = hx.train.read_llama(file)
    plain = hx.train.Generator.of_weights(config, weights, options=hx.Options(target="host", threads=1))
    assert model.memory["weights"] < 0.6 * plain.net.memory["weights"]
    ids = np.random.default_rng(2).integers(0, c.vocab, 70).tolist()
    assert off(model.logits(ids), np.stack(list(plain.logits(ids)))) <= 2e-5


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("kind", ["F16", "F32", "Q8_0", "Q4_0"])
def test_memory_has_only_the_packed_weights(kind: str, tmp_path: Path) -> None:
    """Plain numbers stay in the mapped file. Blocks are decoded for each program, and then freed."""
    most = {"Q8_0": 1.4, "Q4_0": 1.6}.get(kind, 1.2)  # scales are in fp32
    metadata = of_bytes("qwen2")
    c = tiny_llm.config(vocab=len(metadata["tokenizer.ggml.tokens"]), dim=1024, hidden=2048, layers=8)
    tensors = gguf_writer.tensors_of("llama", c, decoder_weights(c), kind)
    file = gguf_writer.write(tmp_path / "m.gguf", {**gguf_writer.metadata_of("llama", c), **metadata}, tensors)
    size = file.stat().st_size
    assert size > 20 << 20
    small = write_model(tmp_path / "small.gguf", metadata, kind)[0]
    assert bytes_of_a_model(file, small) < most * size


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q5_0", "Q4_0"])
def test_programs_of_weights_that_are_freed_have_the_bits_of_weights_that_stay(kind: str, tmp_path: Path) -> None:
    """Each prompt compiles programs of further block sizes, from the file."""
    file = wide_model(tmp_path, kind)
    model = hx.llm.load(file, threads=1)
    assert model._steps._shared is not None
    assert model._steps._shared.packed_only
    config, weights = read_stored(file)
    kept = Steps(config, weights, hx.Options(target="host", threads=1))
    other = model._steps.context()
    ids = np.random.default_rng(2).integers(0, config.vocab, 300).tolist()
    for count in (1, 9, 40, 100, 300):
        want = kept.prompt(ids[:count])
        np.testing.assert_array_equal(model._steps.prompt(ids[:count]), want)
        np.testing.assert_array_equal(other.prompt(ids[:count]), want)
    np.testing.assert_array_equal(list(model._steps.rows(ids[:20])), list(kept.rows(ids[:20])))
    assert model.encoded == sum(isinstance(one, hx.Tensor) for one in weights.values()) > 0
    assert {name: one.dtype for name, one in model.weights.items()} == {n: one.dtype for n, one in weights.items()}
    for name, one in weights.items():
        again = model.weights[name]
        if isinstance(one, hx.Tensor):
            assert isinstance(again, hx.Tensor)
            assert again.value == one.value  # equal constants are one node


def test_a_program_of_packed_weights_does_not_give_its_weights(tmp_path: Path) -> None:
    net = hx.llm.load(wide_model(tmp_path, "Q8_0"), threads=1)._steps.net
    with pytest.raises(hx.Error, match="got a program with packed weights only, need one that keeps its weights"):
        net.save(tmp_path / "net.plan")
    assert not (tmp_path / "net.plan").exists()


def test_a_part_of_a_tensor_is_read_alone(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab": 64, "dim": 64, "hidden": 128, "layers": 1, "heads": 2, "kv_heads": 2, "seq": 32}
    config = hx.train.LlamaConfig(**sizes, rope="half", tied=False)
    weights = {n: np.random.default_rng(3).normal(0, 0.2, s).astype(np.float32) for n, s in config.shapes().items()}
    tensors = gguf_writer.tensors_of("phi3", config, weights, "Q8_0")
    file = gguf_writer.write(tmp_path / "m.gguf", gguf_writer.metadata_of("phi3", config), tensors)
    (_, kept), (_, later) = read_stored(file), read_stored(file, in_16_bits=True)
    assert kept.keys() == later.keys()
    for name, one in kept.items():
        again = later[name]
        if isinstance(one, hx.Tensor):
            assert isinstance(again, hx.Tensor)
            assert again.value == one.value


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("change", ["shorter", "rewritten"])
def test_a_file_that_changes_is_an_error(kind: str, change: str, tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", of_bytes("qwen2"), kind)[0]
    model = hx.llm.load(file, threads=1)
    model.logits([1, 2, 3])
    if change == "shorter":
        os.truncate(file, 100)
    else:
        os.utime(file, ns=(0, 0))
    changed = "the file has changed since it was opened, load the model again"
    with pytest.raises(hx.Error, match=changed):
        model.logits([1, 2, 3])
    with pytest.raises(hx.Error, match=changed):
        model.logits(list(range(40)))  # of a program that is compiled now
    with pytest.raises(hx.Error, match=changed):
        dict(model.weights)


def test_a_file_in_blocks_is_not_mapped_beyond_its_norms(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", of_bytes("qwen2"), "Q8_0")[0]
    _, weights = read_stored(file, in_16_bits=True)
    mapped = {name for name, one in weights.items() if not isinstance(one, hx.Tensor) and FileMapping.of(one)}
    assert mapped == {name for name in weights if "norm" in name}


def test_a_file_that_ends_early_is_an_error_before_it_is_mapped(tmp_path: Path) -> None:
    data = write_model(tmp_path / "m.gguf", of_bytes("qwen2"), "F16")[0].read_bytes()
    for end in (100, len(data) // 2, len(data) - 1):
        (tmp_path / "m.gguf").write_bytes(data[:end])
        with pytest.raises(hx.Error, match=r"got a file of|need them inside"):
            hx.llm.load(tmp_path / "m.gguf")


def test_blocks_of_16_are_read_as_they_are(tmp_path: Path) -> None:
    """Q6_K has rows of blocks of 256."""
    metadata, sizes = of_bytes("qwen2"), {"dim": 256, "hidden": 256, "layers": 1}
    c = tiny_llm.config(vocab=len(metadata["tokenizer.ggml.tokens"]), **sizes)
    tensors = gguf_writer.tensors_of("llama", c, decoder_weights(c), "Q6_K")
    file = gguf_writer.write(tmp_path / "m.gguf", {**gguf_writer.metadata_of("llama", c), **metadata}, tensors)
    model = hx.llm.load(file, threads=1)
    config, weights = hx.train.read_llama(file)
    name = "model.layers.0.mlp.up_proj.weight"
    assert off(weights[name], decoder_weights(c)[name]) < 0.03
    plain = hx.train.Generator.of_weights(config, weights, options=hx.Options(target="host", threads=1))
    ids = list(range(8))
    assert off(model.logits(ids), np.stack(list(plain.logits(ids)))) <= 2e-5
    assert model.memory["weights"] < 0.6 * 4 * config.parameters


def test_pieces_are_those_of_sentencepiece(tmp_path: Path) -> None:
    made = load_tokenizer(write_model(tmp_path / "m.gguf", sentence_pieces())[0])
    pieces = [inner_piece(made, i) for i in made.encode("hello abé\nhe")]
    assert pieces == ["<s>", "▁h", "e", "llo", "▁a", "b", "<0xC3>", "<0xA9>", "\n", "he"]
    assert made.adds_begin
    assert made.decode(made.encode("hello  abé\nhe ")) == "hello  abé\nhe "
    marked = made.encode("<start>hello", begin=False)
    assert inner_piece(made, marked[0]) == "<start>"


def test_pieces_without_a_prefix_begin_as_the_text_does(tmp_path: Path) -> None:
    metadata = {**sentence_pieces(), "tokenizer.ggml.add_space_prefix": False}
    made = load_tokenizer(write_model(tmp_path / "m.gguf", metadata)[0])
    assert [inner_piece(made, i) for i in made.encode("helloll", begin=False)] == ["hello", "ll"]
    assert made.decode(made.encode(" hello")) == " hello"


@pytest.mark.parametrize(
    ("about", "drops"),
    [
        ({"general.architecture": "phi3"}, True),
        ({"general.architecture": "llama", "general.name": "Phi-3 Mini 4k Instruct"}, True),
        ({"general.architecture": "llama", "general.name": "TinyLlama"}, False),
    ],
)
def test_phi_3_drops_the_space_after_its_marks(about: dict[str, str], drops: bool, tmp_path: Path) -> None:
    """Its tokenizer.json has `rstrip` for <|user|> and the others, which a GGUF file cannot say; llama.cpp does so by
    the model's name."""
    made = load_tokenizer(gguf_writer.write(tmp_path / "m.gguf", {**sentence_pieces(), **about}, []))
    pieces = [inner_piece(made, i) for i in made.encode("<start>\na<s> a", begin=False)]
    assert pieces == ["<start>", *(["▁a"] if drops else ["▁", "\n", "a"]), "<s>", "▁", "▁a"]


@pytest.mark.parametrize("kind", [1, 4, 3])
def test_each_known_end_ends_a_text_whatever_its_type(kind: int, tmp_path: Path) -> None:
    """A file has one eos_token_id; a model of chats may also end a text with the mark of a document. Converters have
    written such marks as normal pieces."""
    metadata = of_bytes("llama-bpe")
    tokens = [*metadata["tokenizer.ggml.tokens"], "<end_of_turn>", "<|end_of_text|>"]
    types = [*metadata["tokenizer.ggml.token_type"], kind, kind]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    made = load_tokenizer(gguf_writer.write(tmp_path / "m.gguf", metadata, []))
    ends = {tokens.index(one) for one in ("<end_of_turn>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>")}
    assert made.stops >= ends
    ids = made.encode("an<end_of_turn>\n", begin=False)
    assert [inner_piece(made, i) for i in ids] == ["an", "<end_of_turn>", "Ċ"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "t5", "tokenizer.ggml.model: got 't5', need 'gpt2' or 'llama'"),
        ("pre", "unheard", "tokenizer.ggml.pre: got unheard, need one of gpt-2, "),
        ("pre", "default", "tokenizer.ggml.pre: got default, need one of gpt-2, "),
        ("tokens", ["a", "a"], "got 'a' twice"),
        ("token_type", [1, 1], "tokenizer.ggml.token_type: got another count"),
        ("bos_token_id", 1 << 30, "tokenizer.ggml.bos_token_id: got 1073741824, need one below"),
        ("merges", ["nowhere tobefound"], "need one of a published model"),
        ("merges", "x", "tokenizer.ggml.merges: got str, need list"),
    ],
)
def test_what_a_tokenizer_cannot_be_is_an_error(key: str, value: Any, message: str, tmp_path: Path) -> None:
    metadata = {**of_bytes("qwen2"), f"tokenizer.ggml.{key}": value}
    file = gguf_writer.write(tmp_path / "m.gguf", metadata, [])
    with pytest.raises(hx.Error, match=message):
        load_tokenizer(file)


def test_a_folder_with_one_file_is_that_model(file: Path, tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(file.read_bytes())
    assert hx.llm.find_model(tmp_path) == tmp_path / "one.gguf"
    (tmp_path / "two.gguf").write_bytes(b"")
    with pytest.raises(hx.Error, match=r"got one.gguf, two.gguf, need the path of one"):
        hx.llm.find_model(tmp_path)


def test_compress_encodes_the_decoded_weights(file: Path) -> None:
    plain, small = (hx.llm.load(file, threads=1, compress=mode) for mode in (None, "int8"))
    assert small.memory["weights"] < 0.5 * plain.memory["weights"]
    ids = list(range(20))
    assert off(small.logits(ids), plain.logits(ids)) < 0.05


def test_commands_take_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hexane = in_this_process(capsys)
    out = json.loads(hexane("generate", file, "--prompt", "The an", "--temperature", 0, "--steps", 4, "--json").out)
    want = hx.llm.load(file).generate("The an", temperature=0, steps=4)
    want.text()
    assert out["tokens"] == want.tokens
    assert json.loads(hexane("llm", file, "--json").out)["family"] == "llama"
