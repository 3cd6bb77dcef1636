"""--to qdq on the tiny FP8 checkpoint of qwen4_exp: bytes, values, graphs, package, parts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ntool.lib.conversion import command
from ntool.lib.conversion.run import Options, merge, run
from ntool.lib.conversion.verify import differences
from ntool.lib.conversion.work import Work, work_folder
from ntool.lib.errors import UsageProblem
from ntool.lib.numeric.blocks import blocks_of
from ntool.lib.numeric.convert import bf16_to_f32
from ntool.lib.numeric.dequantize import dequantize_rows

from ..conftest import DATA, run_ntool
from .checkpoints import codes, fp8_config, payloads, scales, write
from .qdq import components, convert, graphs, model, planned, session, values

SOURCE = DATA / "qwen4-exp" / "text-fp8"
GOLDEN = json.loads((SOURCE / "golden" / "meta.json").read_text())
TEXT = "model.language_model."
TABLE = f"{TEXT}layers.1.ple.ple_embedding.ngram_embedding.weight"
PLE = "model_language_model_layers_1_ple_ple_embedding_ngram_embedding"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(SOURCE, tmp_path_factory.mktemp("qdq") / "package")


@pytest.fixture(scope="module")
def stored() -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return payloads(SOURCE)


def digests(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_every_text_tensor_is_there_once_with_its_bytes(package: Path, stored: Any) -> None:
    wanted = {n: t for n, t in stored.items() if not n.startswith(("mtp.", "model.visual."))}
    assert payloads(package) == wanted
    assert len(wanted) == len(stored) - 53 - 45


def test_codes_are_those_of_the_published_digests(package: Path) -> None:
    found = payloads(package)
    checked = 0
    for name, digest in GOLDEN["sha256_codes"].items():
        if not name.startswith("mtp."):
            assert hashlib.sha256(found[name][2]).hexdigest() == digest
            checked += 1
    assert checked == 48 + 16


def test_values_are_code_times_scale_to_the_last_bit(package: Path, stored: Any) -> None:
    found = values(package)
    assert len(found) == 48
    for name, value in found.items():
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        assert digest == GOLDEN["sha256_exact_f32"][name]
        _, shape, codes = stored[name]
        _, grid, raw = stored[f"{name}_scale_inv"]
        scales = bf16_to_f32(np.frombuffer(raw, "<u2"))
        kernel = dequantize_rows(codes, scales, blocks_of(shape, grid, (128, 128), name), "F32")
        assert np.array_equal(value.view("u4"), kernel.view("u4"))


def test_the_bf16_reading_is_the_product_rounded_once(tmp_path: Path) -> None:
    """By the letter of DequantizeLinear, in onnx's own evaluator: ONNX Runtime has no kernel."""
    package = convert(SOURCE, tmp_path / "p", reading="bf16", include=(f"{TEXT}layers.0.mlp.*",))
    (graph,) = graphs(package).values()
    m = onnx.load(str(graph))
    outputs = ReferenceEvaluator(m).run(None, {})
    for o, value in zip(m.graph.output, outputs, strict=True):
        name = o.name
        if not name.endswith(".dequantized"):
            continue
        raw = np.ascontiguousarray(value).view("<u2").tobytes()
        key = name.removesuffix(".dequantized")
        assert hashlib.sha256(raw).hexdigest() == GOLDEN["sha256_product_rounded_bf16"][key]
    assert {o.type.tensor_type.elem_type for o in m.graph.output} == {onnx.TensorProto.BFLOAT16}
    assert "Cast" not in {n.op_type for n in m.graph.node}


def table(stored: Any) -> np.ndarray:
    """The whole table, shards in numeric order."""
    import ml_dtypes

    scale = bf16_to_f32(np.frombuffer(stored[f"{TABLE}_scale"][2], "<u2"))
    shards = [stored[TABLE.replace(".weight", f".shard_{j}.weight")][2] for j in range(16)]
    codes = np.frombuffer(b"".join(shards), ml_dtypes.float8_e4m3fn).reshape(-1, 8)
    return codes.astype(np.float32) * scale


