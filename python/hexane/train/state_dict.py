"""Copies trained params back to a PyTorch module or its files."""

from typing import Any

from hexane.errors import Error
from hexane.importers.torch import tied_names
from hexane.runtime import Model
from hexane.train.notes import NOTES
from hexane.train.training_step import CALLS, STEP


def state_dict(module: Any, net: Model) -> dict[str, Any]:
    """Returns a dict for `module.load_state_dict` or `torch.save`: the module's tensors under all their names, with the
    current params and buffers of `net`.

    module: the torch.nn.Module given to `hx.from_torch`. net: a compiled training step of its params, such as
    `trainer.net`. A tensor of the module without a state of that name in `net` keeps its contents. Dtypes are the
    module's.

    Raises Error if no state of `net` has the name of a tensor of the module.
    """
    import torch

    tied, states, tensors = tied_names(module), set(net.state_names), {}
    if {CALLS, STEP} <= states:  # a training step's own states
        states -= {CALLS, STEP, NOTES}
    for name, tensor in module.state_dict().items():
        own = tied.get(name, name)
        tensors[name] = tensor.detach().clone()
        if own in states:
            tensors[name] = torch.from_numpy(net.read_state(own)).reshape(tensor.shape).to(tensor.dtype)
    if not any(tied.get(name, name) in states for name in tensors):
        raise Error("[train.state_dict] net: got no state of the module's names, need a training step of its params")
    return tensors
