"""Checks that pictures can be drawn: matplotlib is an optional dependency."""

from hexane.errors import Error


def check_plotting(command: str) -> None:
    """Raises Error if matplotlib is not installed. command: whose `--plot` needs it."""
    try:
        from matplotlib.backends import backend_agg  # noqa: F401
        from matplotlib.figure import Figure  # noqa: F401
    except ImportError:
        words = f"[{command}] --plot needs matplotlib, which is not installed: pip install 'hexane[plot]'"
        raise Error(words) from None
