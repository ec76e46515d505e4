"""The names of instruction sets that commands print."""

import pytest

from hexane.system.cpu import cpu_instructions


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("AVX3", "AVX-512"), ("AVX3_DL", "AVX-512 with VNNI"), ("AVX3_ZEN4", "AVX-512 of Zen 4"),
        ("AVX3_SPR", "AVX-512 of Sapphire Rapids"), ("AVX2", "AVX2"), ("NEON_BF16", "NEON_BF16"),
    ],
)  # fmt: skip
def test_an_instruction_set_has_its_usual_name(name: str, usual: str) -> None:
    assert cpu_instructions(name) == usual
