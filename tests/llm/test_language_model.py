"""Language models from folders, as a user of `hx.llm` meets them."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import hexane as hx
import tiny_llm
from decoders import decoder_weights, logits_in_numpy
from hexane.graph import Array
from hexane.llm.answer import Answer
from hexane.llm.facts import perplexities
from hexane.ops.encodings import encoding_of
from hexane.train.decoder.samples import Samples
from in_16_bits import FILE, two_folders
from model_memory import bytes_of_a_model

GREEDY: dict[str, Any] = {"temperature": 0, "steps": 12}
CHAT = [{"role": "user", "content": "What is a tide?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.write(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> hx.llm.LanguageModel:
    return hx.llm.load(folder, threads=1)


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def greedy_in_numpy(ids: list[int], count: int, ends: frozenset[int]) -> list[int]:
    c, found = tiny_llm.config(), list[int]()
    while len(found) < count:
        token = int(logits_in_numpy(c, decoder_weights(c), np.array([[*ids, *found]]))[0, -1].argmax())
        if token in ends:
            break
        found.append(token)
    return found


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "fp16"])
def test_a_folder_in_16_bits_computes_as_in_fp32_and_takes_half_the_memory(tmp_path: Path, kind: Any) -> None:
    """Published folders are in bf16. Products of one token and of blocks, the embedding and the tied head."""
    sizes = {"dim": 256, "hidden": 384, "tied": True}
    short, wide = two_folders(tiny_llm.write(tmp_path / "wide", **sizes), kind)
    models = [hx.llm.load(folder, threads=1) for folder in (wide, short)]
    ids = list(np.random.default_rng(0).integers(0, tiny_llm.VOCAB, 80))
    logits = [model.logits([int(i) for i in ids]) for model in models]
    assert logits[0].tobytes() == logits[1].tobytes()
    texts = ["".join(model.generate("What is a", **GREEDY)) for model in models]
    assert texts[0] == texts[1]
    whole = sum(a.nbytes for a in load_file(wide / FILE).values())
    assert models[1].memory["weights"] < 0.6 * whole
    assert all(a.dtype == kind for a in models[1].weights.values() if not isinstance(a, hx.Tensor) and a.ndim == 2)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 48, 49, 63, 64, 65, 192, 193, 256, 257, 300, 319, 320])
def test_a_prompt_of_any_length_ends_with_the_logits_of_single_tokens(model: hx.llm.LanguageModel, count: int) -> None:
    """At 320 positions the last blocks do not fit, and their tokens run one by one."""
    ids = [int(i) for i in np.random.default_rng(count).integers(0, tiny_llm.VOCAB, count)]
    steps = model._steps.context()
    got = steps.prompt(ids)
    steps.reset()
    for position, token in enumerate(ids):
        want = steps.one(token, position)
    close = {"rtol": 0, "atol": 1e-4 * np.abs(want).max()}
    np.testing.assert_allclose(got, want, **close)
    half = count // 2
    if half:
        steps.reset()
        steps.prompt(ids[:half])
        np.testing.assert_allclose(steps.prompt(ids, half), want, **close)


def test_products_in_bf16_are_close(tmp_path: Path) -> None:
    path = tiny_llm.write(tmp_path / "tiny", dim=256, hidden=384)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, tiny_llm.VOCAB, 80)]
    want = hx.llm.load(path, threads=1).logits(ids)
    assert hx.llm.load(path, threads=1, dtype="fp32").logits(ids).tobytes() == want.tobytes()
    got = hx.llm.load(path, threads=1, dtype="bf16").logits(ids)
    assert 1e-4 < np.linalg.norm(got - want) / np.linalg.norm(want) < 0.1  # large weights: sharp attention
    with pytest.raises(hx.Error, match="dtype: got 'fp16', need 'bf16', 'int8' or 'fp32'"):
        hx.llm.load(path, dtype="fp16")
    with pytest.raises(hx.Error, match="got 'bf16' with compress, need one of them"):
        hx.llm.load(path, dtype="bf16", compress="int8")


def test_products_in_int8_are_close(tmp_path: Path) -> None:
    path = tiny_llm.write(tmp_path / "tiny", dim=256, hidden=384)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, tiny_llm.VOCAB, 80)]
    stored, products = (hx.llm.load(path, threads=1, compress="int8", dtype=d, force=True) for d in ("", "int8"))
    want, got = stored.logits(ids), products.logits(ids)
    assert 1e-3 < np.linalg.norm(got - want) / np.linalg.norm(want) < 0.3  # large weights: sharp attention
    kernels = [{step["kernel"] for step in model._steps.net.steps} for model in (stored, products)]
    assert ["encoded_matmul" in of for of in kernels] == [True, False]
    assert ["quantized_matmul" in of for of in kernels] == [False, True]


def test_a_model_with_products_in_int8_is_not_exported(tmp_path: Path) -> None:
    model = hx.llm.load(tiny_llm.write(tmp_path / "tiny"), compress="int8", dtype="int8", force=True)
    with pytest.raises(hx.Error, match="got a model that multiplies in int8, need one without dtype"):
        hx.llm.export(model, tmp_path / "package")


def test_a_compression_that_begins_with_int8_is_one_in_int8(tmp_path: Path) -> None:
    some = hx.Compression("int8", per_layer={"*gate_proj": "blockwise8:b32"})
    assert hx.llm.load(tiny_llm.write(tmp_path / "tiny"), compress=some, dtype="int8", force=True).dtype == "int8"
    with pytest.raises(hx.Error, match="did you mean 'int8'"):
        hx.llm.load(tiny_llm.write(tmp_path / "other"), compress="int8:b32", dtype="int8")


def test_the_perplexity_is_measured_with_products_in_int8(tmp_path: Path) -> None:
    path = tiny_llm.write(tmp_path / "tiny", dim=256, hidden=384)
    stored, products = (hx.llm.load(path, threads=1, compress="int8", dtype=d).quality for d in ("", "int8"))
    assert stored is not None
    assert products is not None
    assert products.plain == stored.plain
    assert products.perplexity != stored.perplexity
    table = perplexities(path, encodings=("int8",), dtype="int8")
    assert table["int8"] == pytest.approx(products.perplexity)


@pytest.mark.parametrize("compress", [None, "blockwise8:b32", "auto"])
def test_products_in_int8_need_weights_in_int8(tmp_path: Path, compress: str | None) -> None:
    with pytest.raises(hx.Error, match="dtype: got 'int8' without weights in int8, need compress='int8'"):
        hx.llm.load(tiny_llm.write(tmp_path / "tiny"), dtype="int8", compress=compress)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no /proc")
def test_the_weights_of_a_folder_stay_in_its_file(tmp_path: Path) -> None:
    """The kernels pack copies. Only these are in memory; the embedding's rows are read from the file. In a process of
    its own: other tests leave free memory that the weights would take."""
    path = tiny_llm.write(tmp_path / "tiny", dim=1024, hidden=1024, tied=True)
    size = (path / "model.safetensors").stat().st_size
    assert size > 40 << 20
    small = tiny_llm.write(tmp_path / "small")
    assert bytes_of_a_model(path, small) < 1.2 * size


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no /proc")
def test_weights_in_fp32_are_there_once_while_they_are_encoded(tmp_path: Path) -> None:
    path = tiny_llm.write(tmp_path / "tiny", dim=1024, hidden=1024, tied=True)
    size = (path / "model.safetensors").stat().st_size
    code = """