def test_rows_of_the_table(package: Path, stored: Any) -> None:
    whole = table(stored)
    s = session(graphs(package)[PLE])
    every = np.arange(len(whole))
    ids = np.concatenate([every, every[::-7], [0, 255, 15, 16]])
    (rows,) = s.run([f"{TABLE}.rows"], {f"{TABLE}.row_ids": ids})
    assert np.array_equal(rows.view("u4"), whole[ids].view("u4"))
    assert s.run(None, {f"{TABLE}.row_ids": np.zeros(0, np.int64)})[0].shape == (0, 8)


@pytest.mark.parametrize("wrong", [-1, 256, 2**40])
def test_a_row_outside_the_table_is_an_error(package: Path, wrong: int) -> None:
    s = session(graphs(package)[PLE])
    with pytest.raises(Exception, match="out of data bounds"):
        s.run(None, {f"{TABLE}.row_ids": np.array([0, wrong])})


def test_one_dense_shard_at_a_time(package: Path) -> None:
    """Each shard's DequantizeLinear depends on the gather from the one before; nothing joins
    dense shards."""
    graph = model(graphs(package)[PLE]).graph
    maker = {o: n for n in graph.node for o in n.output}
    users: dict[str, list[onnx.NodeProto]] = {}
    for n in graph.node:
        for i in n.input:
            users.setdefault(i, []).append(n)

    def ancestors(node: onnx.NodeProto) -> set[str]:
        seen: set[str] = set()
        pending = list(node.input)
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += maker[name].input if name in maker else []
        return seen

    dense = [n for n in graph.node if n.op_type == "DequantizeLinear"]
    assert [n.input[0] for n in dense] == [
        TABLE.replace(".weight", f".shard_{j}.weight") for j in range(16)
    ]
    gathers = []
    for n in dense:
        (gather,) = users[n.output[0]]
        assert (gather.op_type, gather.input[0]) == ("Gather", n.output[0])
        gathers.append(gather)
    assert f"{TABLE}.row_ids" in ancestors(dense[0]), "not a constant that is folded at load"
    for before, after in zip(gathers, dense[1:], strict=False):
        assert before.output[0] in ancestors(after)
    assert "Concat" not in {n.op_type for n in graph.node}


def test_graphs_are_standard_and_of_opset_21(package: Path) -> None:
    for path in graphs(package).values():
        onnx.checker.check_model(str(path), full_check=True)
        m = model(path)
        assert [(o.domain, o.version) for o in m.opset_import] == [("", 21)]
        assert {n.domain for n in m.graph.node} <= {""}
        assert not m.functions


def test_a_matrix_is_three_nodes(package: Path) -> None:
    graph = model(graphs(package)["model_language_model_layers_0"]).graph
    kinds = [n.op_type for n in graph.node]
    assert sorted(set(kinds)) == ["Cast", "DequantizeLinear", "Gather"]
    assert len(kinds) == 3 * 12


@pytest.mark.parametrize(
    ("lowering", "message"), [("blocked", "block_size"), ("tiles", "float8e4m3fn")]
)
def test_an_older_opset_is_refused(tmp_path: Path, lowering: str, message: str) -> None:
    wish = {"lowering": lowering, "include": (f"{TEXT}layers.0.mlp.experts.0.up*",)}
    (path,) = graphs(convert(SOURCE, tmp_path / "p", **wish)).values()
    m = onnx.load(str(path))
    m.opset_import[0].CopyFrom(helper.make_opsetid("", 20))
    with pytest.raises(Exception, match=message):
        onnx.checker.check_model(m, full_check=True)


def test_the_config_keeps_its_quantisation(package: Path) -> None:
    assert (package / "config.json").read_bytes() == (SOURCE / "config.json").read_bytes()
    assert not (package / "model.safetensors.index.json").exists()


