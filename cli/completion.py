"""Shell completion: the command tree as data, and the scripts made of it.

The scripts are static text: completing a line starts no Python. `python -m ntool.completion --write
DIR` writes them, `ntool completion SHELL` prints one, and a test compares the committed files with
fresh ones.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .completion_scripts import bash, fish, zsh

FILES = {"bash": "ntool.bash", "zsh": "_ntool", "fish": "ntool.fish"}
"""Shell -> file name; zsh autoloads by this name."""
_WRITERS = {"bash": bash, "zsh": zsh, "fish": fish}

_KINDS = {
    "SOURCE": "source",
    "PKG": "package",
    "FILE": "file",
    "PATH": "file",
    "PNG": "file",
    "DIR": "folder",
    "CONFIG": "file",
}
_TAKES_CHECKPOINTS = ("run-prefill", "sample-image")
"""Commands that export a checkpoint themselves when it is given as PKG."""
RNGS = ("portable", "torch-cpu")
"""Those of `lib.families.neo_chat.draw`, which would load NumPy."""
CHECK_IDS = (
    "layout.files", "layout.schema", "graph.parse", "graph.checker", "graph.types",
    "graph.standard", "graph.names", "graph.dead", "data.path", "data.bounds", "data.orphans",
    "data.hash", "weights.complete", "weights.values", "weights.sane", "dtype.policy", "flow.ports",
    "flow.tokens", "run.load", "run.support", "run.dynamic", "run.finite", "run.placement",
    "golden.values",
)  # fmt: skip
"""Those of `lib.package.checks.catalogue`, which would load ONNX."""
_WORD = r"[\w:\[\]-]+"
_ENUMERATION = re.compile(
    rf"(?:^|: )((?:{_WORD}, )*{_WORD},? or {_WORD}|(?:{_WORD}, ){{2,}}{_WORD})(?:[.;(]|$)"
)


@dataclass(frozen=True)
class Value:
    """What an option or argument takes.

    Attributes:
        kind: `words`, `file`, `folder`, `source` (files and demonstrations), `package` (folders and
            demonstrations) or `text` (nothing to offer).
        label: its name in help texts.
        words: the choices of kind `words`.
    """

    kind: str
    label: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """An option: spellings (long first), help, value (None for a flag), whether it repeats."""

    names: tuple[str, ...]
    help: str
    value: Value | None = None
    repeats: bool = False


@dataclass(frozen=True)
class Argument:
    """A positional argument; a variadic one takes all that follow."""

    value: Value
    variadic: bool = False


@dataclass(frozen=True)
class Command:
    """A subcommand; one of a group has the group's name in front of its own: `patchgen list`.

    Attributes:
        commands: those of a group.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...] = ()
    commands: tuple[Command, ...] = ()

    @property
    def word(self) -> str:
        """What is typed for it behind its group."""
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True)
class Tree:
    """All of ntool: options before a command, commands, and the demonstrations of SOURCE."""

    options: tuple[Option, ...]
    commands: tuple[Command, ...]
    demos: tuple[str, ...]

    @property
    def every(self) -> tuple[Command, ...]:
        """All commands, those of groups behind their group."""
        return tuple(each for c in self.commands for each in (c, *c.commands))


HELP = Option(("--help", "-h"), "Show this message and exit.")


def tree() -> Tree:
    """The command tree of `app.application`."""
    from .app import application
    from .lib import demo

    root = application()
    return Tree(
        options=(*_options(root), HELP),
        commands=tuple(_command(name, c) for name, c in root.commands.items()),
        demos=tuple(f"demo:{name}" for name in demo.NAMES),
    )


def script(shell: str) -> str:
    """The completion script of a shell: a key of FILES."""
    return _WRITERS[shell](tree())


def write(folder: Path) -> list[Path]:
    """Write all scripts into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shell, name in FILES.items():
        paths.append(folder / name)
        paths[-1].write_text(script(shell), encoding="utf-8", newline="\n")
    return paths


def _command(name: str, command: Any) -> Command:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    inside = getattr(command, "commands", {})
    return Command(
        name,
        _first_sentence(command.help or ""),
        (*_options(command), HELP),
        tuple(Argument(_value(p, name), variadic=p.nargs == -1) for p in arguments),
        tuple(_command(f"{name} {word}", c) for word, c in inside.items()),
    )


def _options(command: Any) -> tuple[Option, ...]:
    out = []
    for p in command.params:
        if p.param_type_name != "option" or p.hidden or "--help" in p.opts:
            continue
        names = tuple(sorted(p.opts, key=len, reverse=True))
        out.append(Option(names, p.help or "", None if p.is_flag else _value(p), p.multiple))
    return tuple(out)


def _value(param: Any, command: str = "") -> Value:
    """What a parameter takes, by its metavar, its type, or the values that its help names."""
    label = param.metavar or param.name.upper()
    word = re.sub(r"[\[\].]", "", label)
    if "|" in word:
        return Value("words", label, tuple(word.split("|")))
    if word == "COMPONENT":
        return Value("words", word, _components())
    if word == "PKG" and command not in _TAKES_CHECKPOINTS:
        return Value("folder", word)
    if word == "DT" and "--as-dtype" in param.opts:
        from .lib.checkpoint.tensor import BITS

        return Value("words", word, tuple(BITS))
    if "--rng" in param.opts:
        return Value("words", label, RNGS)
    if word == "COMPONENT=FILE":
        return Value("file", label)
    if "--check" in param.opts or "--skip" in param.opts:
        return Value("words", label, CHECK_IDS)
    if word in _KINDS or "Path" in type(param.type).__name__:
        return Value(_KINDS.get(word, "file"), word)
    words = enumerated(getattr(param, "help", None) or "")
    return Value("words" if words else "text", word, words)


def enumerated(text: str) -> tuple[str, ...]:
    """Values that a help text names as `a or b.` or `a, b, c.`, first or after a colon; else none.

    Reading them from the help keeps one list for people and for the shell. Placeholders in capitals
    (`cuda:INDEX`) and optional parts (`prefix[:DEPTH]`) are left out.
    """
    match = _ENUMERATION.search(text)
    if match is None:
        return ()
    words = re.split(r",? or |, ", match[1])
    words = [re.sub(r"\[.*\]", "", w) for w in words]
    return tuple(w for w in words if w == w.lower())


def _components() -> tuple[str, ...]:
    from .lib import families

    names: dict[str, None] = {}
    for module in families.EXPORTED:
        family = import_module(f".lib.families.{module}", package=__package__)
        names.update(dict.fromkeys(family.COMPONENTS))
    return tuple(names)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) ", paragraph)[0].rstrip(".:")


def main() -> None:
    """`python -m ntool.completion --write DIR`."""
    parser = argparse.ArgumentParser(prog="python -m ntool.completion", description=main.__doc__)
    parser.add_argument("--write", metavar="DIR", type=Path, required=True)
    for path in write(parser.parse_args().write):
        print(path)


if __name__ == "__main__":
    main()
