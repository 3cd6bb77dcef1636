"""The cache of exports: made once by several processes, made again when damaged, told when it
cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import cache

from ..conftest import DATA, run_ntool

RUN = ["run-prefill", "demo:shapes", "--prompt", "x"]


def entry(folder: Path) -> Path:
    (found,) = [p for p in folder.iterdir() if p.is_dir()]
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one entry. Read only: copy it to change it."""
    folder = tmp_path_factory.mktemp("cache") / "c"
    done = run_ntool(*RUN, env={"NTOOL_CACHE": str(folder)})
    assert done.code == 0, done.err
    return folder


BARRIER = """
import sys, time, os, pathlib
from ntool.lib.package import cache, export
if sys.argv[2] == "unlocked":
    cache._locked = lambda file, folder, note: False
write = export.write
def together(plan, out, **options):
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
    end = time.monotonic() + 20
    wanted = 2 if sys.argv[2] == "unlocked" else 1
    while len(os.listdir(sys.argv[1])) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    if wanted == 1:
        time.sleep(1)
    write(plan, out, **options)
export.write = together
from ntool.guard import run
sys.exit(run(sys.argv[3:]))
"""


@pytest.mark.parametrize("how", ["locked", "unlocked"])
def test_two_processes_at_once_both_succeed(tmp_path: Path, how: str) -> None:
    meeting, folder = tmp_path / "meeting", tmp_path / "cache"
    meeting.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BARRIER, str(meeting), how, *RUN],
            env={**os.environ, "NTOOL_CACHE": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [(*p.communicate(timeout=120), p.returncode) for p in processes]
    assert [code for _, _, code in ended] == [0, 0], ended
    made = sum("exporting demo:shapes" in err for _, err, _ in ended)
    assert made == len(os.listdir(meeting)) == (1 if how == "locked" else 2)
    assert not [n for n in os.listdir(folder) if ".tmp" in n or ".old" in n]
    rows = [json.loads(line) for out, _, _ in ended for line in out.splitlines()]
    assert len({r["next_token"] for r in rows if r["kind"] == "summary"}) == 1


def no_manifest(folder: Path) -> None:
    (folder / "package.json").unlink()


def cut_manifest(folder: Path) -> None:
    (folder / "package.json").write_text('{"schema":')


def no_data(folder: Path) -> None:
    (folder / "decoder" / "model.safetensors").unlink()


def cut_data(folder: Path) -> None:
    with open(folder / "decoder" / "model.safetensors", "r+b") as f:
        f.truncate(100_000)


def no_graph(folder: Path) -> None:
    (folder / "decoder" / "model.onnx").write_bytes(b"")


def no_tokenizer(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer")


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize(
    "damage", [no_manifest, cut_manifest, no_data, cut_data, no_graph, no_tokenizer, a_file]
)
def test_a_damaged_entry_is_made_again(
    tmp_path: Path, filled: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(filled, folder)
    place = entry(folder)
    damage(place)
    done = run_ntool(*RUN, env={"NTOOL_CACHE": str(folder)})
    assert done.code == 0 and "is damaged" in done.err, done.err
    assert entry(folder) == place
    again = run_ntool(*RUN, env={"NTOOL_CACHE": str(folder)})
    assert again.code == 0 and "exporting" not in again.err


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    checkpoint = cache.open_checkpoint("demo:shapes")
    left = tmp_path / f".{cache.cache_key(checkpoint)}.ntool-1.tmp"
    left.mkdir()
    assert run_ntool(*RUN, env={"NTOOL_CACHE": str(tmp_path)}).code == 0
    assert not left.exists()


def test_a_whole_entry_needs_no_writing(tmp_path: Path, filled: Path, monkeypatch) -> None:
    monkeypatch.setenv("NTOOL_CACHE", str(filled))

    def alone(folder, note):
        raise AssertionError("no lock is needed")

    monkeypatch.setattr(cache, "_alone", alone)
    assert cache.package_of("demo:shapes", print).root == entry(filled)


def test_caches_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.symlink("/proc", tmp_path / "unwritable")
    for name in ("file", "dangling", "loop", "file/below", "unwritable", "n" * 300):
        done = run_ntool(*RUN, env={"NTOOL_CACHE": str(tmp_path / name)})
        assert done.code == 6 and "cache '" in done.err, (name, done.err)
        assert "NTOOL_CACHE names another folder" in done.err and "Traceback" not in done.err
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    done = run_ntool(*RUN, env={"NTOOL_CACHE": odd})
    assert done.code == 6 and "not UTF-8" in done.err


def test_a_damaged_entry_that_cannot_be_replaced_is_named(
    tmp_path: Path, filled: Path, monkeypatch, ntool
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(filled, folder)
    place = entry(folder)
    no_data(place)
    monkeypatch.setenv("NTOOL_CACHE", str(folder))
    rename = os.rename

    def busy(a, b):
        if Path(a) == place:
            raise OSError(16, "Device or resource busy", str(a))
        rename(a, b)

    monkeypatch.setattr(os, "rename", busy)
    done = ntool(*RUN, code=6)
    assert f"cache '{place}' is damaged" in done.err and "delete that folder" in done.err


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "generation_config.json",
                                  "preprocessor_config.json", "merges.txt"])  # fmt: skip
def test_every_file_beside_the_weights_counts(name: str, tmp_path: Path) -> None:
    """A cached export is of the files that were there."""
    case = DATA / "qwen4-exp" / "text"
    shutil.copytree(case, tmp_path / "c", ignore=shutil.ignore_patterns("golden"))
    before = cache.cache_key(open_checkpoint(str(tmp_path / "c")))
    (tmp_path / "c" / name).write_text("{}")
    assert cache.cache_key(open_checkpoint(str(tmp_path / "c"))) != before
