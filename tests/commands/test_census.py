from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.census import schema_hash
from ntool.lib.checkpoint.tensor import BITS, Tensor

DATA = Path(__file__).parents[1] / "data" / "census"
VECTORS = json.loads((DATA / "schema_hash.json").read_text())
NTOOL = [sys.executable, "-m", "ntool"]


def ntool(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NTOOL, *arguments], input=stdin, capture_output=True, text=True, timeout=60
    )


def kinds(text: str) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in text.splitlines():
        record = json.loads(line)
        out[record["kind"]].append(record)
    return out


def write(path: Path, tensors: list[tuple[str, str, list[int]]]) -> None:
    """A file with a real header and a hole for a payload."""
    at, rows = 0, {}
    for name, dtype, shape in tensors:
        bits = BITS[dtype]
        for d in shape:
            bits *= d
        rows[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + bits // 8]}
        at += bits // 8
    text = json.dumps(rows).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 50 GB of SenseNova-U1.5 as headers over sparse files."""
    folder = tmp_path_factory.mktemp("u15")
    listing = json.loads(gzip.decompress((DATA / "u1.5-8b-mot.tensors.json.gz").read_bytes()))
    files = defaultdict(list)
    for t in listing["tensors"]:
        files[t["shard_guess"]].append((t["name"], t["dtype"], t["shape"]))
    for file, tensors in files.items():
        write(folder / file, tensors)
    weight_map = {name: file for file, rows in files.items() for name, _, _ in rows}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = (DATA / "u1.5-8b-mot.config.json").read_text()
    (folder / "config.json").write_text(config)
    return folder


PUBLISHED = {
    "understanding": (549, 9_348_413_952, 18_696_827_904),
    "generation": (551, 8_121_323_008, 31_327_613_440),
    "fm_modules": (12, 45_548_736, 162_433_408),
    "vision_model": (4, 17_568_768, 35_137_536),
}


def judge_full_size(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    out = kinds(done.stdout)
    groups = {g["key"]: (g["tensors"], g["params"], g["nbytes"]) for g in out["group"]}
    assert groups == PUBLISHED
    [summary] = out["summary"]
    assert (summary["tensors"], summary["params"]) == (1116, 17_532_854_464)
    assert summary["nbytes"] == 50_222_012_288
    assert summary["files"] == 13
    absent = [f"model-0000{k}-of-00016.safetensors" for k in (2, 3, 4)]
    assert summary["files_absent_from_numbering"] == absent
    assert summary["missing"] == summary["orphans"] == summary["duplicates"] == []
    assert summary["schema_hash"] == VECTORS["u1.5-8b-mot"]["schema_hash"]
    assert summary["family"] == "neo_chat"
    assert set(summary["components"].values()) == {True}
    assert len(summary["components"]) == 5
    assert summary["tied"] is False
    assert summary["estimate"] == {"BF16": 35_065_708_928}
    assert not [p for p in out["problem"] if p["severity"] != "info"]


def test_full_size(full_size: Path) -> None:
    judge_full_size(ntool("census", str(full_size), "--as-dtype", "BF16"))


def test_full_size_through_a_pipe(full_size: Path) -> None:
    stream = ntool("inspect-headers", str(full_size)).stdout
    judge_full_size(ntool("census", "-", "--as-dtype", "BF16", stdin=stream))
    direct = kinds(ntool("census", str(full_size)).stdout)["summary"]
    assert kinds(ntool("census", "-", stdin=stream).stdout)["summary"] == direct


def test_family_from_names_alone(full_size: Path) -> None:
    lines = ntool("inspect-headers", str(full_size), "--format", "jsonl").stdout.splitlines()
    kept = [x for x in lines if '"kind":"tensor"' in x]
    end = json.dumps({"kind": "end", "count": len(kept), "seconds": 0})
    out = kinds(ntool("census", "-", stdin="\n".join([lines[0], *kept, end])).stdout)
    assert {g["key"]: g["tensors"] for g in out["group"]} == {k: v[0] for k, v in PUBLISHED.items()}
    assert out["summary"][0]["components"] is None


def test_hash_vector() -> None:
    toy = VECTORS["toy"]
    tensors = [Tensor(t["name"], t["dtype"], tuple(t["shape"]), "f", 0, 0) for t in toy["tensors"]]
    assert schema_hash(tensors) == toy["schema_hash"]
    assert schema_hash(reversed(tensors)) == toy["schema_hash"]


def test_hash_ignores_shards_and_sees_everything_else(tmp_path: Path) -> None:
    a, b = ("a", "F32", [2]), ("b", "F32", [])
    for i, layout in enumerate([[[a, b]], [[b], [a]], [[b, a]]]):
        (tmp_path / str(i)).mkdir()
        for k, rows in enumerate(layout):
            write(tmp_path / str(i) / f"{k}.safetensors", rows)
    changed = {
        "x": [("a", "F32", [2, 1]), b],
        "y": [("a", "I32", [2]), b],
        "z": [("c", "F32", [2]), b],
    }
    for name, rows in changed.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name / "m.safetensors", rows)

    def of(name: str) -> str:
        return kinds(ntool("census", str(tmp_path / name)).stdout)["summary"][0]["schema_hash"]

    same = {of(str(i)) for i in range(3)}
    assert len(same) == 1
    assert len(same | {of(n) for n in changed}) == 4


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    rows = [
        ("layers.10.w.weight", "BF16", [4, 4]),
        ("layers.2.w.weight", "BF16", [4, 4]),
        ("layers.2.w.bias", "F32", [4]),
        ("embed.weight", "I64", [3]),
    ]
    write(folder / "m.safetensors", rows)
    return folder


@pytest.mark.parametrize(
    "by, keys",
    [
        ("dtype", {"BF16": 2, "F32": 1, "I64": 1}),
        ("layer", {"layers.10": 1, "layers.2": 2, "other": 1}),
        ("prefix", {"layers": 3, "embed": 1}),
        ("prefix:2", {"layers.10": 1, "layers.2": 2, "embed.weight": 1}),
        ("file", {"m.safetensors": 4}),
        ("shape", {"4x4": 2, "4": 1, "3": 1}),
        ("role", {"weight": 3, "bias": 1}),
        ("family", {"layers": 3, "embed": 1}),
        ("component", {"layers": 3, "embed": 1}),
    ],
)
def test_by(by: str, keys: dict[str, int], small: Path) -> None:
    out = kinds(ntool("census", str(small), "--by", by).stdout)
    assert {g["key"]: g["tensors"] for g in out["group"]} == keys
    assert {g["by"] for g in out["group"]} == {by}
    for field in ("tensors", "params", "nbytes"):
        assert sum(g[field] for g in out["group"]) == out["summary"][0][field]


def test_layers_by_their_number(tmp_path: Path) -> None:
    """Names sort 10 before 2; each stack has its own run, what is in none keeps its place."""
    numbers = [0, 1, 10, 11, 2, 3]
    names = ["embed.w", *(f"vision.blocks.{i}.w" for i in (10, 9)), "x.norm"]
    names += [f"m.layers.{i}.{part}" for i in numbers for part in ("a", "b")]
    names += [f"m.layers.{'9' * 5000}.a"]
    write(tmp_path / "m.safetensors", [(name, "BF16", [1]) for name in names])
    groups = kinds(ntool("census", str(tmp_path), "--by", "layer").stdout)["group"]
    assert [g["key"] for g in groups] == [
        "other",
        *("vision.blocks.9", "vision.blocks.10"),
        *(f"m.layers.{i}" for i in (0, 1, 2, 3, 10, 11, "9" * 5000)),
    ]


def test_components_of_the_demo() -> None:
    out = kinds(ntool("census", "demo:shapes", "--by", "component", "--by", "dtype").stdout)
    counts = {g["key"]: g["tensors"] for g in out["group"] if g["by"] == "component"}
    assert counts == {
        "vision_encoder": 4,
        "embedding": 1,
        "decoder": 67,
        "image_gen_embedding": 12,
        "image_gen_denoiser": 70,
    }
    assert {g["by"] for g in out["group"]} == {"component", "dtype"}


def test_wrong_key_is_wrong_use(small: Path) -> None:
    for by in ("size", "prefix:0", "dtype:2", "prefix:x"):
        assert ntool("census", str(small), "--by", by).returncode == 2


def test_own_groups(small: Path, tmp_path: Path) -> None:
    rules = tmp_path / "groups.json"
    rules.write_text(json.dumps([{"name": "two", "pattern": r"layers\.2\."},
                                 {"name": "all", "pattern": "layers"}]))  # fmt: skip
    out = kinds(ntool("census", str(small), "--groups", str(rules)).stdout)
    assert {g["key"]: g["tensors"] for g in out["group"]} == {"two": 2, "all": 1, "other": 1}
    for bad in ("{}", "[1]", '[{"name": "x"}]', '[{"name": "x", "pattern": "*"}]', "["):
        rules.write_text(bad)
        done = ntool("census", str(small), "--groups", str(rules))
        assert done.returncode == 3, bad
        assert "groups.json" in done.stderr


def test_estimate_leaves_integers(small: Path) -> None:
    out = kinds(ntool("census", str(small), "--as-dtype", "F32", "--as-dtype", "F8_E4M3").stdout)
    assert out["summary"][0]["estimate"] == {"F32": 36 * 4 + 24, "F8_E4M3": 36 + 24}
    assert ntool("census", str(small), "--as-dtype", "F99").returncode == 2


def test_streams_are_summed(small: Path) -> None:
    one = ntool("inspect-headers", str(small)).stdout
    both = ntool("inspect-headers", "demo:shapes", str(small)).stdout
    got = kinds(ntool("census", "-", "--by", "dtype", stdin=both).stdout)["summary"][0]
    assert got["tensors"] == 158
    assert got["nbytes"] == 10_760_896 + 104
    assert got["files"] == 5
    twice = kinds(ntool("census", "-", stdin=one + one).stdout)["summary"][0]
    assert twice["tensors"] == 8


@pytest.mark.parametrize(
    "cut, words",
    [
        (lambda lines: lines[:-1], "without its 'end'"),
        (lambda lines: lines[:2] + lines[3:], "records since 'begin'"),
        (lambda lines: [], "empty"),
        (lambda lines: lines[1:], "outside a stream"),
        (lambda lines: ["nonsense", *lines], "not a JSON record"),
        (lambda lines: [*lines[:-1], '{"kind":"error","message":"disk on fire"}'], "disk on fire"),
        (lambda lines: [x.replace('"shape":[4,4]', '"shape":[4,-4]') for x in lines], "'shape'"),
        (lambda lines: [x.replace('"dtype":"I64"', '"dtype":null') for x in lines], "'dtype'"),
    ],
    ids=["cut", "count", "empty", "headless", "text", "error", "shape", "dtype"],
)
def test_broken_streams(cut: Any, words: str, small: Path) -> None:
    lines = ntool("inspect-headers", str(small)).stdout.splitlines()
    done = ntool("census", "-", stdin="\n".join(cut(lines)) + "\n")
    assert done.returncode == 3
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "summary" not in kinds(done.stdout)


def test_problems_travel_with_the_stream(small: Path) -> None:
    path = small / "m.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = ntool("inspect-headers", str(small))
    assert done.returncode == 3
    after = ntool("census", "-", stdin=done.stdout)
    assert after.returncode == 3
    assert "short by 1 bytes" in after.stderr


def index(folder: Path, **weights: str) -> None:
    text = json.dumps({"weight_map": {k.replace("_", "."): v for k, v in weights.items()}})
    (folder / "model.safetensors.index.json").write_text(text)


def test_missing_and_allowed(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", [("a", "F32", [2])])
    index(tmp_path, a="m.safetensors", mtp_x="m.safetensors", mtp_y="n.safetensors")

    def missing(*options: str, stdin: str = "") -> tuple[int, list[str]]:
        done = ntool("census", "-" if stdin else str(tmp_path), *options, stdin=stdin)
        return done.returncode, sorted(kinds(done.stdout)["summary"][0]["missing"])

    stream = ntool("inspect-headers", str(tmp_path)).stdout
    for text in ("", stream):
        assert missing(stdin=text) == (3, ["mtp.x", "mtp.y"])
        assert missing("--allow-missing", "mtp.y", stdin=text) == (1, ["mtp.x", "mtp.y"])
        assert missing("--allow-missing", "mtp.x", stdin=text) == (3, ["mtp.x", "mtp.y"])
        assert missing("--allow-missing", "mtp.*", stdin=text) == (0, ["mtp.x", "mtp.y"])


def test_orphans_and_duplicates_travel(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", [("a", "F32", [2]), ("o", "F32", [2])])
    write(tmp_path / "n.safetensors", [("a", "F32", [2]), ("b", "F32", [2])])
    index(tmp_path, a="m.safetensors", b="n.safetensors")
    stream = ntool("inspect-headers", str(tmp_path)).stdout
    for done in (ntool("census", str(tmp_path)), ntool("census", "-", stdin=stream)):
        assert done.returncode == 1
        [summary] = kinds(done.stdout)["summary"]
        assert (summary["orphans"], summary["duplicates"]) == (["o"], ["a"])
        assert summary["tensors"] == 3


def test_expect(small: Path, tmp_path: Path) -> None:
    done = ntool("census", str(small))
    saved = tmp_path / "saved.json"
    saved.write_text(done.stdout)  # the whole stream
    assert ntool("census", str(small), "--expect", str(saved)).returncode == 0
    [summary] = kinds(done.stdout)["summary"]
    saved.write_text(json.dumps(summary))
    assert ntool("census", str(small), "--expect", str(saved)).returncode == 0
    saved.write_text('{"tensors": 4, "dtypes": {"F32": {"params": 4}}}')
    assert ntool("census", str(small), "--expect", str(saved)).returncode == 0
    for wrong in ('{"tensors": 5}', '{"dtypes": {"F32": {"params": 5}}}', '{"tensorz": 4}'):
        saved.write_text(wrong)
        done = ntool("census", str(small), "--expect", str(saved))
        assert done.returncode == 1, wrong
        assert "expected" in done.stderr
        assert [p["code"] for p in kinds(done.stdout)["problem"]] == ["unexpected"]
    for broken in ("", "[]", '{"kind": "group"}', '{"a": 1, "a": 1}'):
        saved.write_text(broken)
        assert ntool("census", str(small), "--expect", str(saved)).returncode == 3, broken


def test_against(small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    rows = [
        ("layers.10.w.weight", "BF16", [2, 8]),
        ("layers.2.w.weight", "F16", [4, 4]),
        ("layers.2.w.bias", "F32", [4]),
        ("gone", "F32", [1]),
    ]
    write(other, rows)
    done = ntool("census", str(small), "--against", str(other))
    assert done.returncode == 1
    found = {(p["code"], p["name"]) for p in kinds(done.stdout)["problem"]}
    assert found == {
        ("tensor-reshaped", "layers.10.w.weight"),
        ("tensor-retyped", "layers.2.w.weight"),
        ("tensor-added", "embed.weight"),
        ("tensor-removed", "gone"),
    }
    assert ntool("census", str(small), "--against", str(small)).returncode == 0
    stream = ntool("inspect-headers", str(small)).stdout
    assert ntool("census", "-", "--against", str(small), stdin=stream).returncode == 0
    assert ntool("census", str(small), "--against", "-", stdin=stream).returncode == 0
    assert ntool("census", "-", "--against", "-", stdin=stream).returncode == 2


@pytest.mark.parametrize("flag, inner, tied", [
    (True, None, True), (True, False, False), (None, True, True), (None, None, None),
])  # fmt: skip
def test_tied(flag: bool | None, inner: bool | None, tied: bool | None, small: Path) -> None:
    config: dict[str, Any] = {"tie_word_embeddings": flag} if flag is not None else {}
    config["llm_config"] = {"tie_word_embeddings": inner} if inner is not None else {}
    (small / "config.json").write_text(json.dumps(config))
    assert kinds(ntool("census", str(small)).stdout)["summary"][0]["tied"] is tied


def test_incomplete_component_is_not_an_error(tmp_path: Path) -> None:
    lines = ntool("inspect-headers", "demo:shapes").stdout.splitlines()
    kept = [x for x in lines[1:-1] if '"vision_model.embeddings.patch_embedding.bias"' not in x]
    end = json.dumps({"kind": "end", "count": len(kept), "seconds": 0})
    done = ntool("census", "-", stdin="\n".join([lines[0], *kept, end]))
    assert done.returncode == 0
    components = kinds(done.stdout)["summary"][0]["components"]
    assert [c for c, complete in components.items() if not complete] == ["vision_encoder"]


def test_table() -> None:
    done = ntool("census", "demo:shapes", "--format", "table")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["by", "key", "tensors", "params", "nbytes", "dtypes"]
    assert any(line.split()[:3] == ["family", "understanding", "68"] for line in lines)


def test_a_record_whose_bytes_are_not_those_of_its_shape(tmp_path: Path) -> None:
    from ntool.lib.errors import InputError
    from ntool.lib.inspection import counted_records

    row = {"kind": "tensor", "name": "a", "dtype": "F32", "shape": [2, 3], "nbytes": 24}
    assert counted_records([row]).tensors[0].nbytes == 24
    # a type of another format: only its own reader knows the size
    assert counted_records([row | {"dtype": "Q4_K", "nbytes": 9}]).tensors[0].nbytes == 9
    with pytest.raises(InputError, match=r"'a': 'nbytes': found 0, expected 24 for F32 \[2, 3\]"):
        counted_records([row | {"nbytes": 0}])


def test_renames_are_guessed_and_marked(tmp_path: Path) -> None:
    """A renamed prefix keeps dtype, shape and order; where numbers differ, nothing is guessed."""
    was, now = tmp_path / "was.safetensors", tmp_path / "now.safetensors"
    same = ("x", "F32", [4])
    write(was, [same, ("m.0.w", "F32", [2]), ("m.1.w", "F32", [2]), ("gone", "F32", [3])])
    rows = [same, ("t.0.w", "F32", [2]), ("t.1.w", "F32", [2])]
    write(now, [*rows, ("new", "F32", [3]), ("more", "F32", [3])])
    done = ntool("census", str(now), "--against", str(was))
    assert done.returncode == 1
    problems = kinds(done.stdout)["problem"]
    codes = [(p["code"], p["name"]) for p in problems if p["severity"] == "error"]
    assert codes == [
        *(("tensor-added", n) for n in ("t.0.w", "t.1.w", "new", "more")),
        *(("tensor-removed", n) for n in ("m.0.w", "m.1.w", "gone")),
    ]
    guesses = [p for p in problems if p["code"] == "rename-guess"]
    assert [(p["name"], p["severity"]) for p in guesses] == [("t.0.w", "info"), ("t.1.w", "info")]
    assert all("a guess" in p["message"] for p in guesses)
    assert "'m.0.w'" in guesses[0]["message"] and "'m.1.w'" in guesses[1]["message"]


def test_each_stream_is_judged_by_its_own_config(tmp_path: Path) -> None:
    """A dense checkpoint and one in FP8, in either order: both are sound."""
    from ..fp8 import fp8_files

    fp8 = fp8_files.checkpoint(tmp_path / "fp8")
    dense = tmp_path / "dense"
    dense.mkdir()
    write(dense / "model.safetensors", [("a", "F32", [4])])
    (dense / "config.json").write_text('{"model_type": "other"}')
    for order in ([fp8, dense], [dense, fp8]):
        both = ntool("inspect-headers", *map(str, order))
        done = ntool("census", "-", stdin=both.stdout)
        assert (done.returncode, done.stderr) == (0, "")
        [summary] = kinds(done.stdout)["summary"]
        assert summary["tensors"] == 15 and summary["quantization"] is None
    twice = ntool("inspect-headers", str(fp8), str(fp8))
    [summary] = kinds(ntool("census", "-", stdin=twice.stdout).stdout)["summary"]
    assert summary["quantization"]["block"] == [128, 128]
    (fp8 / "config.json").write_text("{}")
    broken = ntool("inspect-headers", str(dense), str(fp8))
    done = ntool("census", "-", stdin=broken.stdout)
    assert done.returncode == 1 and "scale grid" in done.stderr
