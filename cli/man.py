"""Manual pages, made of the commands and parameters that `--help` prints.

`python -m ntool.man --write DIR` writes `ntool.1` and a page for each command; a test compares the
committed pages with fresh ones. A group has one page with a section for each of its commands.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .exit_codes import MEANINGS, OF_COMMAND
from .options import COMMON
from .version import VERSION

ENVIRONMENT = {
    "NTOOL_CACHE": "folder of exports that run-prefill and sample-image keep; "
    "default: ntool in the user's cache folder",
    "HF_ENDPOINT": "address of the Hub",
    "HF_TOKEN": "token for the Hub, in place of the stored login",
    "HF_HOME": "folder of the Hub's cache and login",
    "HF_HUB_OFFLINE": "1: read the cache alone, open no connection",
    "HF_HUB_DOWNLOAD_TIMEOUT": "seconds to wait for an answer of the Hub",
    "SOURCE_DATE_EPOCH": "the time that a chat template is told",
    "TERM": "dumb: no progress bar",
}
"""Variables that ntool reads itself or through huggingface_hub."""


def pages() -> dict[str, str]:
    """File name -> roff source of every page."""
    from .app import application

    root = application()
    out = {"ntool.1": _main(root)}
    for name, command in root.commands.items():
        out[f"ntool-{name}.1"] = _page(name, command, list(root.commands))
    return out


def write(folder: Path) -> list[Path]:
    """Write all pages into a folder; returns their paths. Pages of commands that are gone go."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = pages()
    for old in folder.glob("ntool*.1"):
        if old.name not in fresh:
            old.unlink()
    for name, text in fresh.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in fresh]


