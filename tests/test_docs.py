"""The pages under docs/: options, links, and examples that are run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntool import completion

from .fork_server import ntool_in

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WRITTEN = [*PAGES, ROOT / "README.md"]
TREE = completion.tree()
OPTIONS = {
    c.name: {n for each in (c, *c.commands) for o in each.options for n in o.names}
    for c in TREE.commands
}
"""Command -> its options; a group has those of all its commands."""
OPTIONS[""] = {n for o in TREE.options for n in o.names}
COMMON = set.intersection(*(names for name, names in OPTIONS.items() if name))
UPDATE = "UPDATE_EXAMPLES" in os.environ
"""Write what the examples print into the pages, to be read and committed, instead of comparing."""
SPELLED = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*(?![\w-])")


def blocks(text: str) -> list[list[tuple[str, list[str]]]]:
    """Of each console block: its commands, with the lines that follow them."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        commands: list[tuple[str, list[str]]] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif commands[-1][0].endswith("\\"):
                commands[-1] = (commands[-1][0] + "\n" + line, [])
            else:
                commands[-1][1].append(line)
        found.append(commands)
    return found


OTHERS = ("jq", "sha256sum", "make", "git")
"""Programs that some examples call and that need not be on a machine."""


def runs_here(commands: list[tuple[str, list[str]]]) -> bool:
    """Whether the programs are installed that a console block calls; no other block needs it."""
    text = "\n".join(command for command, _ in commands)
    return all(shutil.which(p) for p in OTHERS if re.search(rf"(?:^|[|;&(] *){p} ", text, re.M))


def files(text: str) -> dict[str, str]:
    """Files that a page shows: a block of another language below a line that names it."""
    shown = r"^`([\w./-]+)`:\n\n```(?!console)\w+\n(.*?)^```$"
    return dict(re.findall(shown, text, re.DOTALL | re.MULTILINE))


def calls(command: str) -> list[tuple[str, set[str]]]:
    """(command of ntool, its options) of each call in a shell line."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "X", command.replace("\\\n", " "))
    found = []
    for part in re.split(r"[|;&()]+|\d?>", bare):
        words = part.split()
        if words[:1] == ["ntool"]:
            name = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
            found.append((name, {w for w in words[1:] if SPELLED.fullmatch(w)}))
    return found


@pytest.mark.parametrize("command", TREE.commands, ids=lambda c: c.name)
def test_page_of_a_command(command: completion.Command) -> None:
    text = (DOCS / f"{command.name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# ntool {command.name}\n")
    for title in ("## Options", "## Exit codes", "## Examples"):
        assert title in text
    assert OPTIONS[command.name] - set(SPELLED.findall(text)) == set(), "options without a word"
    table = {n for row in re.findall(r"^\| (`-.*?) \|", text, re.M) for n in SPELLED.findall(row)}
    assert table == OPTIONS[command.name] - COMMON, "the options table"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.name)
def test_options_in_calls_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    written = [command for commands in blocks(text) for command, _ in commands]
    for content in files(text).values():  # `ntool @` is a requirement for pip
        written += re.findall(r"\bntool (?!@).*", content.replace("\\\n", " "))
    for command in written:
        for name, options in calls(command):
            assert name in OPTIONS, command
            assert options <= OPTIONS[name], command


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.name)
def test_options_in_text_exist(page: Path) -> None:
    """An option that is named in backquotes belongs to a command: to this one on its page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    known = OPTIONS.get(page.stem) or set.union(*OPTIONS.values())
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if re.match(r"--|-[a-z]\b", quoted):
            assert set(SPELLED.findall(quoted)) <= known, quoted


def anchors(path: Path) -> set[str]:
    """Anchors that headings get on the usual sites."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M):
        found.add(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.name)
def test_links(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


CITED = re.compile(
    r'docs/([\w-]+\.md)((?:,? (?:and )?"[^"]+")*)((?:(?:,| and| to)? \d+(?:\.\d+)*(?![\w%]))*)'
)
"""A page, with titles in quotes or numbers of sections behind it."""


def citations(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Of each citation of a page in a module: the page, titles and numbers of sections."""
    text = re.sub(r"\s*\n\s*#?\s*", " ", text)
    for name, titles, numbers in CITED.findall(text):
        yield name, re.findall(r'"([^"]+)"', titles), re.findall(r"\d+(?:\.\d+)*", numbers)


def test_citations_are_found() -> None:
    text = '(docs/a.md 5.4 and\n    5.6). docs/a.md, "One" and\n    # "Two"; docs/b.md: 3.'
    assert [*citations(text)] == [
        ("a.md", [], ["5.4", "5.6"]),
        ("a.md", ["One", "Two"], []),
        ("b.md", [], []),
    ]


