"""CLIP and SigLIP by `hx.llm.load`: vectors of texts and images, similarities, `hexane embed`."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clip_encoders
import hexane as hx
from clip_encoders import COUNT, END, SIDE, VOCAB
from command import Cli, in_this_process
from hexane.graph import Array
from in_16_bits import two_folders

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")

RECORDED: dict[str, dict[str, Any]] = json.loads(clip_encoders.RECORD.read_text())
BOTH = [name for name in clip_encoders.CASES if clip_encoders.has_both(name)]
CLOSE = 1e-5  # relative
PIXELS = {"size": {"height": SIDE, "width": SIDE}, "crop_size": SIDE}
# The first two recorded texts, whose marks the tokenizer adds.
TEXTS = [" ".join(f"w{i}" for i in clip_encoders.ids()[0][row, 1:end]) for row, end in ((0, COUNT - 1), (1, 5))]


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def tokenizer_json(end: int) -> dict[str, Any]:
    """A word `wN` is the id N."""
    import tokenizers

    ids = {f"w{i}": i for i in range(VOCAB)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=ids, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    marks = (f"w{end}", end), ("w2", 2)
    made.post_processor = tokenizers.processors.BertProcessing(*marks)
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def folder_of(name: str, tmp_path: Path, tokens: int = COUNT, **fields: Any) -> Path:
    arrays = dict(clip_encoders.tensors(RECORDED[name]["shapes"]))
    folder = clip_encoders.write_folder(tmp_path / "model", name, arrays)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(END)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": tokens, "pad_token": "w1", **fields}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return folder


def recorded(name: str, key: str, rows: int) -> Array:
    return np.array(RECORDED[name]["outputs"][key]).reshape(rows, -1)


def image(seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (20, 17, 3), dtype=np.uint8)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.mark.parametrize("name", BOTH)
def test_vectors_are_the_features_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts by the tokenizer: CLIP's without the padding of the record, SigLIP's with it. Images without a processor."""
    model = hx.llm.load(folder_of(name, tmp_path), threads=1)
    monkeypatch.setattr(model.images, "processor", lambda image, channels, where: image)
    want = recorded(name, "text_features", 3)[:2]
    assert off(model.embed(TEXTS), want) <= CLOSE
    assert off(model.embed(TEXTS[1]), want[1]) <= CLOSE
    pictures = list(clip_encoders.pixels())
    assert off(model.embed(images=pictures), recorded(name, "image_features", 2)) <= CLOSE
    similar = recorded(name, "logits_per_image", 2)[:, :2]
    assert off(model.similarity(TEXTS, pictures), similar) <= CLOSE
    assert np.linalg.norm(model.embed(TEXTS[0], normalize=True)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "key"),
    [("clip text", "pooler_output"), ("clip text projection", "text_embeds"), ("siglip text", "pooler_output")],
)
def test_texts_alone_have_the_vectors_of_transformers(name: str, key: str, tmp_path: Path) -> None:
    model = hx.llm.load(folder_of(name, tmp_path), threads=1)
    assert off(model.embed(TEXTS), recorded(name, key, 3)[:2]) <= CLOSE
    with pytest.raises(hx.Error, match="got an encoder of texts alone"):
        model.embed(images=image(0))


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_many_texts_are_each_alone(name: str, tmp_path: Path) -> None:
    model = hx.llm.load(folder_of(name, tmp_path, tokens=16), threads=1)
    texts = [" ".join(f"w{3 + (i + j) % 30}" for j in range(i)) for i in range(1, 20)]  # the last ones are cut off
    got = model.embed(texts)
    assert off(got, np.stack([model.embed(one) for one in texts])) <= CLOSE
    assert model.embed([]).shape == (0, got.shape[1])


