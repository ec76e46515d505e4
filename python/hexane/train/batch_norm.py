"""Batch norm as training has it."""

from hexane.build import FUNCTIONS, Tensor


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """x normalised by its own mean and variance over all axes but `axis`, times gamma, plus beta.

    mean, variance: the running statistics, one number for each channel, two `hx.param`s of their own: 0 and 1 at
    first. `hx.train.step` moves them in every call: by `momentum` of the batch's mean and unbiased variance, as PyTorch
    has it. `hx.train.evaluating` normalises by them. Several batch norms may share them, and move them one by one.

    Raises Error for a batch of one element for each channel.
    """
    results = FUNCTIONS["batch_norm_training"](
        x, mean, variance, gamma, beta, momentum=momentum, epsilon=epsilon, axis=axis
    )
    return results[0]  # type: ignore[no-any-return]
