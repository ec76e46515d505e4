"""Whisper by `hx.llm.load`: spectrograms, the encoder, logits, and texts, as transformers computes them."""

import json
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
import speech_models
from command import Cli, in_this_process
from hexane.graph import Array
from in_16_bits import two_folders
from speech_models import EACH, END, GENERATIONS, LANGUAGES, LENGTHS, RATE, TASKS, VOCAB, sound

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[chat]'")

RECORDED: dict[str, dict[str, Any]] = json.loads(speech_models.RECORD.read_text())
CLOSE = 1e-5  # relative
TIME = 116  # the token <|0.00|>


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def tokenizer_json() -> str:
    """The id N is the word ` wN`; marks and times are tokens of their own."""
    marks = {**LANGUAGES, **TASKS, "<|endoftext|>": END}
    words = [i for i in range(VOCAB) if i not in (*marks.values(), TIME)]
    ids = {f"\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}w{i}": i for i in words}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=ids, unk_token=next(iter(ids))))
    made.decoder = tokenizers.decoders.ByteLevel()
    fields = json.loads(made.to_str())
    said = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    fields["added_tokens"] = [
        *({"id": i, "content": name, **said, "special": True} for name, i in sorted(marks.items(), key=lambda x: x[1])),
        {"id": TIME, "content": "<|0.00|>", **said, "special": False},
    ]
    return json.dumps(fields)


def folder_of(name: str, tmp_path: Path, generation: str | dict[str, Any] = "german", **changes: Any) -> Path:
    arrays = dict(speech_models.tensors(RECORDED[name]["shapes"]))
    folder = speech_models.write_folder(tmp_path / "model", name, arrays, generation, **changes)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    return folder


