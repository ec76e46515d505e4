"""apple_compress.py FOLDER: a small network whose weights Apple's own package (coreai-opt) stored in fewer bits, as Core
AI assets, with what torch computes. In a process of its own: it needs torch, coreai-torch and coreai-opt.

FOLDER/KIND_PRESET.aimodel, and FOLDER/KIND_PRESET.npz with x and y; KIND is palette or integers.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any


def compress_by_apple(python: str, folder: Path) -> bool:
    """False where that Python lacks one of the packages."""
    check = [python, "-c", "import torch, coreai_torch, coreai_opt"]
    if subprocess.run(check, capture_output=True).returncode:
        return False
    ended = subprocess.run([python, __file__, str(folder)], capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return True


def main(folder: Path) -> None:
    import torch
    from coreai_opt.palettization import KMeansPalettizer, KMeansPalettizerConfig
    from coreai_opt.quantization import Quantizer, QuantizerConfig

    x = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    kinds = {"palette": (KMeansPalettizer, KMeansPalettizerConfig), "integers": (Quantizer, QuantizerConfig)}
    presets = {"palette": ("w4", "w6", "w8"), "integers": ("w4", "w4_per_block", "w8")}
    for kind, (compressor, config) in kinds.items():
        for preset in presets[kind]:
            save(folder / f"{kind}_{preset}", compressor(network(), getattr(config.presets, preset)()), x)


def network() -> Any:
    import torch

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(16, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
              torch.nn.Flatten(), torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32, bias=False))  # fmt: skip
    return torch.nn.Sequential(*layers).eval()


def save(path: Path, compressor: Any, x: Any) -> None:
    import numpy as np
    import torch
    from coreai_opt import ExportBackend
    from coreai_torch import TorchConverter, get_decomp_table

    compressor.prepare((x,))
    module = compressor.finalize(backend=ExportBackend.CoreAI)
    with torch.no_grad():
        y = module(x)
        exported = torch.export.export(module, (x,)).run_decompositions(get_decomp_table())
    TorchConverter().add_exported_program(exported).to_coreai().save_asset(path.with_suffix(".aimodel"))
    np.savez(path.with_suffix(".npz"), x=x.numpy(), y=y.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
