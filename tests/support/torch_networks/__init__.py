"""Well-known networks in PyTorch, small: the structure of each as published. `NETWORKS[name]()` gives a module and what
it is called with. Import it where torch is installed."""

from collections.abc import Callable
from typing import Any

from torch_networks import images, sequences

__all__ = ["NETWORKS"]

NETWORKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {**images.NETWORKS, **sequences.NETWORKS}