def write_wav(path: Path, samples: Array, rate: int = RATE, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.mark.parametrize("name", speech_models.CASES)
def test_features_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of sounds of several lengths, padded to a window."""
    model = hx.llm.load(folder_of(name, tmp_path), threads=1)
    for length in LENGTHS:
        found = model.features(sound(length))
        assert found.dtype == np.float32
        assert found.shape == (1, model.config.mels, 100)
        assert off(found.reshape(-1)[::EACH], np.array(RECORDED[name]["features"][str(length)])) <= CLOSE
        assert float(found.mean(dtype=np.float64)) == pytest.approx(RECORDED[name]["means"][str(length)], abs=1e-5)


@pytest.mark.parametrize("name", speech_models.CASES)
def test_logits_of_the_cache_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Token by token, where transformers has all tokens together."""
    model, features = hx.llm.load(folder_of(name, tmp_path), threads=1), speech_models.features(name)
    states = np.array(RECORDED[name]["states"]).reshape(2, 50, 24)
    assert off(model.encode(features), states) <= CLOSE
    assert off(model.encode(features[1]), states[1]) <= CLOSE
    assert model.encode(features[:0]).shape == (0, 50, 24)
    for row in (0, 1, 0):
        want = np.array(RECORDED[name]["logits"]).reshape(2, 7, VOCAB)[row]
        assert off(model.logits(features[row], speech_models.ids()[row]), want) <= CLOSE


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", speech_models.CASES)
def test_texts_are_those_of_transformers(name: str, generation: str, tmp_path: Path) -> None:
    """70 tokens, or fewer where the folder limits or ends them; the next window begins anew."""
    model = hx.llm.load(folder_of(name, tmp_path, generation), threads=1)
    (fields, asked), want = GENERATIONS[generation], RECORDED[name]["texts"][generation]
    ended = want[-1] in np.atleast_1d(fields["eos_token_id"])
    want = want[:-1] if ended else want
    assert ended or len(want) == fields.get("max_new_tokens", 70)
    assert model.tokens(sound(16000), **asked) == want
    assert model.tokens(np.concatenate([sound(16000)] * 2).astype(np.float64), **asked) == want * 2


def test_a_text_ends_where_the_model_has_no_more_positions(tmp_path: Path) -> None:
    fields = {**GENERATIONS["german"][0], "max_length": 448}
    model = hx.llm.load(folder_of("whisper", tmp_path, fields), threads=1)
    found = model.tokens(sound(16000), "de")
    assert found[:70] == RECORDED["whisper"]["texts"]["german"]
    assert len(found) == 90 - 4  # without the prompt


def test_the_language_is_detected_in_the_first_window(tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("whisper", tmp_path, "detected"), threads=1)
    code = model.language(sound(16000))
    features, start = model.features(sound(16000))[0], speech_models.START
    row = model.logits(features, [start])[0]
    assert LANGUAGES[f"<|{code}|>"] == max(LANGUAGES.values(), key=lambda i: row[i])
    long = np.concatenate([sound(16000), sound(16000, 3)])
    assert model.tokens(long) == model.tokens(long, code)
    assert hx.llm.load(folder_of("whisper", tmp_path, "english"), threads=1).language(sound(9)) is None


def test_a_text_is_what_the_tokenizer_says_of_its_tokens(tmp_path: Path) -> None:
    """Windows follow each other, without marks and times."""
    model = hx.llm.load(folder_of("whisper", tmp_path), threads=1)
    samples = np.concatenate([sound(16000), sound(5000, 3)])
    windows = [model.tokens(one, "de") for one in (samples[:16000], samples[16000:])]
    text = " ".join(f"w{i}" for ids in windows for i in ids)
    assert model.transcribe(samples, language="de", task="transcribe") == text
    assert model.transcribe(samples, language="<|DE|>") == text
    assert [*model.pieces(samples, "de")] == ["".join(f" w{i}" for i in ids) for ids in windows]
    assert model.tokenizer.decode([END, 7, TIME, LANGUAGES["<|de|>"], 8]) == " w7 w8"


def test_a_wav_file_is_its_samples(tmp_path: Path) -> None:
    """Channels are averaged."""
    model, samples = hx.llm.load(folder_of("whisper", tmp_path), threads=1), sound(12000)
    mono = write_wav(tmp_path / "mono.wav", samples)
    stereo = write_wav(tmp_path / "stereo.wav", np.stack([samples, samples], 1), channels=2)
    want = model.features((samples * 32767).astype(np.int16).astype(np.float32) / 32768)
    for path in (mono, stereo, str(mono)):
        assert np.array_equal(model.features(path), want)
    sided = write_wav(tmp_path / "sided.wav", np.stack([samples, 0 * samples], 1), channels=2)
    assert not np.array_equal(model.features(sided), want)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(0, np.float32), "got no samples, need a sound"),
        (np.zeros((2, 9), np.float32), r"got float32 of shape \(2, 9\), need floats from -1 to 1, one channel"),
        (np.zeros(9, np.int16), r"got int16 of shape \(9,\), need floats from -1 to 1"),
        (np.full(9, np.nan, np.float32), "got samples that are not finite"),
        (
            np.full(9, 32767, np.float32),
            "got samples up to 32767, need numbers from -1 to 1: int16 ones divided by 32768",
        ),
        (np.full(9, 1e300), r"got samples up to 1e\+300"),
        (None, "need floats from -1 to 1"),
        ("nothing.wav", "nothing.wav"),
    ],
)
def test_other_sounds_are_errors(given: Any, said: str, tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("whisper", tmp_path), threads=1)
    for call in (model.transcribe, model.pieces, model.tokens, model.features, model.language):
        with pytest.raises(hx.Error, match=said):
            call(given)


def test_wav_files_of_other_rates_and_without_samples_are_errors(tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("whisper", tmp_path), threads=1)
    with pytest.raises(hx.Error, match=r"got 8000 samples a second, need 16000: `ffmpeg -i IN.wav -ar 16000 OUT.wav`"):
        model.transcribe(write_wav(tmp_path / "a.wav", sound(800), rate=8000))
    with pytest.raises(hx.Error, match="got no samples, need a sound"):
        model.transcribe(write_wav(tmp_path / "a.wav", sound(0)))
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(hx.Error, match="is no wav file of PCM samples"):
        model.transcribe(tmp_path / "a.wav")


