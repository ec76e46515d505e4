"""Permutations between channels first and channels last."""


def last_perm(rank: int) -> tuple[int, ...]:
    """(0, 2, 3, 1): where each axis of the channels-last form comes from."""
    return (0, *range(2, rank), 1)


def first_perm(rank: int) -> tuple[int, ...]:
    """(0, 3, 1, 2): where each axis of the channels-first form comes from."""
    return (0, rank - 1, *range(1, rank - 1))