def test_sections_that_the_code_cites() -> None:
    seen = 0
    for top in ("cli", "commands", "lib", "tests", "bench"):
        for module in (ROOT / top).rglob("*.py"):
            if module == Path(__file__):
                continue
            for name, titles, numbers in citations(module.read_text(encoding="utf-8")):
                assert (DOCS / name).is_file(), f"{module}: {name}"
                headings = re.findall(r"^#+ (.*)$", (DOCS / name).read_text(encoding="utf-8"), re.M)
                for title in titles:
                    ends = [
                        h for h in headings if h == title or re.fullmatch(rf"[\d.]+ {title}", h)
                    ]
                    assert ends, f"{module}: {name} has no section {title!r}"
                for number in numbers:
                    found = [h for h in headings if re.match(rf"{re.escape(number)}\.? ", h)]
                    assert found, f"{module}: {name} has no section {number}"
                seen += len(titles) + len(numbers)
    assert seen > 20


def test_citations_name_their_page() -> None:
    """No `specification 5.4`: a section is cited with the page that has it."""
    for top in ("cli", "commands", "lib", "tests"):
        for module in (ROOT / top).rglob("*.py"):
            if module != Path(__file__):
                found = re.search(r"specification,? \(?\d", module.read_text(encoding="utf-8"))
                assert found is None, f"{module}: {found}"


UNSTEADY = (
    (re.compile(r'("seconds":|seconds +)[0-9.e-]+'), r"\1T"),
    (re.compile(r'(\.png","nbytes":)\d+'), r"\1N"),
    (re.compile(r"((?:PNG|png) +)[\d,]+(?=  picture)"), r"\1N"),  # zlib's, and the last bit's
    (re.compile(r"\d+\.\d+(e-?\d+)?"), "F"),
    (re.compile(r" +"), " "),
)


def steady(text: str) -> str:
    """Without what differs between runs and machines."""
    for pattern, instead in UNSTEADY:
        text = pattern.sub(instead, text)
    return text


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are those shown, where a line `...` stands for any number of them."""
    wanted = [re.escape(steady(line)) + r"\n" if line != "..." else r"(?:.*\n)*" for line in shown]
    return re.fullmatch("".join(wanted), "".join(steady(p) + "\n" for p in printed)) is not None


def cut(shown: list[str], printed: list[str]) -> list[str]:
    """The printed lines with as many left out as the shown ones leave out."""
    if "..." not in shown:
        return printed
    head = shown.index("...")
    return [*printed[:head], "...", *printed[len(printed) - (len(shown) - head - 1) :]]


def test_matches_notices_a_difference() -> None:
    assert matches(["a 1", "...", "z"], ["a 1", "b", "c", "z"])
    assert matches(['{"seconds":0.1}'], ['{"seconds":0.25}'])
    assert not matches(["a 1"], ["a 2"])
    assert not matches(["a", "..."], ["b", "a"])
    assert not matches(["a"], ["a", "b"])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment in which `ntool` and `python3` are those of this run."""
    folder = tmp_path_factory.mktemp("bin")
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "LC_ALL": "C", "PYTHONPATH": ""}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the make that runs the tests
        env.pop(name, None)
    with ntool_in(folder, env):
        yield env


def printed_by(commands: list[str], folder: Path, env: dict[str, str]) -> list[list[str]]:
    """The lines that each command prints, all of them run in one shell."""
    mark = "\x1eend"
    lines = [f"{command}\nprintf '\\n{mark}\\n'\n" for command in commands]
    done = subprocess.run(
        ["bash", "-c", "exec 2>&1\n" + "".join(lines)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return [part.splitlines() for part in done.stdout.split(f"\n{mark}\n")]


def test_other_programs_are_here() -> None:
    missing = [p for p in OTHERS if shutil.which(p) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; examples that call them are not run")


@pytest.mark.parametrize(
    "page", [p for p in WRITTEN if blocks(p.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_examples_print_what_is_shown(page: Path, tmp_path: Path, shell: dict[str, str]) -> None:
    text = page.read_text(encoding="utf-8")
    examples = [e for commands in blocks(text) if runs_here(commands) for e in commands]
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # some show what the tests' checkpoints give
    for name, content in files(text).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = printed_by([command for command, _ in examples], tmp_path, shell)
    wrong = []
    for (command, shown), printed in zip(examples, found, strict=False):
        if matches(shown, printed):
            continue
        wrong.append("\n".join([f"$ {command}", *printed]))
        if UPDATE:
            old, new = ("".join(f"{x}\n" for x in y) for y in (shown, cut(shown, printed)))
            text = text.replace(f"$ {command}\n{old}", f"$ {command}\n{new}", 1)
            page.write_text(text, encoding="utf-8")
    assert len(found) == len(examples) + 1, "the shell ended early"
    assert UPDATE or not wrong, "\n\n".join(wrong)
