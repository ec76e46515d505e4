"""Trained params of a PyTorch module, for the module itself and its files."""

from typing import Any

from hexane.errors import Error
from hexane.importers.torch import tied_names
from hexane.runtime import Model
from hexane.train.notes import NOTES
from hexane.train.training_step import CALLS, STEP


def state_dict(module: Any, net: Model) -> dict[str, Any]:
    """What `module.load_state_dict` takes, and `torch.save` writes: the tensors of the module with the params and
    buffers as `net` has them now, each under all its names.

    module: the torch.nn.Module that `hx.from_torch` had. net: a compiled training step of its params, such as
    `trainer.net`. Params and buffers that no state of `net` is named after keep the module's own contents; dtypes are
    the module's.

    Raises Error where no state has the name of a tensor of the module.
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