def test_the_report_lists_families_that_add_up(package: Path) -> None:
    report = json.loads((package / "weight-loading-report.json").read_text())
    assert report["output_weight_format"] == "fp8_qdq"
    assert (report["storage_preserving"], report["native_fp8"]) == (True, False)
    families = {f["name"]: (f["count"], f["exported"]) for f in report["families"]}
    given = GOLDEN["families"]
    assert families == {
        "routed_experts": (given["routed_expert_fp8"],) * 2,
        "routed_expert_scales": (given["routed_expert_scale_inv"],) * 2,
        "ple_shards": (given["ple_shards"],) * 2,
        "ple_scale": (given["ple_weight_scale"],) * 2,
        "mtp": (given["mtp"], 0),
        "visual": (given["visual"], 0),
        "hash_buffers": (3, 3),
        "text_dense": (99, 99),
    }
    assert sum(count for count, _ in families.values()) == GOLDEN["tensors"] == 313
    assert sum(f["bytes"] for f in report["families"]) == GOLDEN["total_bytes"]
    assert report["totals"] == {"source_total": 313, "exported": 215, "excluded": 98}
    assert report["counts"] == {"source_tensors": 313, "copied": 215, "excluded": 98}
    assert report["mtp_exported"] is False
    assert report["ple"] == {"scale_bits": GOLDEN["ple_scale_bits"], "shards": 16, "rows": 256}
    assert report["modules_to_not_convert"] == {"listed": 110, "resolved": 110, "unresolved": []}
    assert {k: v["count"] for k, v in report["excluded_families"].items()} == {
        "mtp.*": 53, "model.visual.*": 45,
    }  # fmt: skip
    assert report["cpu"]["runs"] is True


def test_mtp_goes_along_when_it_is_named(tmp_path: Path, stored: Any) -> None:
    package = convert(SOURCE, tmp_path / "p", include=("mtp.*",))
    assert payloads(package) == {n: t for n, t in stored.items() if n.startswith("mtp.")}
    report = json.loads((package / "weight-loading-report.json").read_text())
    assert report["mtp_exported"] is True
    found = values(package)
    assert len(found) == 12
    for name, value in found.items():
        digest = GOLDEN["sha256_exact_f32"].get(name)
        assert digest in (None, hashlib.sha256(value.tobytes()).hexdigest())


def test_the_package_is_accepted(package: Path) -> None:
    done = run_ntool("verify-package", package, "--against", SOURCE, "--standard-only")
    assert done.code == 0, done.err
    checks = done.of("check")
    assert {c["id"] for c in checks if c["ok"] is None} == {
        "data.hash", "flow.ports", "flow.tokens", "run.dynamic", "run.finite",
        "run.placement", "golden.values",
    }  # fmt: skip
    held = {c["id"] for c in checks if c["ok"]}
    assert {"graph.checker", "graph.standard", "data.orphans", "weights.complete", "weights.values",
            "weights.sane", "dtype.policy", "run.load", "layout.schema"} <= held  # fmt: skip
    compared = [c["actual"] for c in checks if c["id"] == "weights.values"]
    assert sum(compared) == sum(len(t[2]) for t in payloads(package).values())


