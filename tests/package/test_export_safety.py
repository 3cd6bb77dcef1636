"""Exports: assets stay in the checkpoint, of two at once one wins, what is absent is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ntool.lib.text import tokenizer

from ..conftest import DATA

CHECKPOINT = DATA / "neo-chat" / "dense-conv" / "checkpoint"
FILES = [
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    return folder


def make(kind: str, path: Path) -> str:
    """Put something odd in the place of a file; returns what is said of it."""
    content = path.read_bytes()
    path.unlink()
    if kind == "outside":
        outside = path.parents[1] / "outside"
        outside.write_bytes(content)
        path.symlink_to(outside)
        return "leads outside"
    if kind == "dangling":
        path.symlink_to("nowhere")
        return "dangling link"
    if kind == "loop":
        path.symlink_to(path.name)
        return "leads nowhere"
    if kind == "folder":
        path.mkdir()
        return "found a directory"
    if kind == "pipe":
        os.mkfifo(path)
        return "found a named pipe"
    with open(path, "wb") as f:
        f.truncate(3 << 30)
    return "size in bytes"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["outside", "dangling", "loop", "folder", "pipe", "large"])
def test_odd_tokenizer_files(checkpoint: Path, tmp_path: Path, ntool, name: str, kind: str) -> None:
    words = make(kind, checkpoint / name)
    done = ntool("export-component", checkpoint, "embedding", "-o", tmp_path / "p", code=3)
    assert name in done.err and words in done.err
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("name", FILES[:4])
def test_odd_tokenizer_files_of_a_package(demo_package, tmp_path, ntool, name: str) -> None:
    package = tmp_path / "package"
    shutil.copytree(demo_package, package)
    words = make("outside", package / "tokenizer" / name)
    done = ntool("run-prefill", package, "--prompt", "x", code=3)
    assert name in done.err and words in done.err


@pytest.mark.parametrize("how", ["link", "../tokenizer", "/etc", None])
def test_the_tokenizer_of_a_package_lies_in_it(demo_package, tmp_path, ntool, how) -> None:
    package = tmp_path / "package"
    shutil.copytree(demo_package, package)
    if how == "link":
        os.rename(package / "tokenizer", tmp_path / "tokenizer")
        (package / "tokenizer").symlink_to(tmp_path / "tokenizer")
    else:
        manifest = json.loads((package / "package.json").read_text())
        manifest["tokenizer"] = how
        (package / "package.json").write_text(json.dumps(manifest))
    done = ntool("run-prefill", package, "--prompt", "x", code=3)
    assert ("leads outside" if how == "link" else "$.tokenizer") in done.err


def test_links_into_the_blobs_of_a_hub_cache_are_read(tmp_path: Path, ntool) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in CHECKPOINT.iterdir():
        shutil.copy(path, repository / "blobs" / f"b-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/b-{path.name}")
    ntool("export-component", snapshot, "embedding", "-o", tmp_path / "p")
    assert (tmp_path / "p" / "tokenizer" / "vocab.json").stat().st_size
    assert tokenizer.load(snapshot).size == tokenizer.load(CHECKPOINT).size


BARRIER = """
import os, pathlib, sys, time
from ntool.lib.package import export
check = export.check_output
def together(out, *rest, **options):
    check(out, *rest, **options)
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
    end = time.monotonic() + 20
    while len(os.listdir(sys.argv[1])) < 2 and time.monotonic() < end:
        time.sleep(0.01)
export.check_output = together
from ntool.guard import run
sys.exit(run(sys.argv[2:]))
"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and not p.is_symlink()
    }


@pytest.mark.parametrize("how", ["new", "empty", "force", "link"])
def test_two_exports_into_one_folder(demo_package: Path, tmp_path: Path, how: str) -> None:
    out, meeting, work = tmp_path / "out", tmp_path / "meeting", tmp_path / "work"
    meeting.mkdir()
    work.mkdir()
    out = work / "out"
    if how == "empty":
        out.mkdir()
    if how == "force":
        shutil.copytree(demo_package, out)
    if how == "link":
        (work / "real").mkdir()
        out.symlink_to("real")
    more = ["--force"] if how == "force" else []
    command = ["export-component", "demo:shapes", "embedding", "-o", str(out), *more]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BARRIER, str(meeting), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = sorted((p.wait(60), p.communicate()[1]) for p in processes)
    assert [code for code, _ in ended] == ([0, 0] if how == "force" else [0, 2]), ended
    if how != "force":
        assert f"output '{out}' exists" in ended[1][1]
    left = sorted(os.listdir(work))
    assert left == (["out", "real"] if how == "link" else ["out"])
    assert out.is_symlink() == (how == "link")
    alone = tmp_path / "alone"
    done = subprocess.run(
        [sys.executable, "-m", "ntool", *command[:4], str(alone)], capture_output=True, timeout=60
    )
    assert done.returncode == 0
    assert files_of(out) == files_of(alone)


def test_force_does_not_replace_what_was_put_there_meanwhile(
    demo_package: Path, tmp_path: Path, ntool, monkeypatch
) -> None:
    from ntool.lib.package import export

    out = tmp_path / "out"
    write = export.write_file

    def meanwhile(*arguments):
        write(*arguments)
        out.mkdir(exist_ok=True)
        (out / "work").write_text("of somebody")

    monkeypatch.setattr(export, "write_file", meanwhile)
    command = ["export-component", "demo:shapes", "embedding", "-o", out, "--force"]
    assert "exists" in ntool(*command, code=2).err
    assert os.listdir(tmp_path) == ["out"] and os.listdir(out) == ["work"]


def test_what_is_absent_is_not_found(checkpoint: Path, tmp_path: Path, ntool) -> None:
    command = ["export-component", checkpoint, "-o", tmp_path / "p"]
    config = (checkpoint / "config.json").read_bytes()
    (checkpoint / "config.json").unlink()
    assert "config.json: no such file" in ntool(*command, code=4).err
    (checkpoint / "config.json").write_text("{}")
    ntool(*command, code=3)
    (checkpoint / "config.json").write_bytes(config)
    index = checkpoint / "model.safetensors.index.json"
    words = json.loads(index.read_text())
    shard = next(iter(words["weight_map"].values()))
    words["weight_map"]["fm_modules.extra.weight"] = shard
    index.write_text(json.dumps(words))
    assert "fm_modules.extra.weight" in ntool(*command, code=4).err
    (checkpoint / shard).unlink()
    assert shard in ntool(*command, code=4).err


def test_a_full_disk_names_the_file(tmp_path: Path, ntool, monkeypatch) -> None:
    import errno

    from ntool.lib.checkpoint import writer

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer.os, "fsync", full)
    command = ["export-component", "demo:shapes", "embedding", "-o", tmp_path / "p"]
    done = ntool(*command, code=6)
    name = tmp_path / "p" / "embedding" / "model.safetensors"
    assert f"{name}: cannot write: No space left on device" in done.err
    assert os.listdir(tmp_path) == []
