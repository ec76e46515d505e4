"""The command `hexane`: its subcommands, and its help."""

from collections.abc import Callable
from typing import Annotated

import typer

import hexane
from hexane.cli.bench import bench
from hexane.cli.chat import chat
from hexane.cli.check import check
from hexane.cli.codegen import codegen
from hexane.cli.compare import compare_targets
from hexane.cli.compile import compile_model
from hexane.cli.compress import compress
from hexane.cli.dashboard import dashboard
from hexane.cli.doctor import doctor
from hexane.cli.embed import embed
from hexane.cli.emit import emit
from hexane.cli.estimate import estimate
from hexane.cli.explain import explain
from hexane.cli.fit import fit
from hexane.cli.generate import generate
from hexane.cli.info import info
from hexane.cli.llm import llm
from hexane.cli.ops import ops
from hexane.cli.quantize import quantize
from hexane.cli.repair import repair, strip
from hexane.cli.run import run
from hexane.cli.serve import serve
from hexane.cli.strict import StrictCommand
from hexane.cli.targets import targets
from hexane.cli.tokenize import tokenize
from hexane.cli.train import train
from hexane.cli.transcribe import transcribe

app = typer.Typer(
    name="hexane",
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich takes longer to load than all of hexane
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hexane {hexane.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _hexane(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compile neural networks for any Apple Neural Engine, from any machine; show what each chip does with every op,
    and why; run the same program on a Mac's engine, on this CPU, or as C99 on a microcontroller."""
    if context.invoked_subcommand is None:
        print(context.get_help())


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "info": info,
    "compile": compile_model,
    "compress": compress,
    "quantize": quantize,
    "codegen": codegen,
    "fit": fit,
    "emit": emit,
    "check": check,
    "compare": compare_targets,
    "explain": explain,
    "estimate": estimate,
    "repair": repair,
    "strip": strip,
    "tokenize": tokenize,
    "train": train,
    "dashboard": dashboard,
    "generate": generate,
    "llm": llm,
    "embed": embed,
    "transcribe": transcribe,
    "chat": chat,
    "serve": serve,
    "bench": bench,
    "doctor": doctor,
    "ops": ops,
    "targets": targets,
}
for _name, _function in COMMANDS.items():
    app.command(_name, cls=StrictCommand)(_function)


def main() -> None:
    """Runs the command in sys.argv. Exit code 0; 1 for an error; 2 for wrong usage; 3 for a network that does not run
    on every named chip, whose results differ, or that does not fit; 130 after Ctrl-C."""
    app(prog_name="hexane")


if __name__ == "__main__":
    main()
