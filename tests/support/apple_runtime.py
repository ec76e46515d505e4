"""apple_runtime.py ASSET INPUTS.npz OUTPUTS.npz FUNCTION: runs a function of a Core AI asset in Apple's own runtime
(coreai-core).

In a process of its own: errors in that runtime end the process.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np


def run_apple(python: str, asset: Path, feeds: dict[str, Any], folder: Path, function: str = "main") -> dict[str, Any]:
    """The outputs by name. Raises AssertionError with what the runtime says."""
    np.savez(folder / "inputs.npz", **feeds)
    command = [python, __file__, str(asset), str(folder / "inputs.npz"), str(folder / "outputs.npz"), function]
    for _ in range(2):  # on a busy machine the runtime sometimes ends while it loads
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if ended.returncode == 0:
            break
    assert ended.returncode == 0, ended.stderr[-2000:]
    with np.load(folder / "outputs.npz") as found:
        return dict(found)


def has_apple_runtime(python: str) -> bool:
    return subprocess.run([python, "-c", "import coreai.runtime"], capture_output=True).returncode == 0


async def main(asset: str, inputs: str, outputs: str, function: str) -> None:
    from coreai.authoring.asset import AIModelAsset
    from coreai.runtime import NDArray

    with np.load(inputs) as feeds:
        arrays = {name: NDArray(feeds[name]) for name in feeds.files}
    async with AIModelAsset.load(Path(asset)).executable() as model:
        found = await model.load_function(function)(arrays)
        np.savez(outputs, **{name: np.asarray(value.numpy()) for name, value in found.items()})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
