"""Wrong use that a command finds itself: the reader of its records is told too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TEXT = Path(__file__).parents[1] / "data" / "qwen4-exp" / "text"
WRONG: list[tuple[list[object], str]] = [
    (["run-prefill", TEXT, "--tokens", "1", "--size", "64x64"], "--size with a package"),
    (["run-prefill", TEXT, "--tokens", "1;2", "--decode", "1", "--raw"], "--raw: found 2 rows"),
    (["run-prefill", TEXT, "--tokens", "1", "-o", "-"], "-o -: arrays are not piped"),
    (["sample-image", "demo:shapes", "-o", "out.png"], "prompt"),
    (["export-component", TEXT], "no output folder"),
    (["export-component", TEXT, "-o", "-"], "-o -: a folder is not piped"),
    (["export-component", TEXT, "-o", "p", "--shard-size", "0"], "--shard-size: found 0"),
    (["export-component", TEXT, "-o", "p", "--max-shard-size", "x"], "--max-shard-size: found x"),
    (["export-component", TEXT, "-o", "p", "--max-shard-size", "6GB"], "--max-shard-size: found 6"),
    (["export-component", TEXT, "-o", "p", "--shard-size", "6GB"], "--shard-size: found 6000000"),
    (
        ["export-component", TEXT, "-o", "p", "--shard-size", "1GB", "--max-shard-size", "1GB"],
        "--shard-size and --max-shard-size: expected one of them",
    ),
    (["convert-fp8", TEXT, "-o", "-", "--to", "fp8"], "-o -: a folder is not piped"),
    (["convert-fp8", TEXT, "-o", "p", "--to", "fp8", "--part", "3/2"], "--part: found '3/2'"),
    (["convert-experts", TEXT, "-o", "-", "--to", "split"], "-o -: a folder is not piped"),
    (["convert-experts", TEXT, "-o", "p", "--to", "heap"], "--to: found"),
    (["verify-package", TEXT, "--write-manifest", "--manifest", "m"], "--write-manifest with"),
    (["verify-package", TEXT, "--check", "nothing"], "nothing"),
    (["census", TEXT, "--by", "colour"], "--by: found"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda x: str(x)[-60:])
def test_wrong_use_is_the_last_record(arguments, words, tmp_path, monkeypatch, ntool) -> None:
    monkeypatch.chdir(tmp_path)
    done = ntool(*arguments, code=2)
    assert words in done.err
    if "--raw" in arguments:
        assert done.out == ""  # text alone, and there is none
        return
    first, last = map(json.loads, done.out.splitlines())
    assert first["kind"] == "begin" and first["source"] == str(arguments[1])
    assert (last["kind"], last["code"]) == ("error", 2) and words in last["message"]
    assert list(tmp_path.iterdir()) == []
