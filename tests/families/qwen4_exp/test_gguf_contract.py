"""The qwen4exp contract: names and dims from metadata, and the refusal of the payload.

Rules of the format notes: Q49 and Q50 through the commands, Q51, Q52, Q53.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gguf_files import PARTS, TABLE_ROWS, metadata, write_set
from ntool.lib.checkpoint.gguf_set import GgufFacts
from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint, Problem, Tensor
from ntool.lib.errors import Unsupported
from ntool.lib.families import gguf
from ntool.lib.families.qwen4_exp import GGUF_ARCHITECTURES, NAME
from ntool.lib.families.qwen4_exp.gguf_contract import TABLE, check, expected, reasons
from ntool.lib.families.qwen4_exp.gguf_geometry import geometry

GOLDEN = Path(__file__).parents[2] / "data" / "qwen4-exp" / "gguf"
P = "qwen4exp."
NAMES = [f"tiny-qwen4exp-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return open_checkpoint(str(GOLDEN))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The golden set, to be broken."""
    for name in NAMES:
        (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    return tmp_path


def published() -> dict[str, tuple[int, ...]]:
    found, problems = geometry(metadata(), None)
    assert found is not None and problems == []
    return expected(found)


def judged(tensors: dict[str, Tensor], **changes: Any) -> list[Problem]:
    """The tiny set with other tensors or metadata (`None` takes a key away)."""
    got = open_checkpoint(str(GOLDEN))
    assert got.gguf is not None
    for key, value in changes.items():
        full = P + key.replace("__", ".")
        got.gguf.values[full] = value
        if value is None:
            del got.gguf.values[full]
    found = check(got.gguf, tensors)[1]
    assert all(not p.malformed for p in found)
    return found


def test_published_contract_name_by_name() -> None:
    """Q51: 36 blocks of 25, 12 of 26, 5 beside them, the table, and the 6 of n-grams."""
    rows = json.loads(gzip.decompress((GOLDEN / "full_contract.json.gz").read_bytes()))["tensors"]
    want = {name: tuple(dims) for name, dims in rows}
    got = published()
    assert got.pop(TABLE) == (160, 320_001_446)  # what the heads use; stored rows are padded
    assert want.pop(TABLE) == (160, TABLE_ROWS)
    assert got == want and len(got) + 1 == 1224 == sum(PARTS)


def test_tiny_set_holds(tiny: Checkpoint) -> None:
    """Q53: architecture, split layout, types, geometry and refusal, from headers alone."""
    (record,), found = gguf.described(tiny.gguf, tiny.tensors.values())
    assert found == []
    want = json.loads((GOLDEN / "expected_headers.json").read_text())
    assert record["architecture"] == want["architecture"]
    assert record["types"] == {
        k if k in ("F32", "F16", "BF16") else f"GGUF:{k}": n for k, n in want["type_census"].items()
    }
    assert record["files"] == [{"path": s["file"], "tensors": s["tensor_count"]}
                               for s in want["shards"]]  # fmt: skip
    assert (record["parts"], record["version"], record["byte_order"]) == (3, 3, "little")
    assert record["geometry"]["blocks"] == 4 and record["geometry"]["ngram_rows"] == 240
    assert record["payload"]["convertible"] is False
    assert dict.fromkeys(GGUF_ARCHITECTURES, NAME) == gguf.ARCHITECTURES


def test_every_missing_tensor_is_named(tiny: Checkpoint) -> None:
    for name in tiny.tensors:
        rest = {n: t for n, t in tiny.tensors.items() if n != name}
        assert [(p.code, p.name) for p in judged(rest)] == [("missing-tensor", name)]


def test_every_wrong_shape_is_named(tiny: Checkpoint) -> None:
    for name, t in tiny.tensors.items():
        for shape in ((*t.shape[:-1], t.shape[-1] + 1), (1, *t.shape), t.shape[1:]):
            found = judged({**tiny.tensors, name: t._replace(shape=shape)})
            assert [(p.code, p.name) for p in found] == [("misshapen-tensor", name)], shape
    words = found[0].message
    assert "innermost first" in words and "expected [32, 256]" in words


def test_rows_of_the_table_may_be_padded_and_not_fewer(tiny: Checkpoint) -> None:
    table = tiny.tensors[TABLE]
    for rows, codes in ((240, []), (512, []), (239, ["misshapen-tensor"])):
        tensors = {**tiny.tensors, TABLE: table._replace(shape=(rows, 32))}
        assert [p.code for p in judged(tensors)] == codes


def test_unknown_tensors_are_named(tiny: Checkpoint) -> None:
    extra = tiny.tensors["blk.0.ssm_a"]
    for name in ("blk.4.ssm_a", "blk.0.foo.weight", "blk.00.ssm_a", "blk.3.ssm_a", "rope_freqs"):
        found = judged({**tiny.tensors, name: extra._replace(name=name)})
        assert [(p.code, p.name) for p in found] == [("unknown-tensor", name)]


def test_types_of_expert_banks(tiny: Checkpoint) -> None:
    name = "blk.2.ffn_up_exps.weight"
    one = judged({**tiny.tensors, name: tiny.tensors[name]._replace(dtype="GGUF:IQ2_S")})
    assert [(p.code, p.name, p.severity) for p in one] == [("mixed-types", name, "error")]
    assert "found GGUF:IQ2_S, expected GGUF:IQ1_S" in one[0].message
    all_ = {
        n: t._replace(dtype="GGUF:Q4_0") if "_down_exps" in n else t
        for n, t in tiny.tensors.items()
    }
    assert [(p.code, p.severity) for p in judged(all_)] == [("other-types", "warning")]


def test_other_geometry_follows_the_metadata() -> None:
    values = {
        **metadata(),
        f"{P}block_count": 6,
        f"{P}full_attention_interval": 3,
        f"{P}attention.compress_ratios": [0, 0, 2, 0, 0, 2],
        f"{P}attention.indexer.top_k": 8,
        f"{P}ple.layers": [0, 4],
        f"{P}hyper_connection.count": 2,
        f"{P}attention.value_length": 128,
    }
    found, problems = geometry(values, None)
    assert found is not None and problems == []
    names = expected(found)
    assert len(names) == 4 * 25 + 2 * 26 + 5 + 1 + 2 * 6
    assert names["blk.4.ple_key.weight"] == (2560, 2 * 2560)
    assert names["blk.5.attn_v.weight"] == (2560, 2 * 128)
    assert names["blk.5.attn_output.weight"] == (24 * 128, 2560)
    assert "blk.4.ssm_a" in names and "blk.5.ssm_a" not in names
    for key in [k for k in values if ".ple." in k or "per_layer" in k]:
        del values[key]
    bare, problems = geometry(values, None)
    assert bare is not None and problems == []
    assert len(expected(bare)) == 4 * 25 + 2 * 26 + 5 and TABLE not in expected(bare)


def test_vocabulary_without_its_key_is_that_of_the_tokens(tiny: Checkpoint) -> None:
    assert judged(tiny.tensors, vocab_size=None) == []
    assert judged(tiny.tensors, vocab_size=95)[0].code == "bad-geometry"  # there are 96 tokens


SHAPED = [
    "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "expert_count",
    "expert_feed_forward_length", "expert_shared_feed_forward_length", "full_attention_interval",
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
    "ssm.inner_size", "hyper_connection.count", "hyper_connection.low_rank",
    "attention.indexer.head_count", "attention.indexer.key_length", "ple.ngram_size",
    "ple.heads_per_ngram", "ple.conv_kernel", "embedding_length_per_layer_input", "ple.layers",
    "ple.head_vocab_sizes",
]  # fmt: skip
OTHER = [
    "context_length", "expert_used_count", "rope.dimension_count", "attention.indexer.top_k",
    "rope.freq_base", "attention.layer_norm_rms_epsilon", "rope.dimension_sections",
    "attention.compress_ratios", "ple.layer_multipliers", "ple.eos_token_id", "ple.image_token_id",
]  # fmt: skip


@pytest.mark.parametrize("key", SHAPED)
def test_missing_or_impossible_size_is_named_alone(tiny: Checkpoint, key: str) -> None:
    name = key.replace(".", "__")
    for value in (None, 0, -1, "4", True, 2.0, 1 << 41, [1 << 50, -1]):
        found = judged(tiny.tensors, **{name: value})
        assert [p.severity for p in found] == ["error"] * len(found)
        codes = {p.code for p in found if f"{P}{key}:" in p.message}
        assert codes == {"missing-key" if value is None else "bad-geometry"}, value
        assert not any(p.code.endswith("-tensor") for p in found)


@pytest.mark.parametrize("key", OTHER)
def test_other_keys_may_be_absent_but_not_impossible(tiny: Checkpoint, key: str) -> None:
    name = key.replace(".", "__")
    found = judged(tiny.tensors, **{name: None})
    assert [(p.code, p.severity) for p in found if key in p.message] == [("missing-key", "warning")]
    wrong = judged(tiny.tensors, **{name: "x"})
    assert [(p.code, p.severity) for p in wrong if f"{P}{key}:" in p.message] == [
        ("bad-geometry", "error")
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.compress_ratios", [0, 0, 4, 0]), ("attention.compress_ratios", [0, 0, 0]),
        ("full_attention_interval", 2), ("ple.layers", [3]), ("ple.layers", [4]),
        ("ple.layers", [1, 1]), ("ple.head_offsets", [0, 53, 112, 174]),
        ("ple.head_vocab_sizes", [53, 59, 61]), ("ple.layer_multipliers", [1]),
        ("ssm.inner_size", 130), ("ssm.group_count", 3), ("attention.head_count_kv", 3),
        ("hyper_connection.count", 1), ("expert_used_count", 5), ("rope.dimension_count", 66),
        ("rope.dimension_sections", [3, 3, 1, 0]), ("rope.dimension_sections", [3, 3, 0, 2]),
        ("attention.indexer.top_k", 18), ("rope.freq_base", float("nan")),
        ("ple.eos_token_id", 96),
    ],
)  # fmt: skip
def test_metadata_that_contradicts_itself(tiny: Checkpoint, key: str, value: Any) -> None:
    found = judged(tiny.tensors, **{key.replace(".", "__"): value})
    assert any(p.code == "bad-geometry" and p.severity == "error" for p in found)


