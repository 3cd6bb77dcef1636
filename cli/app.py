"""The Typer application: the commands of `ntool.commands.COMMANDS`, with common options."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core

from .commands import COMMANDS, GROUPS
from .options import with_common
from .version import VERSION


class _Commands(typer.core.TyperGroup):
    """Commands of which a beginning is near enough to be told."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does; where it has no suggestion, the commands that begin with the word."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as e:
            text = getattr(e, "message", "")
            begun = [repr(name) for name in self.commands if args and name.startswith(args[0])]
            if text.startswith("No such command") and "?" not in text and args[0] and begun:
                e.message = f"{text.rstrip('.')}. Did you mean {', '.join(begun)}?"  # type: ignore[attr-defined]
            raise


def application() -> Any:
    """The click command for the whole of ntool.

    Command modules import only the standard library, typer and option types at their top, so
    building all of them is cheap and `--help` loads no NumPy (tests/cli/test_imports.py).
    """
    app = typer.Typer(
        name="ntool",
        cls=_Commands,
        help="Look into, convert, export, run and check big generative models, without PyTorch.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(
        ctx: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
        verbose: Annotated[
            bool, typer.Option("--verbose", "-v", help="With --version: those of all packages.")
        ] = False,
    ) -> None:
        if version and verbose:
            from .lib.doctor import version_lines

            version_lines()
        elif version:
            print(f"ntool {VERSION}")
        elif verbose:
            raise typer.BadParameter("options follow the command", param_hint="--verbose")
        elif ctx.invoked_subcommand is None:
            ctx.fail("Missing command.")
        else:
            return
        raise typer.Exit

    for name in COMMANDS:
        if name in GROUPS:
            app.add_typer(_group(name, *GROUPS[name]), name=name)
        else:
            app.command(name)(_command(name))
    root_command: Any = typer.main.get_command(app)
    found = root_command.commands  # groups come last here
    root_command.commands = {name: found[name] for name in COMMANDS}
    return root_command


def _group(name: str, help: str, commands: tuple[str, ...]) -> typer.Typer:
    """A command with commands of its own."""
    group = typer.Typer(
        cls=_Commands,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in commands:
        group.command(command)(_command(f"{name} {command}"))
    return group


def _command(name: str) -> Any:
    """The function of a command, with the common options: `patchgen list` is `patchgen_list`."""
    function = name.replace("-", "_").replace(" ", "_")
    module = import_module(f".commands.{function}", package=__package__)
    return with_common(name, getattr(module, function))
