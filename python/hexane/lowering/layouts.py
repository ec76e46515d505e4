"""Permutations between channels first and channels last."""


def last_perm(rank: int) -> tuple[int, ...]:
    """Returns the permutation from channels first to channels last: (0, 2, 3, 1) for rank 4."""
    return (0, *range(2, rank), 1)


def first_perm(rank: int) -> tuple[int, ...]:
    """Returns the permutation from channels last to channels first: (0, 3, 1, 2) for rank 4."""
    return (0, rank - 1, *range(1, rank - 1))