def test_incomplete_set_accuses_no_tensor(tiny: Checkpoint) -> None:
    assert tiny.gguf is not None
    facts = GgufFacts(**{**vars(tiny.gguf), "complete": False})
    assert check(facts, {})[1] == []
    facts = GgufFacts(**{**vars(tiny.gguf), "unsound": {"output.weight"}})
    rest = {n: t for n, t in tiny.tensors.items() if n != "output.weight"}
    assert check(facts, rest)[1] == []


def test_reasons_follow_the_types(tiny: Checkpoint) -> None:
    """Q52: each reason where it applies, and never none."""
    codes = [r.code for r in reasons(tiny.tensors)]
    assert codes == [
        "quantised-embedding", "quantised-experts", "dequantised-size", "no-payload-route",
    ]  # fmt: skip
    text = " ".join(r.message for r in reasons(tiny.tensors))
    assert "IQ4_NL" in text and "IQ1_S" in text and "102400491520" in text
    plain = {n: t._replace(dtype="BF16") for n, t in tiny.tensors.items()}
    assert [r.code for r in reasons(plain)] == ["no-payload-route"]
    big = tiny.tensors[TABLE]._replace(shape=(1 << 30, 32))
    assert f"{1 << 36} bytes as BF16 here" in reasons({TABLE: big})[1].message


