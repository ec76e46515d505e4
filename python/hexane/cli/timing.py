"""Prints the profile of a model."""

from typing import Any

from hexane.cli.output import print_table
from hexane.report.legend import legend
from hexane.report.profile import HEAD, KERNEL_HEAD, MEANINGS, Profile


def profile_record(profile: Profile) -> list[dict[str, Any]]:
    """Returns the steps for --json, slowest first."""
    record = profile.to_json()
    names = {"source": "from"}
    return [{names.get(key, key): value for key, value in step.items()} for step in record["steps"]]


def print_profile(profile: Profile) -> None:
    print()
    print_table(HEAD, profile.rows(), right=HEAD[2:])
    if profile.machine:
        print(profile.machine)
    print()
    print_table(KERNEL_HEAD, profile.by_kernel(), right=KERNEL_HEAD[1:])
    print(f"\n{legend('columns', MEANINGS)}")