def test_a_language_may_be_named(tmp_path: Path) -> None:
    """Folders of models that were trained further often have the name in generation_config.json."""
    model = hx.llm.load(folder_of("whisper", tmp_path), threads=1)
    for name in ("German", "german", " DE ", "<|de|>"):
        assert model.prompt.asked_language(name) == LANGUAGES["<|de|>"]
    with pytest.raises(hx.Error, match="language: got 'hindi', need one of de, en, fr"):
        model.pieces(sound(9), "hindi")
    fields = {**GENERATIONS["german"][0], "language": "french", "task": "translate"}
    own = hx.llm.load(folder_of("whisper", tmp_path, fields), threads=1)
    assert own.tokens(sound(16000)) == RECORDED["whisper"]["texts"]["translated"]
    english = hx.llm.load(folder_of("whisper", tmp_path, "english"), threads=1)
    assert english.prompt.asked_language("English") is None


def test_languages_and_tasks_that_the_model_lacks_are_errors(tmp_path: Path) -> None:
    model = hx.llm.load(folder_of("whisper", tmp_path), threads=1)
    with pytest.raises(hx.Error, match="language: got 'xx', need one of de, en, fr"):
        model.pieces(sound(9), "xx")
    with pytest.raises(hx.Error, match="task: got 'sing', need transcribe or translate"):
        model.tokens(sound(9), task="sing")
    english = hx.llm.load(folder_of("whisper", tmp_path, "english"), threads=1)
    assert english.tokens(sound(16000), "en", "transcribe") == RECORDED["whisper"]["texts"]["english"]
    with pytest.raises(hx.Error, match="language: got 'de', need none: this model has English alone"):
        english.tokens(sound(9), "de")
    with pytest.raises(hx.Error, match="task: got 'translate', need transcribe: this model has no other task"):
        english.tokens(sound(9), task="translate")
    fields = {key: one for key, one in GENERATIONS["german"][0].items() if key != "lang_to_id"}
    unnamed = hx.llm.load(folder_of("whisper", tmp_path, fields), threads=1)
    with pytest.raises(hx.Error, match=r"language: got 'en', need none: generation_config\.json has no lang_to_id"):
        unnamed.tokens(sound(9), "en")