def test_payload_is_refused_by_the_library(tiny: Checkpoint) -> None:
    """Q52, of this family and of unknown ones; other formats pass."""
    with pytest.raises(Unsupported, match=r"IQ4_NL.*IQ1_S"):
        gguf.refuse_payload(tiny)
    gguf.refuse_payload(open_checkpoint("demo:shapes"))
    other = GgufFacts(architecture="llama")
    (record,), found = gguf.described(other, [])
    assert found == [] and record["geometry"] is None
    assert [r["code"] for r in record["payload"]["reasons"]] == ["no-payload-route"]
    assert gguf.described(None, []) == ([], []) and gguf.judge(None, []) == []


# --- the negative cases of the goldens, through the commands --------------------------------------


def ntool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ntool", *arguments, "--format", "jsonl"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def replaced(path: Path, old: bytes, new: bytes) -> None:
    raw = path.read_bytes()
    assert raw.count(old) == 1 and len(old) == len(new)
    path.write_bytes(raw.replace(old, new))


def key(name: str, code: str, value: int) -> bytes:
    kind = {"H": 2, "i": 5}[code]
    return name.encode() + struct.pack(f"<I{code}", kind, value)


def swap_numbers(folder: Path) -> None:
    replaced(folder / NAMES[1], key("split.no", "H", 1), key("split.no", "H", 2))
    replaced(folder / NAMES[2], key("split.no", "H", 2), key("split.no", "H", 1))


def cut_first(folder: Path) -> None:
    (folder / NAMES[0]).write_bytes((folder / NAMES[0]).read_bytes()[:3000])


def cut_payload(folder: Path) -> None:
    (folder / NAMES[2]).write_bytes((folder / NAMES[2]).read_bytes()[:-1])


def other_name(folder: Path) -> None:
    replaced(folder / NAMES[2], b"blk.3.attn_k.weight", b"blk.3.attn_z.weight")


def name_in_two(folder: Path) -> None:
    replaced(folder / NAMES[2], b"blk.3.attn_q.weight", b"output_hc_up.weight")


