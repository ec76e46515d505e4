"""Compares every targets/**/*.toml with the published tables.

Run it as PYTHONPATH=tests/support python -m published [--facts DIR].
"""

import argparse
import sys
from pathlib import Path

from published.differences import cells, differences

ROOT = Path(__file__).parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--facts",
        type=Path,
        default=ROOT.parent / "shared" / "facts",
        metavar="DIR",
        help="folder of data/*.csv (default: ../shared/facts)",
    )
    parser.add_argument("--unexplained", action="store_true", help="print those only that nobody has explained")
    given = parser.parse_args()
    if not (given.facts / "data").is_dir():
        print(f"skipped: {given.facts / 'data'} is not there; --facts DIR names its folder")
        return 0
    found = differences(given.facts)
    open_ones = [difference for difference in found if not difference.because]
    for difference in open_ones if given.unexplained else found:
        print(difference)
    print(f"{sum(1 for _ in cells(given.facts))} statements compared, {len(found)} differences")
    print(f"{len(open_ones)} unexplained differences")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
