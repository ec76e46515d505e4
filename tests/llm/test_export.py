"""`hexane llm -o`: a package with prefill and decode over one cache, and what an app needs next to it."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import Cli, in_this_process
from decoders import decoder_weights
from gguf_llm import sentence_pieces, write_model
from hexane.errors import Error
from hexane.llm import export, load
from hexane.llm.calibration import TEXT
from hexane.llm.export import packed
from hexane.train.decoder.config import layer
from hexane.train.decoder.one_token import block


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.write(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.mark.parametrize("target", [None, "M4"])
def test_the_package_makes_the_text_of_the_model(folder: Path, tmp_path: Path, target: str | None) -> None:
    """A prompt of one and a half blocks, then ten tokens, each the likeliest."""
    model = load(folder, context=64, threads=1)
    made = export(model, tmp_path / "out", target=target, prefill=16)
    assert made.distance < 0.02
    assert made.agrees == 1
    net = hx.compile_functions(tmp_path / "out" / "model.mlpackage")
    ids = [int(i) for i in np.random.default_rng(1).integers(0, tiny_llm.VOCAB, 24)]

    def logits(name: str, **given: list[int]) -> np.ndarray:
        return np.asarray(net[name](**{k: np.array(v, np.int32) for k, v in given.items()})).reshape(-1)

    logits("prefill", tokens=ids[:16], position=[0], last=[15])
    row = logits("prefill", tokens=ids[16:] + [0] * 8, position=[16], last=[7])
    for _ in range(10):
        want = model.logits(ids)[-1]
        assert np.linalg.norm(row - want) < 0.02 * np.linalg.norm(want)
        ids.append(int(want.argmax()))
        row = logits("decode", token=ids[-1:], position=[len(ids) - 1])


def test_the_folder_has_what_an_app_needs(folder: Path, tmp_path: Path) -> None:
    model = load(folder, context=64, threads=1)
    export(model, tmp_path / "out", target="M4", prefill=16)
    about = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (about["functions"], about["context"]) == ({"prefill": 16, "decode": 1}, 64)
    assert about["ends"] == sorted(model.stops)
    assert set(about["parts"]) == {"prefill", "decode"}
    compile((tmp_path / "out" / "run.py").read_text(), "run.py", "exec")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_prompts_of_several_lengths(folder: Path, tmp_path: Path) -> None:
    """Each length is a function; the script takes the shortest that holds the prompt's rest."""
    model = load(folder, context=40, threads=1)
    made = export(model, tmp_path / "out", target="M4", prefill=(16, 8, 32))
    assert made.prefill == (8, 16, 32)
    assert set(made.parts) == {"prefill_8", "prefill_16", "prefill_32", "decode"}
    about = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert about["functions"] == {"prefill_8": 8, "prefill_16": 16, "prefill_32": 32, "decode": 1}
    net = hx.compile_functions(tmp_path / "out" / "model.mlpackage")
    ids = [int(i) for i in np.random.default_rng(1).integers(0, tiny_llm.VOCAB, 32)]
    want = model.logits(ids)
    for count in (32, 8, 16):
        given = {"tokens": ids[:count], "position": [0], "last": [count - 1]}
        row = np.asarray(net[f"prefill_{count}"](**{k: np.array(v, np.int32) for k, v in given.items()})).reshape(-1)
        assert np.linalg.norm(row - want[count - 1]) < 0.02 * np.linalg.norm(want[count - 1])
    alone = export(model, tmp_path / "one", target="M4", prefill=32)
    sizes = [next(one.folder.rglob("weight.bin")).stat().st_size for one in (made, alone)]
    assert sizes[0] < 1.1 * sizes[1]  # weights are stored once; masks and places are of each length
    for prompt in ("abc", "a longer prompt", "a prompt of more than 32 tokens, is"):
        text = model.generate(prompt, temperature=0).text()
        assert text_of_script(tmp_path / "out", prompt, tmp_path / f"fake {len(prompt)}") == text


def test_core_ml_s_tools_load_both_functions_and_the_states(folder: Path, tmp_path: Path) -> None:
    ct = pytest.importorskip("coremltools", reason="coremltools is not installed: pip install --group test")
    export(load(folder, context=64, threads=1), tmp_path / "out", prefill=16)
    about = json.loads((tmp_path / "out" / "manifest.json").read_text())
    spec = ct.utils.load_spec(str(tmp_path / "out" / "model.mlpackage"))
    functions = {f.name: f for f in spec.description.functions}
    assert set(functions) == {"prefill", "decode"}
    for function in functions.values():
        assert sorted(state.name for state in function.state) == sorted(about["states"][0])