def other_type(folder: Path) -> None:
    name = b"blk.2.ffn_up_exps.weight" + struct.pack("<I3Q", 3, 256, 32, 4)
    replaced(folder / NAMES[2], name + struct.pack("<I", 19), name + struct.pack("<I", 41))


def bigger_type(folder: Path) -> None:
    name = b"blk.2.ffn_up_exps.weight" + struct.pack("<I3Q", 3, 256, 32, 4)
    replaced(folder / NAMES[2], name + struct.pack("<I", 19), name + struct.pack("<I", 12))


CASES: list[tuple[Callable[[Path], object], int, str]] = [
    (lambda f: (f / NAMES[0]).unlink(), 3, "00001-of-00003.gguf: part 1 of 3 is not there"),
    (lambda f: (f / NAMES[2]).unlink(), 3, "00003-of-00003.gguf: part 3 of 3 is not there"),
    (swap_numbers, 3, "split.no: found 2, expected 1, as the file is named"),
    (cut_first, 3, "file ends inside"),
    (cut_payload, 3, "blk.3.ffn_down_shexp.weight': file is short by 1 bytes"),
    (other_name, 1, "blk.3.attn_k.weight': missing"),
    (other_name, 1, "blk.3.attn_z.weight': unknown"),
    (name_in_two, 3, "in 2 files"),
    (other_type, 1, "found GGUF:Q1_0, expected GGUF:IQ1_S"),
    (bigger_type, 3, "overlaps 'blk.2.ffn_up_exps.weight'"),
]


@pytest.mark.parametrize("command", ["inspect-headers", "census"])
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: str(i))
def test_negative_cases(files: Path, case: int, command: str) -> None:
    edit, code, words = CASES[case]
    edit(files)
    done = ntool(files, command, ".")
    assert done.returncode == code, done.stderr
    problems = [p for p in map(json.loads, done.stdout.splitlines()) if p["kind"] == "problem"]
    told = [f"{p['file']}: {p['message']}\n{p['name']}': {p['message']}" for p in problems]
    assert any(words in text for text in told), told
    assert "Traceback" not in done.stderr


def test_a_set_of_the_published_size_through_the_command(tmp_path: Path) -> None:
    """Q53: 1,224 tensors in three files; the payload is a hole, and never read."""
    write_set(tmp_path, count=500)
    done = ntool(tmp_path, "inspect-headers", "model-00002-of-00003.gguf")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [r["kind"] for r in records]
    assert kinds.count("tensor") == 1224 and kinds.count("problem") == 0
    record = records[kinds.index("gguf")]
    assert [f["tensors"] for f in record["files"]] == [0, 595, 629]
    assert record["geometry"]["ngram_rows"] == 320_001_446
    reason = record["payload"]["reasons"][2]["message"]
    assert re.search("102400491520 bytes as BF16 here", reason)
    assert records[-1]["bytes_read"] < 300_000
    counted = ntool(tmp_path, "census", ".")
    summary = json.loads(counted.stdout.splitlines()[-2])
    assert (summary["tensors"], summary["family"]) == (1224, "qwen4_exp")
    assert counted.returncode == 0


def test_stream_counts_like_the_set(files: Path) -> None:
    """What inspect-headers found in the contract reaches census through the pipe."""
    other_name(files)
    listed = ntool(files, "inspect-headers", ".")
    command = [sys.executable, "-m", "ntool", "census", "-", "--format", "jsonl"]
    piped = subprocess.run(command, input=listed.stdout, capture_output=True, text=True, timeout=60)
    direct = ntool(files, "census", ".")
    assert listed.returncode == piped.returncode == direct.returncode == 1
    for lines in (piped.stdout, direct.stdout):
        records = [json.loads(line) for line in lines.splitlines()]
        codes = {r["code"] for r in records if r["kind"] == "problem"}
        assert codes == {"missing-tensor", "unknown-tensor"}
        assert records[-2]["tensors"] == 113


@pytest.mark.parametrize(
    "arguments",
    [
        ["export-component", str(GOLDEN), "-o", "p"],
        ["run-prefill", str(GOLDEN), "--prompt", "x"],
        ["verify-package", "PKG", "--against", str(GOLDEN)],
    ],
    ids=lambda a: a[0],
)
def test_commands_that_need_the_payload_refuse_it(tmp_path: Path, arguments: list[str]) -> None:
    if "PKG" in arguments:
        made = ntool(tmp_path, "export-component", "demo:shapes", "embedding", "-o", "PKG")
        assert made.returncode == 0, made.stderr
    done = ntool(tmp_path, *arguments)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "IQ4_NL" in done.stderr and "IQ1_S" in done.stderr
    assert not (tmp_path / "p").exists()