@pytest.mark.parametrize(
    ("features", "ids", "said"),
    [
        (np.zeros((80, 99), np.float32), [1], r"need floats of shape \(80, 100\)"),
        (np.zeros((80, 100), np.int32), [1], "got int32"),
        (np.zeros((2, 80, 100), np.float32), [1], "got 2 windows, need one"),
        (np.zeros((80, 100), np.float32), [], "ids: got 0, need 1 to 90"),
        (np.zeros((80, 100), np.float32), [0] * 91, "ids: got 91, need 1 to 90"),
        (np.zeros((80, 100), np.float32), [0, VOCAB], "ids: got 120, need 0 to 119"),
        (np.zeros((80, 100), np.float32), [-1], "ids: got -1, need 0 to 119"),
    ],
)
def test_other_features_and_ids_are_errors(features: Array, ids: list[int], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.llm.load(folder_of("whisper", tmp_path), threads=1).logits(features, ids)


@pytest.mark.parametrize(
    ("file", "fields", "said"),
    [
        ("generation_config", {"num_beams": 5}, "num_beams: got 5, need 1: each token is the likeliest one"),
        ("generation_config", {"do_sample": True}, "do_sample: got True, need False"),
        ("generation_config", {"logprob_threshold": -1.0}, "logprob_threshold: got -1.0, need no such field"),
        ("generation_config", {"eos_token_id": [END, VOCAB]}, "eos_token_id: got 120, need ids from 0 to 119"),
        ("generation_config", {"suppress_tokens": 3}, "suppress_tokens: got 3, need a list of ids"),
        ("generation_config", {"lang_to_id": [3]}, r"lang_to_id: got \[3\], need an object of ids"),
        ("generation_config", {"task_to_id": {"sing": 3}}, "task_to_id: got {'sing': 3}, need ids of transcribe and"),
        ("generation_config", {"forced_decoder_ids": [[2, 3]]}, r"forced_decoder_ids: got \[\[2, 3\]\], need pairs"),
        ("generation_config", {"max_length": 0}, "max_length: got 0, need an integer from 1 on"),
        ("generation_config", {"language": 3}, "language: got 3, need a text"),
        ("preprocessor_config", {"feature_size": 128}, "feature_size: got 128, need the 80 of num_mel_bins"),
        ("preprocessor_config", {"chunk_length": 30}, "chunk_length: got 30, need 1: the network takes 100 frames"),
        ("preprocessor_config", {"hop_length": 0}, "hop_length: got 0, need an integer from 1 on"),
        ("preprocessor_config", {"n_fft": 401}, "n_fft: got 401, need an even number"),
        ("preprocessor_config", {"sampling_rate": 8000}, "sampling_rate: got 8000, need 16000"),
        ("preprocessor_config", {"dither": 0.1}, "dither: got 0.1, need 0.0"),
        ("preprocessor_config", {"fmax": 4000}, "fmax: got 4000, need no such field"),
    ],
)
def test_fields_that_change_texts_are_named(file: str, fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = folder_of("whisper", tmp_path)
    path = folder / f"{file}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(hx.Error, match=said):
        hx.llm.load(folder, threads=1).transcribe(sound(9))


def test_the_features_may_stand_in_processor_config(tmp_path: Path) -> None:
    """As transformers 5 writes them."""
    folder = folder_of("whisper", tmp_path)
    want = hx.llm.load(folder, threads=1).features(sound(999))
    fields = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(hx.Error, match=r"got no preprocessor_config\.json, need it"):
        hx.llm.load(folder, threads=1).features(sound(999))
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": fields}))
    assert np.array_equal(hx.llm.load(folder, threads=1).features(sound(999)), want)


def test_an_old_folder_without_a_generation_config_has_its_fields_in_config(tmp_path: Path) -> None:
    fields = {key: one for key, one in GENERATIONS["english"][0].items() if "times" not in key and "is_" not in key}
    folder = folder_of("whisper", tmp_path, **fields)
    (folder / "generation_config.json").unlink()
    assert hx.llm.load(folder, threads=1).tokens(sound(16000)) == RECORDED["whisper"]["texts"]["english"]


def test_damaged_and_missing_tokenizers_are_errors(tmp_path: Path) -> None:
    folder = folder_of("whisper", tmp_path)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(hx.Error, match="need an undamaged tokenizer"):
        hx.llm.load(folder, threads=1).transcribe(sound(9))
    (folder / "tokenizer.json").write_text(tokenizer_json().replace(f": {VOCAB - 1}", f": {VOCAB}"))
    with pytest.raises(hx.Error, match="got 120 tokens, need the tokenizer's 121"):
        hx.llm.load(folder, threads=1).transcribe(sound(9))
    (folder / "tokenizer.json").unlink()
    model = hx.llm.load(folder, threads=1)
    assert len(model.tokens(sound(9), "de")) == 70
    with pytest.raises(hx.Error, match=r"got no tokenizer\.json, need it"):
        model.transcribe(sound(9))
    (tmp_path / "own.json").write_text(tokenizer_json())
    assert hx.llm.load(folder, threads=1, tokenizer=tmp_path / "own.json").transcribe(sound(9), "de")


def test_weights_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    arrays = dict(speech_models.tensors(RECORDED["whisper"]["shapes"]))
    arrays["model.decoder.layer_norm.weight"][3] = np.nan
    folder = speech_models.write_folder(tmp_path / "model", "whisper", arrays, "detected")
    with pytest.raises(hx.Error, match="got logits that are not finite"):
        hx.llm.load(folder, threads=1).tokens(sound(9))


def test_options_of_other_models_are_refused(tmp_path: Path) -> None:
    folder = folder_of("whisper", tmp_path)
    for name, value in (("context", 9), ("compress", "int8"), ("lora", "x"), ("calibration", "x")):
        with pytest.raises(hx.Error, match=f"{name}: got .* for Whisper, need none"):
            hx.llm.load(folder, **{name: value})


def test_threads_may_share_a_model(tmp_path: Path) -> None:
    """Windows of several sounds do not meet in the cache."""
    model = hx.llm.load(folder_of("whisper", tmp_path), threads=1)
    sounds = [np.concatenate([sound(16000, i), sound(16000, 9)]) for i in range(4)]
    want = [model.tokens(one, "de") for one in sounds]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda one: model.tokens(one, "de"), sounds)] == want
    assert len({tuple(one) for one in want}) > 1