CORE_ML = """
import types
import numpy as np
import hexane as hx

held = {}


class MLModel:
    def __init__(self, path, function_name=None, compute_units=None):
        made = held.setdefault(path, hx.compile_functions(path))
        self.net = next(iter(made.values())) if function_name is None else made[function_name]

    def make_state(self):
        return "state"

    def predict(self, given, state=None):
        assert given.keys() == {port.name for port in self.net.inputs}
        made = self.net(**given)
        return made if isinstance(made, dict) else {self.net.outputs[0].name: np.asarray(made)}


models = types.SimpleNamespace(MLModel=MLModel)
ComputeUnit = types.SimpleNamespace(CPU_AND_NE=0)
"""


def text_of_script(folder: Path, prompt: str, place: Path) -> str:
    """What run.py prints where Hexane stands in for Core ML."""
    place.mkdir()
    (place / "coremltools.py").write_text(CORE_ML)
    paths = os.pathsep.join([str(place), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, folder / "run.py", prompt],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.removesuffix("\n")


def test_the_script_makes_the_text_of_a_folder_s_model(tmp_path: Path) -> None:
    """The tokenizer joins words by spaces, as SentencePiece does, and the model has rows beyond it."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
    path = tiny_llm.write(tmp_path / "tiny", vocab=tiny_llm.VOCAB + 30)
    words = {f"▁{one}": i for i, one in enumerate([*tiny_llm.LETTERS[1:], *"éñ漢字"])}
    words["<s>"] = len(words)
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="▁?"))
    inner.pre_tokenizer, inner.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    inner.add_special_tokens(["<s>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", words["<s>"])]
    )
    inner.save(str(path / "tokenizer.json"))
    model = load(path, context=48, threads=1)
    export(model, tmp_path / "out", prefill=16)
    want = model.generate("a b c", temperature=0).text()
    assert " " in want.strip()
    assert text_of_script(tmp_path / "out", "a b c", tmp_path / "fake") == want


def test_the_script_has_the_tokenizer_of_a_gguf_file(tmp_path: Path) -> None:
    """A tokenizer.json next to the file may be that of another model."""
    metadata = sentence_pieces()
    kept = [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind != 6]  # random bytes are no text
    for key in ("tokens", "token_type", "scores"):
        metadata[f"tokenizer.ggml.{key}"] = [metadata[f"tokenizer.ggml.{key}"][i] for i in kept]
    file, _ = write_model(tmp_path / "m.gguf", metadata)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    model = load(file, context=24, threads=1)
    export(model, tmp_path / "out", prefill=16)
    assert not (tmp_path / "out" / "config.json").exists()
    want = model.generate("hello a", temperature=0).text()
    assert len(want) > 10
    assert text_of_script(tmp_path / "out", "hello a", tmp_path / "fake") == want


@pytest.mark.parametrize(("share", "target"), [(0.9, "M4"), (0.7, None)])
def test_a_large_model_becomes_several_packages(folder: Path, tmp_path: Path, share: float, target: str | None) -> None:
    """The text is that of one package, and no package is larger than was asked for."""
    model = load(folder, context=48, threads=1)
    one = export(model, tmp_path / "one", prefill=16)
    most = int(share * 2 * sum(w.size for w in model.weights.values()))
    made = export(model, tmp_path / "several", prefill=16, target=target, most_bytes=most)
    assert len(made.packages) >= 2
    assert made.agrees == 1
    assert made.distance < 0.02
    for name in made.packages:
        assert (tmp_path / "several" / name / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size < 1.05 * most
    about = json.loads((tmp_path / "several" / "manifest.json").read_text())
    assert about["models"] == list(made.packages)
    assert sum(map(len, about["states"])) == len(model.state_names)
    if target:
        assert len(about["parts"]) == 2 * len(made.packages)
    assert one.packages == ("model.mlpackage",)
    assert text_of_script(tmp_path / "several", "abc", tmp_path / "fake") == text_of_script(
        tmp_path / "one", "abc", tmp_path / "fake1"
    )


def test_a_layer_that_no_package_holds_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"layer 1, with the embedding or the head: got \d+ bytes of weights"):
        export(load(folder, context=32, threads=1), tmp_path / "out", prefill=8, most_bytes=1000)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", range(20))
def test_layers_are_packed_into_the_fewest_packages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 50, rng.integers(1, 9))]
    most = max(sizes) + int(rng.integers(0, 60))
    runs = packed(sizes, most)
    assert [i for run in runs for i in run] == list(range(len(sizes)))
    assert max(sum(sizes[i] for i in run) for run in runs) <= most
    ways = [cuts for k in range(len(sizes)) for cuts in combinations(range(1, len(sizes)), k)]
    known = [[sum(sizes[a:b]) for a, b in pairwise([0, *cuts, len(sizes)])] for cuts in ways]
    fewest = min(len(one) for one in known if max(one) <= most)
    assert len(runs) == fewest


def test_weights_are_stored_once_and_in_the_model_s_encoding(folder: Path, tmp_path: Path) -> None:
    sizes = {}
    for mode in (None, "int8"):
        model = load(folder, context=64, threads=1, compress=mode, force=True)
        sizes[mode] = export(model, tmp_path / str(mode), prefill=16).bytes
    parameters = tiny_llm.config().parameters
    assert sizes[None] < 1.5 * 2 * parameters + 60_000  # fp16, once
    assert sizes["int8"] < 0.8 * sizes[None]  # the programs take 80 KB of both


def test_what_cannot_be_written_is_refused_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    model = load(folder, context=32, threads=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").write_text("")
    with pytest.raises(Error, match="not empty"):
        export(model, tmp_path / "full")
    for wrong in ((), (1, 8), (8, 64)):
        with pytest.raises(Error, match=r"prefill: got .*, need 2 to the 32 tokens"):
            export(model, tmp_path / "out", prefill=wrong)
    with pytest.raises(Error, match="prefill: got 64, need 2 to the 32 tokens"):
        export(model, tmp_path / "out")
    with pytest.raises(Error, match="M99"):
        export(model, tmp_path / "out", target="M99", prefill=8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]


def test_the_command_says_what_it_wrote(cli: Cli, folder: Path, tmp_path: Path) -> None:
    ended = cli(
        "llm", folder, "--target", "M4", "--context", 64, "--prefill", 16, "--threads", 1, "-o", tmp_path / "out"
    )
    assert (ended.code, ended.err) == (0, "")
    assert "room for 64 tokens" in ended.out
    several = cli("llm", folder, "--context", 64, "--prefill", 16, "--package", "75K", "-o", tmp_path / "several")
    assert " packages, room for 64 tokens" in several.out
    assert cli("llm", folder, "--package", "1M").code == 2
    assert cli("llm", folder, "--package", "much", "-o", tmp_path / "no").code != 0
    assert "decode on M4 (h16g): " in ended.out
    assert (
        "(relative L2) from those of the same weights on this CPU; the likeliest token is the same at 100% of the positions checked"
        in ended.out
    )
    few = cli("llm", folder, "--context", 64, "--prefill", 16, "--compress", "int8", "-o", tmp_path / "few")
    assert re.search(r"\[llm\] int8; perplexity \S+, \S+ of the weights as they are", few.err)
    forced = cli(
        "llm", folder, "--context", 64, "--prefill", 16, "--compress", "int8", "--force", "-o", tmp_path / "forced"
    )
    assert "int8; its perplexity was not measured (--force)" in forced.err
    record = json.loads(cli("llm", folder, "--context", 64, "--prefill", 16, "-o", tmp_path / "other", "--json").out)
    assert (record["context"], record["prefill"], record["target"]) == (64, [16], "")
    assert cli("llm", folder, "--context", 64).code == 2
    assert cli("llm", folder, "--target", "M1,M4", "-o", tmp_path / "third").code == 2


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_the_table_of_layers(folder: Path, tmp_path: Path) -> None:
    """The error after the last layer is about that of a whole program for the chip."""
    model = load(folder, context=64, threads=1)
    made = export(model, tmp_path / "out", target="M4", prefill=16)
    with (tmp_path / "out" / "layers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == ["1", "2"]
    assert [float(row["error"]) for row in rows] == pytest.approx([one.error for one in made.layers], rel=0.01)
    ids = [*model.begins, *model.tokenizer.encode(TEXT, begin=False)][:64]
    want = model.logits(ids)[-1]
    net = hx.compile(block(replace(model.config, seq=64), model.weights, 64, 64), target="M4", device="cpu")
    got = np.asarray(
        net(tokens=np.array(ids, np.int32), position=np.zeros(1, np.int32), last=np.array([63], np.int32))
    )[0]
    whole = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0.3 * whole < made.layers[-1].error < 3 * whole
    assert 0 < made.layers[0].own_error < 0.02
    assert made.layers[0].own_error == made.layers[0].error
    assert not (export(model, tmp_path / "host", prefill=16).folder / "layers.csv").exists()


def test_a_layer_that_fp16_does_not_hold_is_named(tmp_path: Path) -> None:
    """The values of layer 2 reach a million; its output projection brings them back."""
    path = tiny_llm.write(tmp_path / "tiny", layers=3)
    config, weights = tiny_llm.config(layers=3), decoder_weights(tiny_llm.config(layers=3))
    weights[layer(1, "self_attn.v_proj")] *= 1e6
    weights[layer(1, "self_attn.o_proj")] /= 1e6
    hx.train.save_llama(tmp_path / "large", config, weights, format="hugging-face")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(path / name, tmp_path / "large" / name)
    model = load(tmp_path / "large", context=32, threads=1)
    with pytest.raises(Error, match=r"fp16 does not hold this model's numbers: layer 2 alone is \S+ off"):
        export(model, tmp_path / "out", target="M4", prefill=16)
    assert not (tmp_path / "out").exists()


def test_a_layer_that_only_the_chip_does_not_hold_is_said(cli: Cli, tmp_path: Path) -> None:
    """Sums of layer 1 lie between 32768, where the engine's accumulator ends, and the largest number of fp16."""
    path = tiny_llm.write(tmp_path / "tiny")
    config, weights = tiny_llm.config(), decoder_weights(tiny_llm.config())
    weights[layer(0, "mlp.down_proj")] *= 750
    hx.train.save_llama(tmp_path / "large", config, weights, format="hugging-face")
    shutil.copyfile(path / "tokenizer.json", tmp_path / "large" / "tokenizer.json")
    (tmp_path / "large" / "tokenizer_config.json").write_text("{}")
    given = ("llm", tmp_path / "large", "--target", "M1", "--context", 48, "--threads", 1)
    assert (
        "in the arithmetic of M1 (h13), numbers of a layer are infinite or NaN (layer 1)"
        in cli(*given, "-o", tmp_path / "out").out
    )
    record = json.loads(cli(*given, "-o", tmp_path / "json", "--json").out)
    assert record["layers"][0]["own_error"] is None
    assert record["layers"][0]["largest"] > 32768


def test_without_a_number_prompts_fit_a_short_context(cli: Cli, folder: Path, tmp_path: Path) -> None:
    ended = cli("llm", folder, "--context", 32, "--threads", 1, "-o", tmp_path / "out", "--json")
    assert json.loads(ended.out)["prefill"] == [32]


def test_numbers_of_prompts_are_checked_before_the_model_is_read(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert "--prefill: got it without -o" in cli("llm", folder, "--prefill", 16).err
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "need numbers such as 64" in cli("llm", tmp_path, "--prefill", "16,", "-o", tmp_path / "out").err


@pytest.mark.parametrize(("target", "most_bytes"), [(None, None), ("M1", None), ("M4", 80_000)])
def test_before_ios18_the_cache_is_an_input(
    folder: Path, tmp_path: Path, target: str | None, most_bytes: int | None
) -> None:
    """Each function is a package of its own, and new rows of the cache are outputs."""
    model = load(folder, context=40, threads=1)
    made = export(model, tmp_path / "out", target=target, prefill=(8, 16), opset="iOS16", most_bytes=most_bytes)
    assert made.distance < 0.02
    assert made.agrees == 1
    about = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert set(about["models"]) == {"prefill_8", "prefill_16", "decode"}
    assert not any(about["states"])
    shape = [model.config.kv_heads, 40, model.config.head_dim]
    names = {f"{what}_{i}" for what in ("keys", "values") for i in range(model.config.layers)}
    assert {name for ports in about["caches"] for name in ports} == names
    assert all(one == shape for ports in about["caches"] for one in ports.values())
    assert len(made.packages) == 3 * len(about["caches"])
    assert (len(about["caches"]) > 1) == (most_bytes is not None)
    for prompt in ("abc", "a longer prompt", "a prompt of more than 32 tokens, is"):
        text = model.generate(prompt, temperature=0).text()
        assert text_of_script(tmp_path / "out", prompt, tmp_path / f"fake {len(prompt)}") == text


def test_core_ml_s_tools_load_packages_for_ios16(folder: Path, tmp_path: Path) -> None:
    ct = pytest.importorskip("coremltools", reason="coremltools is not installed: pip install --group test")
    export(load(folder, context=40, threads=1), tmp_path / "out", prefill=16, opset="iOS16")
    spec = ct.utils.load_spec(str(tmp_path / "out" / "prefill.mlpackage"))
    assert spec.specificationVersion == 7
    assert not spec.description.functions
    assert not spec.description.state
    outputs = {port.name for port in spec.description.output}
    assert {"logits", "new_keys_0", "new_values_0"} <= outputs


def test_an_opset_without_fp16_inputs_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Error, match="got 'iOS15', need iOS16, iOS17 or iOS18"):
        export(load(folder, context=40, threads=1), tmp_path / "out", opset="iOS15")


@pytest.mark.parametrize("mode", ["blockwise4:b32", "palette4"])
def test_encodings_of_ios18_are_refused_before_it(folder: Path, tmp_path: Path, mode: str) -> None:
    model = load(folder, context=40, compress=mode, threads=1, force=True)
    with pytest.raises(Error, match=r"need iOS18 or newer: the encoding of weight model\.embed_tokens"):
        export(model, tmp_path / "out", prefill=16, opset="iOS17")
    assert not (tmp_path / "out").exists()