import resource, sys, hexane as hx
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hx.llm.load(sys.argv[2], threads=1, compress="int8", force=True)
before = peak()
hx.llm.load(sys.argv[1], threads=1, compress="int8", force=True)
print(peak() - before)
"""
    small = tiny_llm.write(tmp_path / "small")
    run = subprocess.run(
        [sys.executable, "-c", code, path, small], check=True, capture_output=True, text=True, timeout=300
    )
    assert int(run.stdout) < 1.9 * size


def test_a_folder_that_changes_is_loaded_again(tmp_path: Path) -> None:
    path = tiny_llm.write(tmp_path / "tiny")
    model = hx.llm.load(path, threads=1)
    one = model.logits([5])
    assert model.logits([5, 6, 7])[:1].tobytes() == one.tobytes()
    shutil.copy(path / "model.safetensors", tmp_path / "copy")
    os.truncate(path / "model.safetensors", 100)
    for ids in ([5], [5, 6, 7]):
        with pytest.raises(hx.Error, match="the file has changed since it was opened, load the model again"):
            model.logits(ids)
    with pytest.raises(hx.Error, match="has changed"):
        list(model.generate("What"))
    shutil.copy(tmp_path / "copy", path / "model.safetensors")
    assert hx.llm.load(path, threads=1).logits([5, 6, 7])[:1].tobytes() == one.tobytes()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("caf\udce9", r"got '\\udce9' at 3, need text in UTF-8"),
        ([{"role": "user", "content": "\ud800"}], "need text in UTF-8"),
        (None, "got NoneType, need a text, messages, or a list of ids"),
        (5, "got int, need a text"),
    ],
)
def test_what_is_no_prompt_is_an_error(model: hx.llm.LanguageModel, prompt: Any, message: str) -> None:
    """A command gets bytes that are no UTF-8 as halves of surrogate pairs, and JSON may have them."""
    with pytest.raises(hx.Error, match=message):
        model.generate(prompt)


def test_an_added_token_may_have_no_row_in_the_model(tmp_path: Path) -> None:
    """Gemma 3 of 1B has 262,144 rows, and the mark of images as token 262,144. A token of the vocabulary needs a row."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tiny_llm.write(tmp_path / "tiny")
    inner = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    inner.add_special_tokens(["<image>"])
    inner.save(str(path / "tokenizer.json"))
    made = hx.llm.load(path, threads=1, compress="int8", force=True)
    assert made.encode("<image>") == [tiny_llm.VOCAB]
    answer = made.generate("Once", **GREEDY)
    answer.text()
    assert 0 < len(answer.tokens) <= 12
    assert max(answer.tokens) < tiny_llm.VOCAB
    with pytest.raises(hx.Error, match=f"got the id {tiny_llm.VOCAB}, need 0 to {tiny_llm.VOCAB - 1}"):
        made.generate("a <image>", **GREEDY)
    assert hx.llm.facts(made, ()).tokens_per_second > 0
    known = made.tokenizer
    sample = Samples(made.config, known, "Once", threads=1)(decoder_weights(made.config).__getitem__, 0)
    assert sample is not None
    assert sample.startswith("Once")
    short = tiny_llm.write(tmp_path / "short", vocab=tiny_llm.VOCAB - 4)
    with pytest.raises(hx.Error, match=f"got {tiny_llm.VOCAB - 4} tokens, need the tokenizer's {tiny_llm.VOCAB}"):
        hx.llm.load(short)