def test_siglip_spells_as_its_code_and_pads_as_its_files_say(tmp_path: Path) -> None:
    """transformers' SiglipTokenizer takes punctuation and upper case away before its vocabulary reads a text."""
    plain = hx.llm.load(folder_of("siglip", tmp_path), threads=1)
    assert plain.tokenizer.encode(["W3, w4!"]) == [[2, 0, 0, END, *[1] * 7]]
    spelled = hx.llm.load(folder_of("siglip", tmp_path, tokenizer_class="SiglipTokenizer"), threads=1)
    assert spelled.tokenizer.encode([" W3,   w4!"]) == [[2, 3, 4, END, *[1] * 7]]
    left = hx.llm.load(folder_of("siglip", tmp_path, padding_side="left", pad_token={"content": "w9"}), threads=1)
    assert left.tokenizer.encode(["w3"]) == [[*[9] * 8, 2, 3, END]]


def test_a_half_needs_its_own_files_alone(tmp_path: Path) -> None:
    folder = folder_of("clip", tmp_path)
    (folder / "tokenizer.json").unlink()
    model = hx.llm.load(folder, threads=1)
    assert model.embed(images=image(0)).shape == (20,)
    with pytest.raises(hx.Error, match=r"got no tokenizer, need tokenizer\.json"):
        model.embed("w3")
    folder = folder_of("clip", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    model = hx.llm.load(folder, threads=1)
    assert model.embed("w3").shape == (20,)
    with pytest.raises(hx.Error, match=r"got no preprocessor_config\.json"):
        model.embed(images=image(0))


def test_other_inputs_are_errors(tmp_path: Path) -> None:
    folder = folder_of("clip", tmp_path)
    model = hx.llm.load(folder, threads=1)
    for texts, images, said in (
        (None, None, "got texts and images, or none"),
        ("w3", image(0), "got texts and images, or none"),
        ([3], None, "texts: got int, need texts"),
        (3, None, "texts: got int, need texts"),
        (Path("a.png"), None, "got a path, need texts, or images="),
        ([Path("a.png")], None, "need texts"),
    ):
        with pytest.raises(hx.Error, match=said):
            model.embed(texts, images=images)
    for option in ({"compress": "int8"}, {"context": 5}):
        with pytest.raises(hx.Error, match="for CLIP or SigLIP, need none"):
            hx.llm.load(folder, **option)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(END)).replace(f'"w{END}": {END}', '"w36": 99'))
    with pytest.raises(hx.Error, match="got 37 tokens, need the tokenizer's 100"):
        hx.llm.load(folder, threads=1).embed("w3")


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_embed_prints_similarities(name: str, cli: Cli, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hexane[images]'")
    folder, files = folder_of(name, tmp_path), [tmp_path / "a.png", tmp_path / "b.png"]
    for i, file in enumerate(files):
        pillow.fromarray(image(i)).save(file)
    given = [
        *(part for one in files for part in ("--image", one)),
        *(part for one in TEXTS for part in ("--text", one)),
    ]
    want = hx.llm.load(folder, threads=1).similarity(TEXTS, files)
    ended = cli("embed", folder, *given)
    assert ended.code == 0, ended.err
    for number in want.reshape(-1):
        assert f"{float(number):.4f}" in ended.out
    found = json.loads(cli("embed", folder, *given, "--json").out)
    assert (found["images"], found["texts"]) == ([str(one) for one in files], TEXTS)
    assert off(np.array(found["similarities"]), want) <= CLOSE
    assert cli("embed", folder, "--text", TEXTS[0], "-o", tmp_path / "t.npy").code == 0
    assert off(np.load(tmp_path / "t.npy")[0], recorded(name, "text_features", 3)[0]) <= CLOSE
    assert cli("embed", folder, "--image", files[0]).code == 0
    assert "-o: got it with texts and images" in cli("embed", folder, *given, "-o", tmp_path / "x.npy").err
    assert "--text, --lines or --image: got none" in cli("embed", folder).err
    assert "--prompt: got it for an encoder of images" in cli("embed", folder, "--text", "a", "--prompt", "b").err


@pytest.mark.parametrize("name", BOTH)
def test_a_folder_in_16_bits_computes_as_in_fp32(name: str, tmp_path: Path) -> None:
    short, wide = [hx.llm.load(one, threads=1) for one in two_folders(folder_of(name, tmp_path), ml_dtypes.bfloat16)]
    assert short.embed(TEXTS).tobytes() == wide.embed(TEXTS).tobytes()
    assert short.embed(images=[image(0)]).tobytes() == wide.embed(images=[image(0)]).tobytes()