def escaped(text: str) -> str:
    """Text as roff reads it back: no escape, no request, and dashes that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    text = text.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^\.", r"\\&.", text, flags=re.M)


def _main(root: Any) -> str:
    out = _head("ntool", root.help)
    out += [".SH SYNOPSIS", r".B ntool", r"\fICOMMAND\fR [\fIoptions\fR]"]
    out += [".br", r".B ntool \-\-version", r"[\fB\-\-verbose\fR]"]
    out += [".SH DESCRIPTION", *_paragraphs(root.help)]
    out += [".PP", "Records are JSON Lines on standard output, messages go to standard error."]
    out += [".SH COMMANDS"]
    for name, command in root.commands.items():
        out += [".TP", rf"\fBntool\-{escaped(name)}\fR(1)", escaped(_sentence(command.help))]
    out += [".SH OPTIONS", *_parameters(root, "ntool", common=True)]
    out += [".SH EXIT STATUS"]
    out += _codes(MEANINGS)
    out += [".SH ENVIRONMENT"]
    for name, meaning in ENVIRONMENT.items():
        out += [".TP", rf"\fB{name}\fR", escaped(meaning)]
    out += [".SH SEE ALSO", *_others([f"ntool-{n}" for n in root.commands])]
    return "\n".join(out) + "\n"


def _page(name: str, command: Any, all_names: list[str]) -> str:
    out = _head(f"ntool-{name}", command.help)
    inside = getattr(command, "commands", {})
    out.append(".SH SYNOPSIS")
    out += _synopsis(name, command) if not inside else []
    for number, (word, c) in enumerate(inside.items()):
        out += [".br"] if number else []
        out += _synopsis(f"{name} {word}", c)
    out += [".SH DESCRIPTION", *_paragraphs(command.help)]
    if inside:
        out.append(".SH COMMANDS")
    for word, c in inside.items():
        out += [f".SS {escaped(word)}", *_paragraphs(c.help), *_arguments(c, f"{name} {word}")]
        out += _parameters(c, f"{name} {word}", common=False)
    if not inside:
        arguments = _arguments(command, name)
        out += [".SH ARGUMENTS", *arguments] if arguments else []
        own = _parameters(command, name, common=False)
        out += [".SH OPTIONS", *own] if own else []
    sample = next(iter(inside.values()), command)
    out += [".SH OPTIONS OF EVERY COMMAND", *_parameters(sample, name, common=True)]
    out += [".SH EXIT STATUS", *_codes(OF_COMMAND[name])]
    out += [".PP", r"Those that every command has: \fBntool\fR(1)."]
    out += [".SH SEE ALSO", *_others(["ntool", *(f"ntool-{n}" for n in all_names if n != name)])]
    return "\n".join(out) + "\n"


def _head(title: str, help: str | None) -> list[str]:
    return [
        '.\\" Made by `python -m ntool.man --write man`; do not edit.',
        f'.TH {escaped(title.upper())} 1 "" "ntool {escaped(VERSION)}" "User Commands"',
        ".SH NAME",
        rf"{escaped(title)} \- {escaped(_sentence(help))}",
    ]


def _synopsis(name: str, command: Any) -> list[str]:
    words = [rf"\fI{escaped(metavar)}\fR" for metavar, _ in _records(command, name, "argument")]
    return [rf".B ntool {escaped(name)}", " ".join([*words, r"[\fIoptions\fR]"])]


def _arguments(command: Any, name: str) -> list[str]:
    out = []
    for metavar, text in _records(command, name, "argument"):
        out += [".TP", rf"\fI{escaped(metavar)}\fR", escaped(text.removesuffix(" [required]"))]
    return out


def _parameters(command: Any, name: str, *, common: bool) -> list[str]:
    """Options, as `--help` lists them: those of this command or those that all have.

    Of ntool itself all are listed with `common`.
    """
    out = []
    for spelling, text in _records(command, name, "option", common):
        names, _, value = spelling.partition(" ") if "," not in spelling else _several(spelling)
        bold = ", ".join(rf"\fB{escaped(n)}\fR" for n in names.split(", "))
        out += [".TP", bold + (rf" \fI{escaped(value)}\fR" if value else ""), escaped(text)]
    return out


def _several(spelling: str) -> tuple[str, str, str]:
    """`-o, --output PNG` as names and value."""
    first, _, rest = spelling.partition(", ")
    last, _, value = rest.partition(" ")
    return f"{first}, {last}", "", value


def _records(
    command: Any, name: str, kind: str, common: bool | None = None
) -> Iterator[tuple[str, str]]:
    """(spelling, help) of parameters, from where `--help` has them."""
    context = command.make_context(name, [], resilient_parsing=True)
    for p in command.get_params(context):
        record = p.get_help_record(context)
        shared = p.name in COMMON or "--help" in p.opts
        if p.param_type_name != kind or record is None:
            continue
        if common is not None and name != "ntool" and shared is not common:
            continue
        spelling, text = record
        yield "-h, --help" if "--help" in p.opts else spelling, " ".join(text.split())


def _codes(meanings: dict[int, str]) -> list[str]:
    out = []
    for code, meaning in meanings.items():
        out += [".TP", rf"\fB{code}\fR", escaped(meaning.replace("`", ""))]
    return out


def _paragraphs(help: str | None) -> list[str]:
    """A docstring as paragraphs."""
    out: list[str] = []
    for text in inspect.cleandoc(help or "").split("\n\n"):
        out += [".PP"] if out else []
        out.append(escaped(" ".join(text.split())))
    return out


def _sentence(help: str | None) -> str:
    text = " ".join((help or "").split("\n\n")[0].split())
    return text.rstrip(".")


def _others(names: list[str]) -> list[str]:
    return [", ".join(rf"\fB{escaped(n)}\fR(1)" for n in names)]


def main() -> None:
    """`python -m ntool.man --write DIR`."""
    parser = argparse.ArgumentParser(prog="python -m ntool.man", description=main.__doc__)
    parser.add_argument("--write", metavar="DIR", type=Path, required=True)
    for path in write(parser.parse_args().write):
        print(path)


if __name__ == "__main__":
    main()