@pytest.mark.parametrize("length", [1, 2, 65, 320])
def test_logits_of_every_token_are_those_of_the_definition(model: hx.llm.LanguageModel, length: int) -> None:
    c = tiny_llm.config()
    ids = np.random.default_rng(length).integers(0, c.vocab, length)
    got = model.logits(ids.tolist())
    assert got.shape == (length, c.vocab)
    assert off(got, logits_in_numpy(c, decoder_weights(c), ids[None])[0]) <= 1e-5


def test_a_text_is_made_of_the_likeliest_tokens(model: hx.llm.LanguageModel) -> None:
    answer = model.generate("Once upon a time", **GREEDY)
    pieces = list(answer)
    want = greedy_in_numpy(model.encode("Once upon a time"), 12, model.stops)
    assert answer.tokens == want
    assert "".join(pieces) == model.tokenizer.decode(want)
    assert answer.ended_by == ("steps" if len(want) == 12 else "end")


def test_messages_go_through_the_template(model: hx.llm.LanguageModel) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    answer = model.generate(CHAT, **GREEDY)
    text = "<|im_start|>user\nWhat is a tide?<|im_end|>\n<|im_start|>assistant\n"
    assert answer.prompt == model.tokenizer.encode(text, begin=False)
    answer.text()
    assert answer.tokens == greedy_in_numpy(answer.prompt, 12, model.stops)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("form", ["text", "object"])
def test_the_end_that_the_tokenizers_files_name_ends_a_text(tmp_path: Path, file: str, form: str) -> None:
    """A chat format of its own: its end has no name that others use, and config.json names another token."""
    path = tiny_llm.write(tmp_path / "tiny")
    whole = hx.llm.load(path, threads=1).generate("tide", **GREEDY)
    whole.text()
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    name = next(text for text, one in tokenizer["model"]["vocab"].items() if one == whole.tokens[0])
    given = json.loads((path / file).read_text()) if (path / file).exists() else {}
    (path / file).write_text(json.dumps(given | {"eos_token": name if form == "text" else {"content": name}}))
    answer = hx.llm.load(path, threads=1).generate("tide", **GREEDY)
    assert answer.text() == ""
    assert answer.ended_by == "end"


