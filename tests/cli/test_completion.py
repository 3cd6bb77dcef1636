"""Completion scripts: fresh, and answering in a real bash (in fish where it exists)."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ntool import completion
from ntool.commands import COMMANDS, GROUPS
from ntool.lib.families import neo_chat

COMPLETIONS = Path(__file__).parents[2] / "completions"

ASK = r"""
source "$1"; shift
COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
_ntool ntool "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


def ask(line: str, cwd: Path) -> list[str]:
    """What bash would offer at the end of a line; bash cuts words at `:` and `=` too."""
    words = re.findall(r"[:=]+|[^\s:=]+", line) + ([""] if line[-1] == " " else [])
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", str(COMPLETIONS / "ntool.bash"), line, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stderr == "" and done.returncode == 0
    return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []


@pytest.mark.parametrize("shell", completion.FILES)
def test_committed_scripts_are_fresh(shell: str) -> None:
    committed = (COMPLETIONS / completion.FILES[shell]).read_text(encoding="utf-8")
    assert committed == completion.script(shell), "run `make completions`"


def test_the_same_text_whatever_the_hash_seed(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-m", "ntool.completion", "--write", str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
    for name in completion.FILES.values():
        first, second = ((tmp_path / seed / name).read_bytes() for seed in ("1", "2"))
        assert first == second and first


def test_tree_has_all_commands_and_values() -> None:
    tree = completion.tree()
    assert tuple(c.name for c in tree.commands) == COMMANDS
    inside = {c.name: tuple(i.word for i in c.commands) for c in tree.commands if c.commands}
    assert inside == {name: words for name, (_, words) in GROUPS.items()}
    found = {
        (c.name, n): o.value
        for c in tree.commands
        for o in c.options
        for n in o.names
        if o.value is not None
    }
    words = {key: value.words for key, value in found.items()}
    assert words["census", "--format"] == ("jsonl", "table", "csv", "tsv")
    assert words["sample-image", "--device"] == ("auto", "cpu", "cuda")
    assert set(words["run-prefill", "--task"]) >= {"chat", "text-to-image", "unconditional"}
    assert {"BF16", "F8_E4M3"} < set(words["census", "--as-dtype"])
    assert {"auto", "f32"} <= set(words["export-component", "--dtype"])
    assert {"auto", "copy"} <= set(words["export-component", "--data"])
    assert found["sample-image", "--trace"].kind == "file"
    assert found["sample-image", "--seed"].kind == "text"
    assert found["census", "--against"].kind == "source"


def test_words_agree_with_the_library() -> None:
    from ntool.lib.checkpoint.grouping import KEYS
    from ntool.lib.families.neo_chat.draw import RNGS
    from ntool.lib.package.checks.catalogue import CHECKS
    from ntool.lib.sampling.guidance import NORMS

    values = {
        (c.name, n): o.value.words
        for c in completion.tree().commands
        for o in c.options
        for n in o.names
        if o.value
    }
    assert values["sample-image", "--cfg-norm"] == NORMS
    assert values["sample-image", "--rng"] == tuple(RNGS)
    assert values["verify-package", "--check"] == tuple(c.id for c in CHECKS)
    assert sorted(values["census", "--by"]) == sorted(KEYS)
    assert set(values["run-prefill", "--task"]) <= set(neo_chat.PIPELINES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auto or f32.", ("auto", "f32")),
        ("How weights get in: auto, copy or reflink.", ("auto", "copy", "reflink")),
        ("auto, cpu, cuda or cuda:INDEX.", ("auto", "cpu", "cuda")),
        ("layer, prefix[:DEPTH], file, or role. Repeatable.", ("layer", "prefix", "file", "role")),
        ("Branch, tag or commit on the Hub; as SOURCE@REV.", ()),
        ("Saved summary, or some of its fields: exit 1 if it differs.", ()),
        ("layer, prefix[:DEPTH], file, role. Repeatable.", ("layer", "prefix", "file", "role")),
        ("Euler steps.", ()),
        ("Again, and again.", ()),
        ("", ()),
    ],
)
def test_values_named_by_a_help_text(text: str, words: tuple[str, ...]) -> None:
    assert completion.enumerated(text) == words


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("ntool ", list(COMMANDS)),
        ("ntool exp", ["export-component"]),
        ("ntool --", ["--version", "--verbose", "--help"]),
        ("ntool nonsense ", []),
        ("ntool census --gr", ["--groups"]),
        ("ntool --version ce", ["census"]),
        ("ntool census --format ", ["jsonl", "table", "csv", "tsv"]),
        ("ntool census --format=j", ["jsonl"]),
        ("ntool census --format=", ["jsonl", "table", "csv", "tsv"]),
        ("ntool census --groups ", ["a folder", "data", "demo.json"]),
        ("ntool census --groups=de", ["demo.json"]),
        ("ntool census --allow-missing ", []),
        ("ntool census ", ["demo:shapes", "a folder", "data", "demo.json"]),
        ("ntool census dem", ["demo:shapes", "demo.json"]),
        ("ntool census demo:s", ["shapes"]),
        ("ntool census demo:", ["shapes"]),
        ("ntool census x ", []),
        ("ntool census -- --f", []),
        ("ntool patch", ["patchgen"]),
        ("ntool patchgen ", list(GROUPS["patchgen"][1])),
        ("ntool patchgen gen", ["generate"]),
        ("ntool patchgen --", ["--help"]),
        ("ntool patchgen generate --std", ["--stdout"]),
        ("ntool patchgen generate --format=t", ["table", "tsv"]),
        ("ntool patchgen check -c name de", ["demo.json"]),
        ("ntool patchgen nonsense --", []),
        ("ntool inspect-headers x y demo:", ["shapes"]),
        ("ntool export-component demo:shapes ", list(neo_chat.COMPONENTS)),
        ("ntool export-component -o p demo:shapes embedding deco", ["decoder"]),
        ("ntool export-component -o ", ["a folder", "data", "demo.json"]),
        ("ntool run-prefill da", ["data"]),
        ("ntool run-prefill de", ["demo:shapes"]),
        ("ntool sample-image p --cfg-norm c", ["channel", "cfg_zero_star"]),
        ("ntool sample-image p --seed ", []),
        ("ntool sample-image p --nonsense=", []),
        ("ntool completion z", ["zsh"]),
        (
            "ntool verify-package p --skip data.",
            [f"data.{x}" for x in ("path", "bounds", "orphans", "hash")],
        ),
    ],
)
def test_bash_offers(line: str, offers: list[str], tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "demo.json").touch()
    assert sorted(ask(line, tmp_path)) == sorted(offers)


