"""GGUF models of several files, and where a SOURCE is taken for one.

Q50 of the notes on Qwen4-Exp: the rules of split sets.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint import gguf_set
from ntool.lib.checkpoint.gguf_values import Length
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint, exit_code
from ntool.lib.errors import UsageProblem

from .gguf_files import ARCH, ARRAY, LITTLE, STRING, U32, A, T
from .header_files import shard

GOLDEN = Path(__file__).parents[1] / "data" / "qwen4-exp" / "gguf"
M = LITTLE
NAMES = [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
U16 = 2


def split(number: Any, count: Any = 3, total: Any = 3) -> list[bytes]:
    pairs = []
    for key, value in (("no", number), ("count", count), ("tensors.count", total)):
        if value is not None:
            pairs.append(M.pair(f"split.{key}", U16, value))
    return pairs


def part(
    path: Path, number: Any, *names: str, pairs: list[bytes] | None = None, **other: Any
) -> None:
    more = [ARCH] if pairs is None and not number else pairs or []
    path.write_bytes(M.file([*more, *split(number, **other)], [T(n, (4,)) for n in names]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    part(tmp_path / NAMES[0], 0)
    part(tmp_path / NAMES[1], 1, "a", "b")
    part(tmp_path / NAMES[2], 2, "c")
    return tmp_path


def opened(path: Path, **options: Any) -> Checkpoint:
    got = open_checkpoint(str(path), **options)
    assert got.format == "gguf"
    return got


def errors(got: Checkpoint) -> list[tuple[str, str | None]]:
    return [(p.code, p.file) for p in got.problems if p.severity == "error"]


@pytest.mark.parametrize("given", [*NAMES, ""])
def test_any_part_or_the_folder_gives_the_whole_set(folder: Path, given: str) -> None:
    got = opened(folder / given)
    assert got.problems == [] and list(got.tensors) == ["a", "b", "c"]
    assert [t.file for t in got.tensors.values()] == [NAMES[1], NAMES[1], NAMES[2]]
    assert list(got.files) == NAMES and list(got.metadata) == NAMES
    assert got.bytes_read == sum(got.files.values())
    facts = got.gguf
    assert facts is not None and facts.complete and facts.unsound == set()
    assert (facts.architecture, facts.file, facts.count) == ("llama", NAMES[0], 3)
    assert facts.parts == dict(zip(NAMES, (0, 2, 1), strict=True))
    assert facts.values["general.architecture"] == "llama"


def test_golden_set() -> None:
    got = opened(GOLDEN)
    # the golden of another test lies beside the set, and is no part of it
    assert [(p.code, p.file) for p in got.problems] == [
        ("unlisted-file", "indexer_fused.safetensors")
    ]
    assert len(got.tensors) == 113
    assert got.gguf is not None and got.gguf.values["tokenizer.ggml.tokens"] == Length(96)
    whole = opened(GOLDEN, full=True).metadata["tiny-qwen4exp-00001-of-00003.gguf"]
    assert whole["tokenizer.ggml.merges"] == ["a b", "b c"]


def test_single_file_with_everything(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(M.file([ARCH], [A]))
    for path in (tmp_path, tmp_path / "one.gguf"):
        got = opened(path)
        assert got.problems == [] and list(got.tensors) == ["a"]
        assert got.gguf is not None and (got.gguf.count, got.gguf.complete) == (1, True)
    part(tmp_path / "one.gguf", 0, "a", count=1, total=1)
    assert opened(tmp_path).problems == []


@pytest.mark.parametrize("lost", range(3))
def test_missing_part(folder: Path, lost: int) -> None:
    (folder / NAMES[lost]).unlink()
    given = folder / NAMES[(lost + 1) % 3]
    for path in (folder, given):
        got = opened(path)
        assert ("missing-shard", NAMES[lost]) in errors(got)
        assert exit_code(got.problems) == 3
        assert list(got.absent) == [NAMES[lost]]
        assert got.gguf is not None and not got.gguf.complete
    message = next(p.message for p in got.problems if p.code == "missing-shard")
    assert f"part {lost + 1} of 3" in message


def test_many_missing_parts_are_summed(folder: Path) -> None:
    path = folder / "z-00007-of-09999.gguf"
    part(path, 6, count=9999)
    got = opened(path)
    assert len(errors(got)) == gguf_set._SHOWN + 1
    assert "9990 more" in got.problems[-1].message


@pytest.mark.parametrize("count", ["00000", "10001"])
def test_impossible_number_of_parts_in_a_name(tmp_path: Path, count: str) -> None:
    path = tmp_path / f"z-00001-of-{count}.gguf"
    part(path, 0, "a", count=1, total=1)
    got = opened(path)
    assert errors(got) == [("bad-split", path.name)] and list(got.tensors) == ["a"]


def test_part_beyond_the_count(folder: Path) -> None:
    part(folder / "m-00004-of-00003.gguf", 3, "d")
    got = opened(folder)
    assert errors(got) == [("bad-split", "m-00004-of-00003.gguf")] and len(got.tensors) == 3


@pytest.mark.parametrize(
    ("files", "broken", "words"),
    [
        ({1: {"number": 2}, 2: {"number": 1}}, [NAMES[1], NAMES[2]], "found 2, expected 1"),
        ({1: {"number": 0}}, [NAMES[1], NAMES[1]], "found 0, expected 1, as the file is named"),
        ({2: {"number": 7}}, [NAMES[2]], "found 7, expected 0 to 2"),
        ({2: {"number": None}}, [NAMES[2]], "split.no: found 'none'"),
        ({1: {"count": 4}}, [NAMES[1]], "found 4, expected 3, the number in the files' names"),
        ({1: {"count": None}}, [NAMES[1]], "split.count: found 'none'"),
        ({1: {"total": 9}}, [NAMES[0]], "found 3 in m-00001-of-00003.gguf, 9 in"),
        ({0: {"total": 9}, 1: {"total": 9}, 2: {"total": 9}}, [NAMES[0]], "found 9, expected 3"),
        ({1: {"pairs": [M.pair("general.architecture", STRING, "gpt2")]}}, [NAMES[1]], "'gpt2'"),
        ({1: {"pairs": [M.pair("general.architecture", STRING, "llama")]}}, [], ""),
    ],
)
def test_split_rules(folder: Path, files: dict[int, Any], broken: list[str], words: str) -> None:
    held: list[tuple[str, ...]] = [(), ("a", "b"), ("c",)]
    for i, changes in files.items():
        number = changes.pop("number", i)
        part(folder / NAMES[i], number, *held[i], **changes)
    got = opened(folder)
    assert errors(got) == [("bad-split", name) for name in broken]
    assert list(got.tensors) == ["a", "b", "c"]
    if words:
        assert words in got.problems[0].message and exit_code(got.problems) == 3


def test_split_numbers_of_a_wrong_type(folder: Path) -> None:
    raw = M.file([ARCH, M.pair("split.no", STRING, "0"), *split(None)], [])
    (folder / NAMES[0]).write_bytes(raw)
    assert errors(opened(folder)) == [("bad-split", NAMES[0])]


def test_name_in_two_parts(folder: Path) -> None:
    part(folder / NAMES[2], 2, "a")
    got = opened(folder)
    assert errors(got) == [("duplicate-tensor", NAMES[2])] and exit_code(got.problems) == 3
    assert got.problems[0].name == "a" and got.tensors["a"].file == NAMES[1]


def test_cut_part_still_lists_the_others(folder: Path) -> None:
    raw = (folder / NAMES[1]).read_bytes()
    (folder / NAMES[1]).write_bytes(raw[:60])
    got = opened(folder)
    assert errors(got) == [("truncated", NAMES[1])] and list(got.tensors) == ["c"]
    assert got.gguf is not None and not got.gguf.complete


def test_part_of_a_set_under_another_name(folder: Path) -> None:
    """Its own numbers lead to the others, whatever they are called."""
    shutil.copy(folder / NAMES[1], folder / "renamed.gguf")
    (folder / "whole.gguf").write_bytes(M.file([ARCH], [A]))
    part(folder / "other.gguf", 2, "z", total=9)
    (folder / NAMES[2]).rename(folder / "third.gguf")
    got = opened(folder / "renamed.gguf")
    assert got.problems == []
    homes = {"a": "renamed.gguf", "b": "renamed.gguf", "c": "third.gguf"}
    assert {n: t.file for n, t in got.tensors.items()} == homes
    assert got.gguf is not None and (got.gguf.count, got.gguf.complete) == (3, True)


def test_what_is_missing_of_a_renamed_set(folder: Path, tmp_path_factory: Any) -> None:
    alone = tmp_path_factory.mktemp("alone")
    shutil.copy(folder / NAMES[1], alone / "x.gguf")
    for path in (alone, alone / "x.gguf"):
        got = opened(path)
        assert errors(got) == [("missing-shard", "x.gguf")] and exit_code(got.problems) == 3
        told = next(p.message for p in got.problems if p.code == "missing-shard")
        assert told == "2 of 3 parts are not found in its folder: split.no 0, 2"
        assert list(got.tensors) == ["a", "b"]
        assert got.gguf is not None and not got.gguf.complete
    shutil.copy(folder / NAMES[2], alone / "y.gguf")
    for path in (alone, alone / "x.gguf", alone / "y.gguf"):
        got = opened(path)
        assert errors(got) == [("missing-shard", "x.gguf")] and list(got.tensors) == ["a", "b", "c"]
        assert "1 of 3 parts" in got.problems[-1].message


def test_metadata_alone_are_whole(folder: Path, tmp_path_factory: Any) -> None:
    alone = tmp_path_factory.mktemp("alone")
    shutil.copy(folder / NAMES[0], alone / "x.gguf")
    got = opened(alone / "x.gguf")
    assert [(p.code, p.severity) for p in got.problems] == [("lone-part", "info")]


def test_two_files_of_one_number_are_not_guessed(folder: Path) -> None:
    shutil.copy(folder / NAMES[1], folder / "renamed.gguf")
    shutil.copy(folder / NAMES[2], folder / "again.gguf")
    got = opened(folder / "renamed.gguf")
    assert errors(got) == [("missing-shard", NAMES[0])]
    assert list(got.tensors) == ["a", "b"]


def test_renamed_parts_alone_in_a_folder_are_a_set(folder: Path) -> None:
    for name, new in zip(NAMES, ("y.gguf", "z.gguf", "x.gguf"), strict=True):
        (folder / name).rename(folder / new)
    got = opened(folder)
    assert got.problems == [] and list(got.tensors) == ["a", "b", "c"]
    assert got.gguf is not None and got.gguf.file == "y.gguf"


def test_several_models_are_ambiguous(folder: Path) -> None:
    (folder / "mmproj.gguf").write_bytes(M.file([ARCH], [A]))
    with pytest.raises(UsageProblem, match=r"found 2 \(m-00001-of-00003.gguf, mmproj.gguf\)") as e:
        open_checkpoint(str(folder))
    assert e.value.hint and "name one" in e.value.hint
    assert len(opened(folder / NAMES[2]).tensors) == 3
    assert len(opened(folder / "mmproj.gguf").tensors) == 1


def test_folder_with_two_formats(folder: Path) -> None:
    shard(folder / "adapter.safetensors", "x")
    got = opened(folder)
    assert [(p.code, p.severity, p.file) for p in got.problems] == [
        ("unlisted-file", "info", "adapter.safetensors")
    ]
    (folder / "config.json").write_text("{}")
    other = open_checkpoint(str(folder))
    assert other.format == "safetensors" and list(other.tensors) == ["x"]
    assert [p.file for p in other.problems] == NAMES and other.gguf is None


def test_file_without_an_ending_that_tells(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(M.file([ARCH], [A]))
    assert list(opened(tmp_path / "blob").tensors) == ["a"]
    (tmp_path / "other").write_bytes(b"something")
    assert open_checkpoint(str(tmp_path / "other")).format == "safetensors"
    (tmp_path / "M.GGUF").write_bytes(M.file([ARCH], [A]))
    assert list(opened(tmp_path / "M.GGUF").tensors) == ["a"]


def test_no_architecture_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(M.file([M.pair("general.architecture", U32, 1)], [A]))
    got = opened(tmp_path)
    assert [(p.code, p.severity) for p in got.problems] == [("bad-value", "info")]
    (tmp_path / "m.gguf").write_bytes(M.file([], [A]))
    assert [p.code for p in opened(tmp_path).problems] == ["missing-key"]


def test_links_must_stay_in_the_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (folder / NAMES[2]).rename(outside / "x.gguf")
    (folder / NAMES[2]).symlink_to(outside / "x.gguf")
    assert errors(opened(folder)) == [("path-escape", NAMES[2])]
    (folder / "link.gguf").symlink_to(folder / NAMES[1])
    assert opened(folder / "link.gguf").tensors


def test_header_cap_is_passed_on(tmp_path: Path) -> None:
    words = M.pair("w", ARRAY, (STRING, ["x"] * 100))
    (tmp_path / "m.gguf").write_bytes(M.file([ARCH, words], [A]))
    assert errors(opened(tmp_path, max_header=200)) == [("header-too-large", "m.gguf")]