def test_the_command_prints_the_text_and_the_time(cli: Cli, tmp_path: Path) -> None:
    """Of 95 windows too."""
    folder = folder_of("whisper", tmp_path, {**GENERATIONS["german"][0], "max_new_tokens": 3})
    model = hx.llm.load(folder, threads=1)
    short, long = (write_wav(tmp_path / f"{n}.wav", sound(n)) for n in (16000, 95 * 16000 - 70))
    text = model.transcribe(short, "fr", "translate")
    ended = cli("transcribe", folder, short, "--language", "fr", "--task", "translate", "--threads", 1)
    assert (ended.code, ended.out) == (0, text + "\n"), ended.err
    assert "1.0 s of sound in " in ended.err
    found = json.loads(cli("transcribe", folder, long, "--threads", 1, "--json").out)
    assert found["text"] == model.transcribe(long)
    assert len(found["text"].split()) == 95 * 3
    assert found["seconds_of_sound"] == pytest.approx(95 - 70 / RATE)


def test_the_command_says_in_one_line_what_is_wrong(cli: Cli, tmp_path: Path) -> None:
    folder = folder_of("whisper", tmp_path)
    (tmp_path / "text.wav").write_text("no sound")
    files = {
        write_wav(tmp_path / "slow.wav", sound(800), rate=8000): "got 8000 samples a second, need 16000: `ffmpeg",
        write_wav(tmp_path / "empty.wav", sound(0)): "got no samples, need a sound",
        tmp_path / "text.wav": "is no wav file of PCM samples",
        tmp_path / "nothing.wav": "nothing.wav",
    }
    for file, said in files.items():
        ended = cli("transcribe", folder, file, "--threads", 1)
        assert (ended.code, len(ended.err.splitlines()), ended.out) == (1, 1, ""), ended.err
        assert said in ended.err
    ended = cli("transcribe", folder, tmp_path / "slow.wav", "--language", "xx")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
    (folder / "tokenizer.json").unlink()
    ended = cli("transcribe", folder, write_wav(tmp_path / "a.wav", sound(800)))
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
    assert "got no tokenizer.json, need it" in ended.err
    (folder / "model.safetensors").write_bytes(b"{}")
    ended = cli("transcribe", folder, tmp_path / "a.wav")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err


def test_hexane_llm_says_the_facts(cli: Cli, tmp_path: Path) -> None:
    folder = folder_of("whisper", tmp_path)
    ended = cli("llm", folder, "--target", "M1", "--threads", 1)
    assert ended.code == 0, ended.err
    for said in ("whisper, ", "windows of 1 s of sound", "3 languages, tasks: translate, transcribe", "tokens/s"):
        assert said in ended.out
    assert "M1 (h13): the encoder estimated " in ended.out
    assert "1 part on the engine" in ended.out
    found = json.loads(cli("llm", folder, "--json").out)
    assert (found["family"], found["languages"], found["tokens"]) == ("whisper", ["de", "en", "fr"], 90)
    assert found["parameters"] == hx.llm.load(folder).parameters
    for option in ("-o", "--calibration", "--compress"):
        assert f"{option}: got it for a speech model" in cli("llm", folder, option, "int8").err


@pytest.mark.parametrize("name", speech_models.CASES)
def test_a_folder_in_16_bits_computes_as_in_fp32(name: str, tmp_path: Path) -> None:
    short, wide = [hx.llm.load(one, threads=1) for one in two_folders(folder_of(name, tmp_path), ml_dtypes.bfloat16)]
    features = speech_models.features(name)
    assert short.encode(features).tobytes() == wide.encode(features).tobytes()
    assert short.transcribe(sound(LENGTHS[0])) == wide.transcribe(sound(LENGTHS[0]))


def test_transcribe_offers_only_the_dtypes_that_it_takes(cli: Cli) -> None:
    assert "--compress" not in cli("transcribe", "--help").out
    assert cli("transcribe", "whisper", "tide.wav", "--dtype", "int8").code == 2
