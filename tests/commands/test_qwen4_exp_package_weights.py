"""Weights in exported packages of the tiny Qwen4-Exp checkpoints and the report about them, and
that verify-package judges the packages rightly.

Numbers like Q47 are those of docs/qwen4-exp.md.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Ended, run_ntool
from ..fp8.checkpoints import payloads
from ..sparse_files import write_fp8_full
from .test_export_qwen4_exp import CASES, FP8, Export, exported

assert exported  # a fixture
Run = Callable[..., Ended]
KEPT, DENSE = FP8, (*FP8, "--dequantize")
PACKAGES: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "text in bfloat16": ("text", "--dtype", "bf16"),
    "pictures": ("image-text",),
    "pictures in bfloat16": ("image-text", "--dtype", "bf16"),
    "text of a composite": ("image-text", "--text-only"),
    "a decoder alone": ("image-text", "decoder"),
    "two GELUs": ("vision-gelu",),
    "codes": KEPT,
    "codes in bfloat16": (*KEPT, "--dtype", "bf16"),
    "products": DENSE,
}
TABLE = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"


def report_of(package: Path) -> dict[str, Any]:
    return json.loads((package / "weight-loading-report.json").read_text())


# -- weights and their report ---------------------------------------------------------------------


def parts(package: Path) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """(source tensor, its bytes in the package, target) of everything that a report places."""
    for row in report_of(package)["tensors"]:
        for t in row["targets"]:
            raw = (package / t["file"]).read_bytes()
            yield row["name"], raw[t["offset"] : t["offset"] + t["nbytes"]], t


def test_codes_and_scales_keep_their_bytes(exported: Export) -> None:
    """Q41, Q42: by sha256, from whichever shard file they come."""
    meta = json.loads((CASES / "text-fp8" / "golden" / "meta.json").read_text())
    found = {name: raw for name, raw, _ in parts(exported(*KEPT))}
    stored = payloads(CASES / "text-fp8")
    sums = meta["sha256_codes"]
    assert sums
    for name, digest in sums.items():
        if not name.startswith("mtp."):
            assert hashlib.sha256(found[name]).hexdigest() == digest, name
    kept = [n for n in stored if n in found and ("_scale" in n or stored[n][0] == "F8_E4M3")]
    assert len(kept) == 48 + 48 + 16 + 1
    assert [n for n in kept if found[n] != stored[n][2]] == []


def test_products_are_rounded_once(exported: Export) -> None:
    """Q42: --dequantize, by sha256 of the recorded products."""
    meta = json.loads((CASES / "text-fp8" / "golden" / "meta.json").read_text())
    found = {name: raw for name, raw, _ in parts(exported(*DENSE, "--dtype", "bf16"))}
    sums = {n: d for n, d in meta["sha256_product_rounded_bf16"].items() if n in found}
    assert len(sums) > 40
    for name, digest in sums.items():
        assert hashlib.sha256(found[name]).hexdigest() == digest, name


def test_a_table_is_its_shards_in_numeric_order(exported: Export) -> None:
    """Q7: one entry, filled one shard after the other."""
    table = f"{TABLE}.weight".replace("language_model.", "")
    stored = payloads(CASES / "image-text")
    package = exported("image-text", "--dtype", "bf16")
    placed = [(t["offset"], name, raw) for name, raw, t in parts(package) if t["name"] == table]
    names = [name for _, name, _ in sorted(placed)]
    assert names == [f"{TABLE}.shard_{j}.weight" for j in range(16)]
    assert all(raw == stored[name][2] for _, name, raw in placed)
    ends = [at + len(raw) for at, _, raw in sorted(placed)]
    assert [at for at, *_ in sorted(placed)][1:] == ends[:-1]


@pytest.mark.parametrize("key", [KEPT, DENSE])
def test_the_report_of_fp8_weights(key: tuple[str, ...], exported: Export) -> None:
    """Q47, Q48: families one by one, whose counts are those of the headers."""
    report = report_of(exported(*key))
    meta = json.loads((CASES / "text-fp8" / "golden" / "meta.json").read_text())
    kept = key == KEPT
    assert report["output_weight_format"] == ("fp8_qdq" if kept else "dense")
    assert report["storage_preserving"] is kept and report["native_fp8"] is False
    families = {f["name"]: f for f in report["families"]}
    counts = {name: f["count"] for name, f in families.items()}
    assert counts == {
        "routed_experts": meta["families"]["routed_expert_fp8"],
        "routed_expert_scales": meta["families"]["routed_expert_scale_inv"],
        "ple_shards": meta["families"]["ple_shards"],
        "ple_scale": meta["families"]["ple_weight_scale"],
        "text_dense": meta["census"]["text"]["BF16"] - 48 - 1,
        "hash_buffers": 3,
        "mtp": meta["families"]["mtp"],
        "visual": meta["families"]["visual"],
    }
    assert sum(counts.values()) == meta["tensors"] == report["totals"]["source_total"]
    assert sum(f["bytes"] for f in families.values()) == meta["total_bytes"]
    for name in ("mtp", "visual"):
        assert families[name]["exported"] == 0 and families[name]["reason"]
    assert "forward" in families["mtp"]["reason"] and "cache" in families["mtp"]["reason"]
    assert "multimodal" in families["visual"]["reason"]
    assert report["mtp_exported"] is False
    assert report["totals"]["exported"] + report["totals"]["excluded"] == meta["tensors"]
    assert report["modules_to_not_convert"] == {"listed": 110, "resolved": 110, "unresolved": []}
    assert report["ple"] == {"scale_bits": meta["ple_scale_bits"], "shards": 16, "rows": 256}
    actions = Counter(row["action"] for row in report["tensors"])
    if kept:
        assert actions["bound"] == 3 and actions["copied"] == 48 + 48 + 16 + 1
    else:
        assert actions["scale-consumed"] == 48 + 1 and actions["copied"] == 0


@pytest.mark.parametrize(
    ("key", "shards", "rows"), [(("text",), 32, 576), (("image-text",), 16, 256)]
)
def test_the_report_of_dense_weights(
    key: tuple[str, ...], shards: int, rows: int, exported: Export
) -> None:
    """Q10, Q47: MTP and what else is left has its reason; hash buffers are compared and said so."""
    report = report_of(exported(*key))
    assert report["output_weight_format"] == "dense"
    assert report["ple"] == {"scale_bits": None, "shards": shards, "rows": rows}
    total = len(payloads(CASES / key[0]))
    assert sum(f["count"] for f in report["families"]) == total == len(report["tensors"])
    buffers = [r for r in report["tensors"] if r["action"] == "bound"]
    assert {r["reason"] for r in buffers} == {"equals the value derived from config.json"}
    left = {r["name"] for r in report["tensors"] if r["action"] == "excluded"}
    assert all(n.startswith("mtp.") for n in left) and len(left) == (31 if total == 298 else 0)
    text = report_of(exported("image-text", "--text-only"))
    families = {f["name"]: (f["count"], f["exported"]) for f in text["families"]}
    assert families["visual"] == (45, 0) and families["mtp"] == (31, 0)


def test_bytes_that_do_not_change_are_said_to_be_kept(exported: Export) -> None:
    report = report_of(exported("text", "--dtype", "bf16"))
    assert report["storage_preserving"] is True and "converted" not in report["counts"]
    assert report_of(exported("text"))["storage_preserving"] is False


def test_a_plan_of_the_published_repository(tmp_path: Path) -> None:
    """Q6, Q38: 152,089 tensors from their headers, in a minute and 1.5 GB at most; data files of
    1 GiB, but for single tensors that are larger. Measured: 3 s, 180 MB."""
    source = write_fp8_full(tmp_path / "full")
    done = run_ntool("export-component", source, "--text-only", "--dry-run", "--dtype", "bf16")
    assert done.code == 0, done.err
    (summary,) = done.of("summary")
    assert summary["source_tensors"] == 152_089
    assert summary["seconds"] < 60 and summary["peak_rss"] < 1_500_000_000
    # all but MTP, vision and hash buffers: the difference is what lies between aligned tensors
    needed = 185_502_232_570 - 2_698_026_496 - 897_862_112 - 280
    assert 0 <= summary["bytes_planned"] - needed < 1_000_000
    assert summary["converted"] == 0
    sizes = [f["nbytes"] for f in done.of("file")]
    larger = [n for n in sizes if n > 1 << 30]
    assert max(sizes) < 1.7e9 and len(larger) == 48 + 2  # experts of a layer; embedding and head


# -- verify-package -------------------------------------------------------------------------------


def verified(ntool: Run, package: Path, *options: object, code: int = 0) -> list[dict[str, Any]]:
    return ntool("verify-package", package, *options, code=code).of("check")


@pytest.mark.parametrize("name", PACKAGES)
def test_no_false_alarm(name: str, ntool: Run, exported: Export) -> None:
    """Every check has an answer, with the weights compared, and standard operators asked for."""
    package = exported(*PACKAGES[name])
    found = verified(ntool, package, "--against", CASES / PACKAGES[name][0], "--standard-only")
    idle = {"data.hash", "golden.values", "run.placement"}  # no SHA256SUMS, no --golden, no GPU
    assert {c["id"] for c in found if c["ok"] is not True} == idle


def test_operators_of_one_vendor_are_told(ntool: Run, exported: Export) -> None:
    """Q25."""
    package = exported("text", "--ep", "cpu")
    verified(ntool, package)
    found = verified(ntool, package, "--standard-only", code=1)
    assert {c["id"] for c in found if c["ok"] is False} == {"graph.standard"}


@contextmanager
def edited(path: Path) -> Iterator[Any]:
    value = json.loads(path.read_text())
    yield value
    path.write_text(json.dumps(value))


def entry_of(manifest: dict[str, Any], role: str, layer: int | None) -> dict[str, Any]:
    return next(e for e in manifest["cache"] if (e["role"], e["layer"]) == (role, layer))


def recurrent_in_half(root: Path) -> None:
    with edited(root / "package.json") as m:
        entry_of(m, "recurrent_state", 0)["dtype"] = "float16"


def kind_of_keys(root: Path) -> None:
    with edited(root / "package.json") as m:
        entry_of(m, "key", 3)["kind"] = "conv"


def a_role_is_missing(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["cache"].remove(entry_of(m, "index_key", 3))


def other_head_width(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["sizes"]["dv"] = 13


def another_image_token(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["workflow"]["positions"]["image_token_id"] = 17


def another_video_token(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["components"]["embedding"]["unsupported_token_ids"] = [77]


def token_without_tokenizer(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["special_tokens"]["<x>"] = 3


def five_channels(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["workflow"]["positions"]["channels"] = 5


def other_patches(root: Path) -> None:
    with edited(root / "processor.json") as p:
        p["frames"] = 3


def buffer_without_a_reason(root: Path) -> None:
    with edited(root / "weight-loading-report.json") as r:
        del next(row for row in r["tensors"] if row["action"] == "bound")["reason"]


def an_edge_is_missing(root: Path) -> None:
    with edited(root / "package.json") as m:
        m["workflow"]["edges"].remove(
            {"from": "decoder.present.1.ple_context", "to": "decoder.past_key_values.1.ple_context"}
        )


def one_weight(root: Path) -> None:
    (target,) = next(r["targets"] for r in report_of(root)["tensors"]
                     if r["name"].endswith("layers.2.linear_attn.A_log"))  # fmt: skip
    with open(root / target["file"], "r+b") as f:
        f.seek(target["offset"])
        f.write(b"\x00\x00\x00\x3f")


FAULTS: dict[Callable[[Path], None], set[str]] = {
    recurrent_in_half: {"graph.names", "flow.ports"},
    kind_of_keys: {"graph.names"},
    a_role_is_missing: {"graph.names"},
    other_head_width: {"graph.names"},
    another_image_token: {"flow.tokens"},
    another_video_token: {"flow.tokens"},
    token_without_tokenizer: {"flow.tokens"},
    five_channels: {"layout.schema"},
    other_patches: {"layout.schema"},
    buffer_without_a_reason: {"weights.complete"},
    an_edge_is_missing: {"flow.ports"},
    one_weight: {"weights.values"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_each_fault_is_told_by_its_check(
    fault: Callable[[Path], None], tmp_path: Path, ntool: Run, exported: Export
) -> None:
    package = tmp_path / "pkg"
    shutil.copytree(exported("image-text"), package)
    fault(package)
    found = verified(ntool, package, "--no-run", "--against", CASES / "image-text", code=1)
    assert {c["id"] for c in found if c["ok"] is False} == FAULTS[fault]


@pytest.mark.parametrize("key", [KEPT, DENSE])
def test_one_code_that_differs(
    key: tuple[str, ...], tmp_path: Path, ntool: Run, exported: Export
) -> None:
    package = tmp_path / "pkg"
    shutil.copytree(exported(*key), package)
    (target,) = next(r["targets"] for r in report_of(package)["tensors"]
                     if r["name"].endswith("0.mlp.experts.1.down_proj.weight"))  # fmt: skip
    with open(package / target["file"], "r+b") as f:
        f.seek(target["offset"] + 3)
        old = f.read(1)
        f.seek(target["offset"] + 3)
        f.write(bytes([old[0] ^ 1]))
    options = ("--no-run", "--against", CASES / "text-fp8")
    found = verified(ntool, package, *options, code=1)
    assert {c["id"] for c in found if c["ok"] is False} == {"weights.values"}


def test_weights_that_are_not_finite_are_told(tmp_path: Path, ntool: Run, exported: Export) -> None:
    package = tmp_path / "pkg"
    shutil.copytree(exported("text"), package)
    (target,) = next(r["targets"] for r in report_of(package)["tensors"]
                     if r["name"].endswith("layers.2.linear_attn.A_log"))  # fmt: skip
    with open(package / target["file"], "r+b") as f:
        f.seek(target["offset"])
        f.write(b"\x00\x00\xc0\x7f")
    found = verified(ntool, package, code=1)
    assert {c["id"] for c in found if c["ok"] is False} == {"weights.sane", "run.finite"}