def test_a_conversation_runs_only_new_tokens_and_says_the_same(model: hx.llm.LanguageModel) -> None:
    kept = model.context()
    history, before = "a" * 100, 0
    for turn in range(3):
        anew = model.context()
        answer, other = kept.generate(history, **GREEDY), anew.generate(history, **GREEDY)
        assert answer.text() == other.text()
        assert (answer.reused > 0, other.reused) == (turn > 0, 0)
        if turn:
            assert answer.reused >= before
        before = len(answer.prompt) + len(answer.tokens) - 1
        history += model.tokenizer.decode(answer.tokens) + " and then?"
        anew.close()
    kept.reset()
    answer = kept.generate("zz", **GREEDY)
    assert (answer.text(), answer.reused) == (model.context().generate("zz", **GREEDY).text(), 0)


def test_a_text_that_parts_from_the_one_before_is_right(model: hx.llm.LanguageModel) -> None:
    """Keys of the old text behind the common part are written again."""
    one = model.context()
    one.generate("the cat sat on the mat " * 8, **GREEDY).text()
    answer = one.generate("the cat sat on the tree and sang", **GREEDY)
    answer.text()
    assert answer.reused == len("the cat sat on the ")
    assert answer.tokens == greedy_in_numpy(answer.prompt, 12, model.stops)


def test_conversations_run_beside_each_other_over_one_set_of_weights(model: hx.llm.LanguageModel) -> None:
    prompts = [f"{i} is a number " * (3 + 5 * i) for i in range(4)]
    want = [model.generate(prompt, **GREEDY).text() for prompt in prompts]
    callers = [model.context() for _ in prompts]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda one: one[0].generate(one[1], **GREEDY).text(), zip(callers, prompts, strict=True)))
    assert got == want


def test_an_older_answer_cannot_go_on(model: hx.llm.LanguageModel) -> None:
    one = model.context()
    old = one.generate("abc", temperature=2.0, steps=200)
    next(old)
    next(one.generate("xyz", temperature=2.0, steps=200))
    with pytest.raises(hx.Error, match=r"older answer, need the newest .* or model.context\(\)"):
        old.text()


@pytest.mark.parametrize("encoding", ["int8", "blockwise4:b32", "palette4"])
def test_compressed_weights_take_less_and_every_program_has_the_same(tmp_path: Path, encoding: str) -> None:
    """Blocks, windows and single tokens compute with the numbers that the encodings decode to. The tables of angles
    are as large as weights, and stay whole."""
    folder = tiny_llm.write(tmp_path / "wide", head_dim=32)
    model = hx.llm.load(folder, threads=1)
    small = hx.llm.load(folder, compress=encoding, threads=1)
    assert small.memory["weights"] < (0.45 if encoding == "int8" else 0.5) * model.memory["weights"]
    ids = np.random.default_rng(0).integers(0, tiny_llm.VOCAB, 70).tolist()
    rows = small.logits(ids)
    single = np.stack([small._steps.one(token, i) for i, token in enumerate(ids)])
    assert off(rows, single) <= 1e-5
    assert off(small._steps.prompt(ids), rows[-1]) <= 1e-5
    weights = {
        name: encoding_of(given.value).decode().node.data if isinstance(given, hx.Tensor) else given
        for name, given in small._steps.weights.items()
    }
    assert {name for name, given in small._steps.weights.items() if isinstance(given, hx.Tensor)} == {
        name for name, array in weights.items() if array.ndim == 2 and array.size >= 4096
    }
    assert off(rows, logits_in_numpy(small.config, weights, np.array([ids]))[0]) <= 1e-5
    assert off(rows, model.logits(ids)) > 1e-4


def test_weights_that_stay_whole_do_not_keep_the_file_in_memory(folder: Path) -> None:
    """Arrays of a file are views of its bytes; these are blocks of the programs' memory."""
    small = hx.llm.load(folder, compress="int8", threads=1)
    kept = [given for given in small._steps.weights.values() if not isinstance(given, hx.Tensor)]
    assert kept
    assert {type(array.base).__name__ for array in kept} == {"PyCapsule"}


@pytest.mark.parametrize("compress", [hx.Compression("auto", bytes=10_000), hx.Compression("int8", tolerance=0.1)])
def test_a_compression_that_measures_is_refused(folder: Path, compress: Any) -> None:
    with pytest.raises(hx.Error, match=r"compress: got a mode that measures the network, need an encoding"):
        hx.llm.load(folder, compress=compress)