def test_a_changed_byte_a_lost_row_and_an_extra_file_are_found(
    package: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "p"
    shutil.copytree(package, copy)
    data = copy / "other" / "model.safetensors"
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    report = copy / "weight-loading-report.json"
    content = json.loads(report.read_text())
    del content["tensors"][0]
    report.write_text(json.dumps(content))
    (copy / "stray.bin").write_bytes(b"x")
    done = run_ntool("verify-package", copy, "--against", SOURCE, "--no-run")
    assert done.code == 1
    failed = {c["id"] for c in done.of("check") if c["ok"] is False}
    assert failed == {"weights.values", "weights.complete", "layout.files"}


def test_a_package_of_weights_is_not_run(package: Path, ntool: Any) -> None:
    done = ntool("run-prefill", package, "--prompt", "a", code=5)
    assert "package of weights" in done.err


def test_what_has_no_cpu_kernel_is_said_before_it_is_written(tmp_path: Path, ntool: Any) -> None:
    done = ntool("convert-fp8", SOURCE, "-o", tmp_path / "p", "--to", "qdq", "--lowering", "tiles",
                 "--format", "jsonl")  # fmt: skip
    (problem,) = done.of("problem")
    assert (problem["code"], problem["severity"]) == ("no-cpu-kernel", "warning")
    report = json.loads((tmp_path / "p" / "weight-loading-report.json").read_text())
    assert report["cpu"]["runs"] is False
    found = ntool("verify-package", tmp_path / "p", "--format", "jsonl", code=1)
    failed = [c for c in found.of("check") if c["ok"] is False]
    assert {(c["id"], c["reason"]) for c in failed} == {
        ("run.load", "no-kernel"), ("run.support", "no-kernel"),
    }  # fmt: skip
    assert ntool("verify-package", tmp_path / "p", "--no-run", "--format", "jsonl").code == 0


def test_parts_make_the_same_package(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "p"
    for i in (2, 1, 3):
        plan, _ = planned(SOURCE)
        with plan.files:
            run(plan, out, Options(part=(i, 3), jobs=2))
        assert not out.exists()
    files, summary = command.merged(out, False, ("qdq",))
    assert [f["role"] for f in files] == ["tensors"] * 6 + ["graph"] * 6
    assert summary["counts"] == {"source_tensors": 313, "copied": 215, "excluded": 98}
    assert digests(out) == digests(package)


def test_threads_make_the_same_package(package: Path, tmp_path: Path) -> None:
    plan, _ = planned(SOURCE)
    command.carry_out(plan, tmp_path / "p", Options(jobs=3), dry_run=False, verify=False)
    assert digests(tmp_path / "p") == digests(package)


def test_small_shards_change_files_and_no_values(package: Path, tmp_path: Path) -> None:
    out = convert(SOURCE, tmp_path / "p", shard_nbytes=100_000)
    assert len(components(out)["model_language_model_layers_0"]["data"]) > 3
    assert payloads(out) == payloads(package)
    before, after = values(package), values(out)
    assert all(np.array_equal(before[n], after[n]) for n in before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("calls", [1, 4])
def test_a_killed_run_leaves_nothing_finished_and_resumes(
    package: Path, tmp_path: Path, calls: int
) -> None:
    out = tmp_path / "p"
    child = os.fork()
    if child == 0:
        seen = 0
        write = Work.write_companion

        def killing(self: Work, name: str, content: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == calls:
                write(self, name, content)  # the graph is there, its shard is not finished
                os.kill(os.getpid(), signal.SIGKILL)
            write(self, name, content)

        Work.write_companion = killing  # type: ignore[method-assign]
        plan, _ = planned(SOURCE)
        command.carry_out(plan, out, Options(), dry_run=False, verify=False)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert not out.exists() and work_folder(out).is_dir()
    plan, _ = planned(SOURCE)
    options = Options(resume=True)
    outcome = command.carry_out(plan, out, options, dry_run=False, verify=True)
    assert outcome.problems == []
    assert outcome.summary["shards_written"] == 6 - (calls - 1)
    assert digests(out) == digests(package)


def test_a_shard_whose_graph_is_gone_is_made_again(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "p"
    plan, _ = planned(SOURCE)
    with plan.files:
        run(plan, out, Options(part=(1, 2)))
        run(plan, out, Options(part=(2, 2)))
        lost = next(work_folder(out).glob("data/*/model.onnx"))
        lost.unlink()
        with pytest.raises(UsageProblem, match="1 of 6 shards"):
            merge(out, force=False, kinds=("qdq",))
        assert run(plan, out, Options(resume=True)) == [f"{lost.parent.name}/model.safetensors"]
    assert digests(out) == digests(package)


def test_verify_finds_a_changed_graph(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "p"
    shutil.copytree(package, out)
    graph = out / "other" / "model.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    plan, _ = planned(SOURCE)
    with plan.files:
        (problem,) = differences(plan, out, plan.shards)
    assert (problem.code, problem.file) == ("differs", "other/model.onnx")


def test_codes_that_are_no_numbers_are_counted_and_kept(tmp_path: Path) -> None:
    dtype, array = codes((130, 5))
    array.view("u1")[3, 1:4] = 0x7F, 0xFF, 0x7F
    source = write(
        tmp_path / "c", {"m.safetensors": {"w.weight": (dtype, array),
                         "w.weight_scale_inv": scales((2, 1))}}, fp8_config())  # fmt: skip
    package = convert(source, tmp_path / "p")
    (row, _) = json.loads((package / "weight-loading-report.json").read_text())["tensors"]
    assert (row["name"], row["statistics"]) == ("w.weight", {"nan": 3})
    found = values(package)["w.weight"]
    assert np.argwhere(np.isnan(found)).tolist() == [[3, 1], [3, 2], [3, 3]]
