"""Files of tokens, and the batches over them."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.train.text import token_dtype


def saved(path: Path, ids: object, dtype: str = "<u2") -> Path:
    np.asarray(ids).astype(dtype).tofile(path)
    return path


def test_tokens_are_little_endian_and_have_no_header(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    assert hx.train.save_tokens(path, [[1, 300], [], [65535]], vocab=65536) == 3
    assert path.read_bytes() == bytes([1, 0, 44, 1, 255, 255])
    assert hx.train.save_tokens(path, [[1, 300], np.array([65536])], vocab=65537) == 3
    assert path.read_bytes() == bytes([1, 0, 0, 0, 44, 1, 0, 0, 0, 0, 1, 0])
    assert list(hx.train.TokenFile(path, vocab=65537)[0:3]) == [1, 300, 65536]
    assert [token_dtype(vocab) for vocab in (65536, 65537, 151936)] == ["uint16", "uint32", "uint32"]


def test_what_is_wrong_with_a_file_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokens.bin", [1, 2, 99, 3])
    with pytest.raises(hx.Error, match=r"token 2: got the id 99, need 0 to 98: the vocabulary"):
        hx.train.TokenFile(path, vocab=99)
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(hx.Error, match=r"got 3 bytes, need ids of 2 bytes each"):
        hx.train.TokenFile(tmp_path / "odd.bin", vocab=99)
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(hx.Error, match=r"got 0 bytes"):
        hx.train.TokenFile(tmp_path / "empty.bin", vocab=99)
    with pytest.raises(hx.Error, match=r"No such file"):
        hx.train.TokenFile(tmp_path / "missing.bin", vocab=99)
    with pytest.raises(hx.Error, match=r"it looks like dtype='uint32'"):
        hx.train.TokenFile(saved(tmp_path / "wide.bin", range(100), "<u4"), vocab=100)
    assert len(hx.train.TokenFile(tmp_path / "wide.bin", vocab=100, dtype="uint32")) == 100
    with pytest.raises(hx.Error, match=r"dtype: got 'int64', need one of uint16, uint32"):
        hx.train.TokenFile(path, vocab=100, dtype="int64")
    with pytest.raises(hx.Error, match=r"document 1: token 0: got the id 7, need 0 to 6"):
        hx.train.save_tokens(tmp_path / "new.bin", [[1], [7]], vocab=7)
    assert not (tmp_path / "new.bin").exists()


@pytest.mark.parametrize("text", ['{"prompt": "a", "completion": "b"}\n' * 4, "Über den naïven Kater saß 猫。\n" * 8])
def test_a_text_is_no_file_of_tokens(tmp_path: Path, text: str) -> None:
    """Two letters are an id below 32000: a text would train a model without a word."""
    data = text.encode()
    (tmp_path / "t.txt").write_bytes(data[: len(data) // 2 * 2])
    with pytest.raises(hx.Error, match="got a text, need ids: `hexane tokenize` makes them"):
        hx.train.TokenFile(tmp_path / "t.txt", vocab=65536)
    assert len(hx.train.TokenFile(tmp_path / "t.txt", vocab=65536, dtype="uint16")) == len(data) // 2
    saved(tmp_path / "ids.bin", np.random.default_rng(1).integers(0, 65536, 2000))
    assert len(hx.train.TokenFile(tmp_path / "ids.bin", vocab=65536)) == 2000


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokens.bin", range(1000))
    tokens = hx.train.TokenFile(path, vocab=1000)
    path.write_bytes(b"")
    with pytest.raises(hx.Error, match=r"got a file that became shorter, need its 1000 tokens"):
        tokens[10:20]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_labels_are_the_tokens_that_follow(dtype: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 500, 300)
    tokens = hx.train.TokenFile(saved(tmp_path / "t.bin", ids, dtype), vocab=500, dtype=dtype)
    windows = hx.train.TokenWindows(tokens, batch=4, seq=9, seed=3)
    places = {tuple(ids[i : i + 10]): i for i in range(291)}
    for number in range(20):
        found = windows(number)
        assert {name: (a.dtype, a.shape) for name, a in found.items()} == dict.fromkeys(
            ("tokens", "labels"), (np.dtype("int32"), (4, 9))
        )
        for row in range(4):
            assert (*found["tokens"][row], found["labels"][row, -1]) in places
        assert np.array_equal(found["tokens"][:, 1:], found["labels"][:, :-1])


def test_a_batch_is_a_function_of_seed_and_number(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.bin", range(5000))

    def starts(seed: int, numbers: list[int]) -> list[list[int]]:
        windows = hx.train.TokenWindows(hx.train.TokenFile(path, vocab=5000), batch=3, seq=8, seed=seed)
        return [windows(n)["tokens"][:, 0].tolist() for n in numbers]

    # Written down once: another order on another machine or version would part a resumed training from the first.
    assert starts(7, [0, 1]) == [[4578, 165, 1915], [1795, 1389, 4756]]
    assert starts(7, [5, 1, 3]) == [starts(7, [n])[0] for n in (5, 1, 3)]
    assert starts(7, [0]) != starts(8, [0])


def test_every_place_is_drawn_alike(tmp_path: Path) -> None:
    tokens = hx.train.TokenFile(saved(tmp_path / "t.bin", range(14)), vocab=14)
    windows = hx.train.TokenWindows(tokens, batch=100, seq=3)
    starts = np.concatenate([windows(n)["tokens"][:, 0] for n in range(110)])
    counts = np.bincount(starts)
    assert len(counts) == 11  # the last window ends with the last token
    assert np.abs(counts - 1000).max() < 150  # five standard deviations


def test_held_out_tokens_are_not_trained_on(tmp_path: Path) -> None:
    tokens = hx.train.TokenFile(saved(tmp_path / "t.bin", range(1000)), vocab=1000)
    windows = hx.train.TokenWindows(tokens, batch=2, seq=7, validation=0.1)
    seen = np.concatenate([windows(n)["labels"].reshape(-1) for n in range(300)])
    assert 890 < seen.max() < 900
    held = windows.evaluation()
    assert len(held) == 7
    assert np.array_equal(np.concatenate([b["tokens"].reshape(-1) for b in held]), np.arange(900, 998))
    assert np.array_equal(held[0]["labels"], held[0]["tokens"] + 1)
    assert len(windows.evaluation(2)) == 2


@pytest.mark.parametrize("count", [1, 7, 8])
def test_too_few_tokens_are_an_error(count: int, tmp_path: Path) -> None:
    tokens = hx.train.TokenFile(saved(tmp_path / "t.bin", range(count)), vocab=100)
    with pytest.raises(hx.Error, match=rf"got {count} tokens of training, need at least 9: more text"):
        hx.train.TokenWindows(tokens, batch=1, seq=8)


def test_settings_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tokens = hx.train.TokenFile(saved(tmp_path / "t.bin", range(100)), vocab=100)
    with pytest.raises(hx.Error, match=r"got 4 tokens held out, need at least 9"):
        hx.train.TokenWindows(tokens, batch=1, seq=8, validation=0.04)
    with pytest.raises(hx.Error, match=r"got 0 tokens held out, need at least 9"):
        hx.train.TokenWindows(tokens, batch=1, seq=8).evaluation()
    with pytest.raises(hx.Error, match=r"validation: got 1.0, need a share"):
        hx.train.TokenWindows(tokens, batch=1, seq=8, validation=1.0)
    with pytest.raises(hx.Error, match=r"seq: got 0, need an integer from 1"):
        hx.train.TokenWindows(tokens, batch=1, seq=0)
    with pytest.raises(hx.Error, match=r"got batch -1"):
        hx.train.TokenWindows(tokens, batch=1, seq=8)(-1)


def test_a_resumed_training_over_a_file_is_an_uninterrupted_one(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 30, 400)
    tokens = hx.train.TokenFile(saved(tmp_path / "t.bin", ids), vocab=30)
    windows = hx.train.TokenWindows(tokens, batch=2, seq=8, seed=5, validation=0.2)
    config = hx.train.LlamaConfig(vocab=30, dim=16, hidden=24, layers=1, heads=2, seq=8)

    def trainer(folder: str) -> hx.train.Trainer:
        model = hx.train.llama(config, batch=2)
        return hx.train.Trainer(model.loss, list(model.params.values()), hx.train.adamw(1e-2), folder=tmp_path / folder)

    whole, first, second = trainer("whole"), trainer("parts"), trainer("parts")
    whole.fit(windows, 6, evaluate_every=3, evaluation=windows.evaluation())
    first.fit(windows, 2)
    second.fit(windows, 6, resume=True)
    for name in whole.net.state_names:
        assert whole.net.read_state(name).tobytes() == second.net.read_state(name).tobytes()
