"""The page and the picture that `hexane compress` writes next to its output."""

from pathlib import Path

import numpy as np
import pytest

from command import Cli, linear_model


def model(path: Path) -> Path:
    return linear_model(path, (1, 64), np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32))


def test_the_command_writes_both_next_to_its_output(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    html, plot = tmp_path / "c.html", tmp_path / "c.svg"
    args = ("--mode", "sparse:0.5", "--force", "--html", html, "--plot", plot, "-o", tmp_path / "c.onnx")
    ended = cli("compress", model(tmp_path / "net.onnx"), *args)
    assert ended.code == 0, ended.err
    assert "dense in the file" in html.read_text(encoding="utf-8")
    assert "sparse:0.5" in plot.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--plot", "c.txt"), "need one that ends in .png, .svg, .pdf"),
        (("--html", "net.onnx"), "got the file of the model as the page"),
        (("--html", "c.onnx"), "got the file of the output as the page"),
        (("--html", "c.png", "--plot", "c.png"), "got the file of the page as the picture"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    cli: Cli, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    pytest.importorskip("matplotlib")
    given = [arg if arg.startswith("--") else tmp_path / arg for arg in args]
    ended = cli("compress", model(tmp_path / "net.onnx"), "--mode", "int8", *given, "-o", tmp_path / "c.onnx")
    assert ended.code != 0
    assert said in " ".join(ended.err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_a_model_without_weights_has_no_page(cli: Cli, tmp_path: Path) -> None:
    path = linear_model(tmp_path / "net.onnx", (1, 8), np.ones((8, 8), np.float32))
    ended = cli("compress", path, "--html", tmp_path / "c.html", "-o", tmp_path / "c.onnx")
    assert ended.code == 1
    assert "got no weight that may be compressed" in ended.err
    assert not (tmp_path / "c.onnx").exists()
