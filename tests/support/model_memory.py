"""The memory that a language model takes, in a process of its own: other tests leave free memory that it would use."""

import subprocess
import sys
from pathlib import Path

_CODE = """
import gc, sys, hexane as hx
def rss():
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return 1024 * int(lines["VmRSS"].split()[0])
hx.llm.load(sys.argv[2], threads=1).logits([1, 2, 3])
before = rss()
model = hx.llm.load(sys.argv[1], threads=1)
model.logits(list(range(1, 80)))
gc.collect()
print(rss() - before - model.memory["cache"])
"""


def bytes_of_a_model(path: Path, small: Path) -> int:
    """Returns the resident bytes after a prompt, without the cache. small: a model that is loaded before."""
    run = subprocess.run(
        [sys.executable, "-c", _CODE, path, small], check=True, capture_output=True, text=True, timeout=300
    )
    return int(run.stdout)
