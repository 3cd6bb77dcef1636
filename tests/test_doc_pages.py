"""What every page of a command has: usage, each record shown, its exit codes, three recipes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bench.__main__ import ROWS
from ntool import completion
from ntool.exit_codes import MEANINGS, OF_COMMAND

from .test_docs import DOCS, ROOT, TREE, blocks

SECTIONS = ("Options", "Records", "Exit codes", "Examples", "Recipes")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found is not None, title
    return found[1]


def kinds() -> dict[str, set[str]]:
    """Kind -> its commands, by the table of docs/records.md; those of all commands have none."""
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| (.*?) \|$", section(page("records"), "Kinds"), re.M)
    names = {c.name for c in TREE.commands}
    return {
        kind: {n for n in names if re.search(rf"(?<![\w-]){n}(?![\w-])", writers)}
        for kind, writers in rows
    }


KINDS = kinds()


@pytest.mark.parametrize("command", TREE.commands, ids=lambda c: c.name)
def test_sections_and_usage(command: completion.Command) -> None:
    text = page(command.name)
    found = [t for t in re.findall(r"^## (.*)$", text, re.M) if t in SECTIONS]
    assert found == list(SECTIONS)
    head = text.split("\n## ")[0]
    usage = re.findall(r"^ {4}ntool (.*)$", head, re.M)
    assert usage
    for each in command.commands or (command,):
        assert any(re.match(rf"{each.name}(?![\w-])", line) for line in usage), each.name


@pytest.mark.parametrize("command", TREE.commands, ids=lambda c: c.name)
def test_a_record_of_each_kind_is_shown(command: completion.Command) -> None:
    shown = "\n".join(re.findall(r"^```\w+\n(.*?)^```$", page(command.name), re.S | re.M))
    own = {kind for kind, names in KINDS.items() if command.name in names}
    assert {kind for kind in own if f'"kind":"{kind}"' not in shown} == set()
    told = section(page(command.name), "Records")
    assert {kind for kind in own if f"`{kind}`" not in told} == set(), "without a word"


def written(module: Path) -> set[str]:
    """Kinds that stand in calls which write records, or are yielded with their fields."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        first = None
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("write", "write_all"):
            first = node.args[0] if len(node.args) > 1 or node.keywords else None
        elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            first = node.value.elts[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.add(first.value)
    return found & set(KINDS)


BEHIND = {
    "inspect-headers": ["lib/inspection.py"],
    "convert-fp8": ["cli/conversion_console.py"],
    "convert-experts": ["cli/conversion_console.py"],
    "patchgen": ["cli/patchgen_console.py"],
    "verify-package": ["lib/package/release.py"],
    "run-prefill": [f"lib/families/{f}/prefill_run.py" for f in ("neo_chat", "qwen4_exp")],
    "sample-image": ["lib/families/neo_chat/order.py"],
}
"""Modules that write, or yield, the records of a command; besides those of commands/."""


@pytest.mark.parametrize("command", TREE.commands, ids=lambda c: c.name)
def test_the_table_of_kinds_knows_what_is_written(command: completion.Command) -> None:
    stem = command.name.replace("-", "_")
    modules = [ROOT / m for m in BEHIND.get(command.name, [])]
    for each in command.commands or (command,):
        name = each.name.replace("-", "_").replace(" ", "_")
        modules.append(ROOT / "commands" / f"{name}.py")
    found = set().union(*map(written, modules))
    own = {kind for kind, names in KINDS.items() if command.name in names}
    assert found <= own
    assert found or stem == "completion", "nothing was found: the search is blind"


@pytest.mark.parametrize("command", TREE.commands, ids=lambda c: c.name)
def test_exit_codes(command: completion.Command) -> None:
    """The table is that of the code; what examples end with is in it."""
    text = page(command.name)
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section(text, "Exit codes"), re.M)
    assert {int(code): words for code, words in rows} == OF_COMMAND[command.name]
    assert OF_COMMAND[command.name].keys() <= MEANINGS.keys()
    assert {0, 2} <= OF_COMMAND[command.name].keys(), "all take options that may be wrong"
    for commands in blocks(text):
        for call, shown in commands:
            name = re.match(r"ntool ([\w-]+)[^|;]*; echo \"exit \$\?\"", call)
            if name is not None and name[1] == command.name:
                codes = [int(n) for n in re.findall(r"^exit (\d+)$", "\n".join(shown), re.M)]
                assert codes and set(codes) <= OF_COMMAND[command.name].keys(), call


def test_exit_codes_have_the_commands() -> None:
    assert list(OF_COMMAND) == [c.name for c in TREE.commands]


@pytest.mark.parametrize("command", TREE.commands, ids=lambda c: c.name)
def test_three_recipes(command: completion.Command) -> None:
    """At least three, each introduced, with another program than ntool in one of them."""
    recipes = section(page(command.name), "Recipes")
    found = re.findall(
        r"^[^`\n][^\n]*\n\n```(?:console|dockerfile)\n(.*?)^```$", recipes, re.M | re.S
    )
    assert len(found) >= 3
    assert len(set(found)) == len(found)
    assert re.search(r"jq|xargs|for |while |\||source|<\(", "\n".join(found))


def test_comparison_names_rows_and_pages_that_exist() -> None:
    """Its numbers are elsewhere: rows of the benchmarks, and one table that says where from."""
    text = page("comparison")
    rows = set()
    for line in re.findall(r"^\|(.*)\|$", text.split("## Measured once")[0], re.M):
        cells = [c.strip() for c in line.split("|")]
        if len(cells) == 4:
            rows |= set(re.findall(r"`([\w-]+)`", cells[3]))
    assert len(rows) >= 10
    assert rows <= {row.name for row in ROWS}
    before = text.split("## Measured once")[0]
    assert re.findall(r"\d+(?:\.\d+)? (?:s|seconds|times)\b", before) == [], "numbers stand there"
