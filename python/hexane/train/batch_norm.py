"""Batch norm for training: it normalises by the batch and updates the running statistics."""

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
    """Normalises x by its own mean and variance over all axes but `axis`, multiplies by gamma, and adds beta.

    mean, variance: the running statistics, one number per channel: two `hx.param`s that start at 0 and 1. Each call of
    `hx.train.step` moves these two towards the batch's mean and unbiased variance by the fraction `momentum`, as in
    PyTorch. `hx.train.evaluating` normalises by the running statistics. Several batch norms may share running
    statistics, and update them one after another.

    Raises Error if a channel has only one element in the batch.
    """
    results = FUNCTIONS["batch_norm_training"](
        x, mean, variance, gamma, beta, momentum=momentum, epsilon=epsilon, axis=axis
    )
    return results[0]  # type: ignore[no-any-return]
