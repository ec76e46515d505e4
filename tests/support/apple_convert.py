"""apple_convert.py FOLDER: the networks of torch_networks as Core AI assets, by Apple's converter (coreai-torch), with
what torch computes. In a process of its own: it needs torch and coreai-torch.

FOLDER/NAME.aimodel, and FOLDER/NAME.npz with the inputs i0, i1, .. and the outputs o0, ..; what the converter refuses is
left out.
"""

import subprocess
import sys
from pathlib import Path


def convert_networks(python: str, folder: Path) -> bool:
    """False where that Python lacks one of the packages."""
    check = [python, "-c", "import torch, coreai_torch"]
    if subprocess.run(check, capture_output=True).returncode:
        return False
    ended = subprocess.run([python, __file__, str(folder)], capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return True


def main(folder: Path) -> None:
    import numpy as np
    import torch
    from coreai_torch import TorchConverter, get_decomp_table

    from torch_networks import NETWORKS

    for name, make in sorted(NETWORKS.items()):
        torch.manual_seed(0)
        module, inputs = make()
        module.eval()
        with torch.no_grad():
            found = module(*inputs)
        exported = torch.export.export(module, tuple(inputs)).run_decompositions(get_decomp_table())
        try:
            TorchConverter().add_exported_program(exported).to_coreai().save_asset(folder / f"{name}.aimodel")
        except ValueError as error:
            if "unsupported ATen ops" not in str(error):
                raise
            continue
        outputs = found if isinstance(found, (tuple, list)) else [found]
        arrays = {f"{side}{i}": t.numpy() for side, some in (("i", inputs), ("o", outputs)) for i, t in enumerate(some)}
        np.savez(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
