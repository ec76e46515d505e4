"""Writes ResNet-18 to disk as MIL, by Hexane or by ANEForge, each in a process of its own: `python emitters.py WHO
MODEL FOLDER`.

The process reads the model, then serves lines from stdin: "clear" empties the folder, "write" writes the program into
it. The process answers "done" to each line.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

Write = Callable[[Path], object]


def hexane(model: Path) -> Write:
    """Writes the graph of the only segment: passes, rounding to fp16, text, weights, files."""
    from hexane.emit.mil import emit_mil
    from hexane.importers.onnx import import_onnx
    from hexane.pipeline import divide
    from hexane.runtime.emitted import save_mil
    from hexane.stages.segments.join import SegmentParts
    from hexane.targets.query import load_chip

    chip = load_chip("h13")
    graph, segments = divide(import_onnx(model), chip)
    (piece,) = SegmentParts(graph, segments).graphs()
    return lambda folder: save_mil(emit_mil(piece, chip), folder)


def aneforge(model: Path) -> Write:
    """Writes ANEForge's graph of tensors, with batch norms already folded: rounding to fp16, text, weights, files. The
    input of the compiler."""
    from aneforge._compile import _lower_fused_to_dir
    from aneforge.onnx import onnx_to_tensor

    _, tensor = onnx_to_tensor(str(model))
    return lambda folder: _lower_fused_to_dir(tensor, folder)


def bytes_alone(model: Path) -> Write:
    """Writes Hexane's two files from memory, without syncing them to the disk."""
    with TemporaryDirectory() as folder:
        hexane(model)(Path(folder))
        files = {p.relative_to(folder): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}

    def write(out: Path) -> None:
        for name, data in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)

    return write


def main(who: str, model: str, folder: str) -> None:
    write = {"hexane": hexane, "ANEForge": aneforge, "writing the bytes": bytes_alone}[who](Path(model))
    out = Path(folder)
    for line in sys.stdin:
        if line.strip() == "clear":
            shutil.rmtree(out, ignore_errors=True)
        else:
            write(out)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