RESIDENT = """
import gc, sys
import hexane as hx
from pathlib import Path
def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
model = hx.llm.load(sys.argv[1], threads=1)
print((resident() - before - model.memory["cache"]) / model.memory["weights"])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read the resident memory from")
def test_weights_are_in_memory_once_and_once_as_kernels_pack_them(tmp_path: Path) -> None:
    folder = tiny_llm.write(tmp_path / "wide", dim=512, hidden=2048, layers=3)
    found = subprocess.run([sys.executable, "-c", RESIDENT, folder], check=True, capture_output=True, text=True)
    assert float(found.stdout) < 2.7


def test_memory_says_weights_and_cache(model: hx.llm.LanguageModel, folder: Path) -> None:
    c = tiny_llm.config()
    memory = model.memory
    assert 4 * c.parameters <= memory["weights"] <= 4.4 * c.parameters  # with tables of angles
    assert memory["cache"] == 2 * 4 * c.layers * c.kv_heads * c.head_dim * c.seq
    assert memory["cache_per_1024_tokens"] == memory["cache"] * 1024 // c.seq
    assert hx.llm.load(folder, context=16).memory["cache"] == memory["cache"] // 20


def test_a_context_that_is_full_ends_the_text(folder: Path) -> None:
    answer = hx.llm.load(folder, context=20, threads=1).generate("abcdefgh", temperature=2.0, seed=1, steps=100)
    answer.text()
    assert answer.ended_by in ("seq", "end")
    assert len(answer.prompt) + len(answer.tokens) <= 20
    for wrong in (0, 321, True):
        with pytest.raises(hx.Error, match=f"context: got {wrong}, need 1 to the 320 of the model"):
            hx.llm.load(folder, context=wrong)


def test_a_stop_ends_the_answer_before_it(model: hx.llm.LanguageModel) -> None:
    whole = model.generate("tide", temperature=1.5, seed=3, steps=40).text()
    assert len(whole) > 9
    stop = whole[5:8]
    answer = model.generate("tide", temperature=1.5, seed=3, steps=40, stop=[stop])
    pieces = list(answer)
    assert "".join(pieces) == whole[: whole.index(stop)]
    assert answer.ended_by == "stop"
    part = model.generate("tide", temperature=1.5, seed=3, steps=40, stop=[whole[-2:] + "\0"])
    assert part.text() == whole  # what a stop may begin with comes at the end
    with pytest.raises(hx.Error, match=r"stop: got '', need texts that are not empty"):
        model.generate("tide", stop=[""])


def test_a_stop_over_several_tokens_is_never_shown_in_part(model: hx.llm.LanguageModel) -> None:
    stream = hx.train.text.TextStream(model.tokenizer, [])
    ids = model.tokenizer.encode("one END two", begin=False)
    answer = Answer([0], iter(ids), stream, steps=99, context=99, stop=["END", "never"])
    assert "".join(answer) == "one "
    assert answer.ended_by == "stop"


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "prompt: got an empty prompt"),
        ("a" * 400, {}, "prompt: got 400 tokens, need at most the 320"),
        ("a", {"temperature": -1.0}, "temperature: got -1.0"),
        ("a", {"steps": -1}, "steps: got -1"),
        ([{"role": "user"}], {}, "messages: got .*need objects with role and content"),
    ],
)
def test_bad_requests_are_told_at_once(model: hx.llm.LanguageModel, prompt: Any, options: Any, words: str) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    with pytest.raises(hx.Error, match=words):
        model.generate(prompt, **options)


def test_ids_beyond_the_vocabulary_have_no_logits(model: hx.llm.LanguageModel) -> None:
    with pytest.raises(hx.Error, match=r"prompt: got the id -1"):
        model.logits([-1])


# ---- where models are ----


def cached(tmp_path: Path, folder: Path, revision: str = "0123abcd") -> Path:
    """The folder as a repository in a cache of Hugging Face: links to blobs."""
    repository = tmp_path / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(folder.iterdir())):
        (repository / "blobs" / f"b{i}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/b{i}")
    return snapshot


def test_a_folder_without_a_model_is_said_to_have_none(tmp_path: Path) -> None:
    """The error was about a missing tokenizer."""
    with pytest.raises(hx.Error, match=r"got a folder without a model, need config\.json"):
        hx.llm.load(tmp_path)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_repository_of_the_local_cache_is_a_model(
    model: hx.llm.LanguageModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "huggingface" if variable == "XDG_CACHE_HOME" else tmp_path
    snapshot = cached(root, folder)
    monkeypatch.setenv(variable, str(tmp_path / "hub" if variable == "HF_HUB_CACHE" else tmp_path))
    assert hx.llm.find_model("org/tiny") == snapshot
    want = model.generate("tide", **GREEDY).text()
    assert hx.llm.load("org/tiny", threads=1).generate("tide", **GREEDY).text() == want


def test_a_cache_that_leads_elsewhere_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(hx.Error, match=r"no such folder and no such repository in .*: `hf download org/tiny`"):
        hx.llm.load("org/tiny")
    snapshot = cached(tmp_path, folder)
    reference = tmp_path / "hub" / "models--org--tiny" / "refs" / "main"
    for bad in ("../../..", "", "a/b", "x" * 300):
        reference.write_text(bad)
        with pytest.raises(hx.Error, match=r"refs/main: got"):
            hx.llm.load("org/tiny")
    reference.write_text("99")
    with pytest.raises(hx.Error, match=r"got no folder snapshots/99"):
        hx.llm.load("org/tiny")
    reference.write_text("0123abcd")
    (tmp_path / "secret").write_text("{}")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(hx.Error, match=r"tokenizer.json: got a link out of the repository"):
        hx.llm.load("org/tiny")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to("../../blobs/gone")
    with pytest.raises(hx.Error, match=r"tokenizer.json: got a link to a missing blob"):
        hx.llm.load("org/tiny")
    monkeypatch.chdir(tmp_path)  # where the path below leads nowhere
    with pytest.raises(
        hx.Error, match=r"GGUF file, or a repository \(org/name\) in Hugging Face's local cache; nothing is downloaded$"
    ):
        hx.llm.load("../etc/passwd")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("place", ["folder", "snapshot"])
def test_a_link_that_leaves_the_folder_is_refused_by_name(folder: Path, tmp_path: Path, place: str, name: str) -> None:
    path = cached(tmp_path, folder)
    if place == "folder":
        path = Path(shutil.copytree(path, tmp_path / "model"))  # copies what the links lead to
    (tmp_path / "secret").write_bytes((path / name).read_bytes())
    (path / name).unlink()
    (path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(hx.Error, match=rf"'{name}': got a link to '.*secret', need .*; copy the file into the folder"):
        hx.llm.load(path, threads=1).generate(CHAT, **GREEDY)
    assert hx.llm.load(folder, threads=1)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_to_a_file_of_the_same_folder_is_followed(folder: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(folder, tmp_path / "model"))
    (path / name).rename(path / "other")
    (path / name).symlink_to("other")
    assert hx.llm.load(path, threads=1).generate("tide", **GREEDY).text()


def test_a_file_of_weights_next_to_its_config_is_a_model(
    model: hx.llm.LanguageModel, folder: Path, tmp_path: Path
) -> None:
    """Also under another name than the usual one, next to other weights."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    want = model.generate("tide", **GREEDY).text()
    assert hx.llm.load(tmp_path / "other.safetensors", threads=1).generate("tide", **GREEDY).text() == want
    (tmp_path / "config.json").unlink()
    with pytest.raises(hx.Error, match=r"config.json"):
        hx.llm.load(tmp_path / "other.safetensors")


def test_a_model_without_tokenizer_or_template_says_so(folder: Path, tmp_path: Path) -> None:
    plain = tiny_llm.write(tmp_path / "plain", template=None)
    with pytest.raises(hx.Error, match=r"got no chat template"):
        hx.llm.load(plain, threads=1).generate(CHAT)
    (plain / "tokenizer.json").unlink()
    with pytest.raises(hx.Error, match=r"into .*plain \(next to config.json\), or give tokenizer=a file$"):
        hx.llm.load(plain)
    hx.llm.load(plain, threads=1, tokenizer=folder / "tokenizer.json")


@pytest.mark.parametrize("copying", [pickle.dumps, copy.deepcopy])
def test_a_model_is_loaded_in_each_process(model: hx.llm.LanguageModel, copying: Callable[[Any], Any]) -> None:
    with pytest.raises(hx.UnsupportedError, match=r"got a language model.*load it in each process"):
        copying(model)
