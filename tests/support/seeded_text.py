"""Text made from a seed, for tests of training: what a model learns from it is the same on every machine."""

import numpy as np

SYLLABLES = ["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "xu"]


def seeded_text(seed: int, size: int) -> str:
    """`size` characters of sentences, whose words are as unevenly frequent as those of a language."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(SYLLABLES, rng.integers(1, 4))) for _ in range(400)]
    frequency = 1 / np.arange(1, len(words) + 1)
    sentences, length = [], 0
    while length < size:
        chosen = rng.choice(words, rng.integers(4, 12), p=frequency / frequency.sum())
        sentences.append(" ".join(chosen).capitalize() + ".")
        length += len(sentences[-1]) + 1
    return " ".join(sentences)[:size]
