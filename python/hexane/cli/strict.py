"""The class of all commands: an option with one value that is given twice is an error, so that no value is lost."""

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand

LIST = "NAMES"  # The metavar of an option whose value is a list of names with commas.
MEANT = {"--chip": "--target", "--chips": "--target", "--device": "--target", "--targets": "--target"}


class StrictCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:
            meant = MEANT.get(getattr(error, "option_name", ""))
            if meant and any(meant in param.opts for param in self.params):
                setattr(error, "possibilities", [meant])  # noqa: B010 (an attribute of one exception of typer's)
            raise
        for param, count in Counter(order).items():
            option: Any = param
            if count > 1 and param.param_type_name == "option" and not (option.multiple or option.is_flag):
                raise typer.BadParameter(_said(option, args, count), ctx=ctx)
        return super().parse_args(ctx, args)


def _said(option: Any, args: list[str], count: int) -> str:
    written = [arg.partition("=")[0] for arg in args]
    name = next((name for name in option.opts if name in written), option.opts[0])
    times = "twice" if count == 2 else f"{count} times"
    commas = f"; several names have commas between them: {name} M1,M4" if option.metavar == LIST else ""
    return f"{name}: got it {times}, need it once{commas}"