def test_bash_names_every_option(tmp_path: Path) -> None:
    for command in completion.tree().commands:
        long = [n for o in command.options for n in o.names if n.startswith("--")]
        assert sorted(ask(f"ntool {command.name} --", tmp_path)) == sorted(long)


def typed(shell: list[str], setup: str, keys: str, cwd: Path) -> str:
    """What a shell in a terminal prints for a line that is typed with tabs in it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        env = {**os.environ, "PS1": "", "TERM": "dumb", "INPUTRC": os.devnull, "HISTFILE": ""}
        os.execvpe(shell[0], shell, env)
    seen = b""

    def until(mark: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 15
        while mark not in seen and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    seen += os.read(terminal, 4096)
                except OSError:  # the shell is gone
                    return

    try:
        os.write(terminal, f"{setup}; echo rea''dy\n".encode())
        until(b"ready")
        seen = b""
        for part in re.split("(?<=\t)", keys):
            os.write(terminal, part.encode())
            time.sleep(0.1)
        os.write(terminal, b"\n")
        until(b"<end>")
    finally:
        os.write(terminal, b"\x03\x04exit\n")
        os.close(terminal)
        os.waitpid(pid, 0)
    return seen.decode(errors="replace")


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ("ntool cens\tdemo:s\t--form\tjs\t", "<census><demo:shapes><--format><jsonl>"),
        ("ntool census --format=ta\t", "<census><--format=table>"),
        ("ntool census --groups my\t", "<census><--groups><my rules.json>"),
        ("ntool census --groups 'my\t", "<census><--groups><my rules.json>"),
        ("ntool run-prefill pack\t", "<run-prefill><package/>"),
        (
            "ntool export-component demo:shapes vis\t",
            "<export-component><demo:shapes><vision_encoder>",
        ),
    ],
)
def test_tab_in_a_real_bash(keys: str, arguments: str, tmp_path: Path) -> None:
    (tmp_path / "my rules.json").touch()
    (tmp_path / "package").mkdir()
    setup = (
        f"source '{COMPLETIONS / 'ntool.bash'}'; "
        "ntool() { printf '<%s>' \"$@\"; echo '<'end'>'; }"
    )
    assert f"{arguments}<end>" in typed(
        ["bash", "--norc", "--noprofile", "-i"], setup, keys, tmp_path
    )


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_parse_their_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = COMPLETIONS / completion.FILES[shell]
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_offers(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    (tmp_path / "demo.json").touch()

    def offers(line: str) -> list[str]:
        script = f"source '{COMPLETIONS / 'ntool.fish'}'; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(tmp_path)},
            timeout=20,
        )
        assert done.stderr == ""
        return [row.split("\t")[0] for row in done.stdout.splitlines()]

    assert sorted(offers("ntool ")) == sorted(COMMANDS)
    assert sorted(offers("ntool census de")) == ["demo.json", "demo:shapes"]
    assert offers("ntool census --form") == ["--format"]
    assert offers("ntool census --format t") == ["table", "tsv"]
    assert offers("ntool export-component --dtype f32 demo:shapes deco") == ["decoder"]
    assert offers("ntool census x ") == []
    assert sorted(offers("ntool patchgen ")) == sorted(GROUPS["patchgen"][1])
    assert offers("ntool patchgen generate --std") == ["--stdout"]
    assert offers("ntool patchgen check -c name de") == ["demo.json"]


def test_command_prints_the_script() -> None:
    for shell, name in completion.FILES.items():
        done = subprocess.run(
            [sys.executable, "-m", "ntool", "completion", shell], capture_output=True, timeout=20
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == (COMPLETIONS / name).read_bytes()


def test_command_refuses_other_shells() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ntool", "completion", "csh"], capture_output=True, timeout=20
    )
    assert done.returncode == 2 and done.stdout == b""
    assert done.stderr.startswith(b"ntool completion: ") and b"'csh' is not one of" in done.stderr
