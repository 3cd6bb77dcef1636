"""What --to qdq does not take, by name: rules of qwen4_exp, and of FP8 checkpoints in general."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ntool.lib.errors import InputError, NtoolError, Unsupported, UsageProblem

from ..conftest import DATA
from ..sparse_files import write_fp8_full
from .checkpoints import codes, fp8_config, read, scales, write
from .qdq import planned

SOURCE = DATA / "qwen4-exp" / "text-fp8"
TEXT = "model.language_model."
UP = f"{TEXT}layers.2.mlp.experts.1.up_proj.weight"
NGRAM = f"{TEXT}layers.1.ple.ple_embedding.ngram_embedding"
Tensors = dict[str, tuple[str, np.ndarray]]


def edited(folder: Path, change: Callable[[Tensors, dict[str, Any]], object]) -> Path:
    """The tiny checkpoint in one file, changed."""
    tensors = {n: t for file in read(SOURCE).values() for n, t in file.items()}
    config = json.loads((SOURCE / "config.json").read_text())
    change(tensors, config)
    return write(folder, {"model.safetensors": tensors}, config)


def bf16(array: np.ndarray) -> tuple[str, np.ndarray]:
    return "BF16", array.astype(ml_dtypes.bfloat16)


def skip(config: dict[str, Any]) -> list[str]:
    names: list[str] = config["quantization_config"]["modules_to_not_convert"]
    return names


def set_block(config: dict[str, Any], *block: int) -> None:
    config["quantization_config"]["weight_block_size"] = list(block)


CASES: dict[str, tuple[Callable[[Tensors, dict[str, Any]], object], str]] = {
    "missing scale": (lambda t, c: t.pop(f"{UP}_scale_inv"), f"{UP}: F8_E4M3 without a scale"),
    "grid": (
        lambda t, c: t.update({f"{UP}_scale_inv": scales((2, 1))}),
        f"{UP}_scale_inv: scale grid of a",
    ),
    "one scale for an expert": (
        lambda t, c: t.update({f"{UP}_scale_inv": scales((1,))}),
        f"{UP}_scale_inv: scale grid: found",
    ),
    "orphan": (
        lambda t, c: t.update({f"{TEXT}x.weight_scale_inv": scales((1, 1))}),
        f"{TEXT}x.weight_scale_inv: a scale without an FP8 weight",
    ),
    "dtype of a scale": (
        lambda t, c: t.update({f"{UP}_scale_inv": scales((2, 2), dtype="F32")}),
        f"{UP}_scale_inv: dtype of a scale: found F32, expected BF16",
    ),
    "dtype of codes": (
        lambda t, c: t.update({UP: codes((136, 160), dtype="F8_E5M2")}),
        f"{UP}: dtype of a routed expert: found F8_E5M2",
    ),
    "an expert that is BF16": (
        lambda t, c: (t.update({UP: bf16(np.ones((136, 160)))}), t.pop(f"{UP}_scale_inv")),
        f"{UP}: dtype of a routed expert: found BF16",
    ),
    "block size": (
        lambda t, c: set_block(c, 256, 128),
        "scale grid of a",
    ),
    "table scale missing": (
        lambda t, c: t.pop(f"{NGRAM}.weight_scale"),
        "shard_0.weight: F8_E4M3 without a scale",
    ),
    "table scale of two values": (
        lambda t, c: t.update({f"{NGRAM}.weight_scale": scales((2,))}),
        f"{NGRAM}.weight_scale: scale grid",
    ),
    "table scale of other bits": (
        lambda t, c: t.update({f"{NGRAM}.weight_scale": bf16(np.array([0.5]))}),
        f"{NGRAM}.weight_scale: scale of an n-gram table, bits: found 0x3f00, expected 0x3951",
    ),
    "last shard missing": (
        lambda t, c: t.pop(f"{NGRAM}.shard_15.weight"),
        f"{NGRAM}.shard_15.weight: the config demands it",
    ),
    "shard in BF16": (
        lambda t, c: t.update({f"{NGRAM}.shard_3.weight": bf16(np.ones((16, 8)))}),
        f"{NGRAM}.shard_3.weight: dtype of a shard of the n-gram table: found BF16",
    ),
    "listed name of no tensor": (
        lambda t, c: skip(c).append(f"{TEXT}nothing"),
        f"modules_to_not_convert: '{TEXT}nothing': found no such tensor",
    ),
    "listed name stored in FP8": (
        lambda t, c: skip(c).append(UP.removesuffix(".weight")),
        "modules_to_not_convert: 1 names are stored in FP8",
    ),
    "FP8 elsewhere": (
        lambda t, c: t.update({
            f"{TEXT}layers.0.mlp.shared_expert.up_proj.weight": codes((40, 160)),
            f"{TEXT}layers.0.mlp.shared_expert.up_proj.weight_scale_inv": scales((1, 2)),
        }) or skip(c).remove(f"{TEXT}layers.0.mlp.shared_expert.up_proj"),
        "shared_expert.up_proj.weight: F8_E4M3 outside of the routed experts",
    ),
    "unknown tensor": (
        lambda t, c: t.update({f"{TEXT}layers.0.mlp.surprise": bf16(np.ones(3))}),
        f"{TEXT}layers.0.mlp.surprise: not a tensor of the family",
    ),
    "expert too many": (
        lambda t, c: t.update({
            UP.replace(".1.up", ".4.up"): codes((136, 160)),
            UP.replace(".1.up", ".4.up") + "_scale_inv": scales((2, 2)),
        }),
        "experts.4.up_proj.weight: not a tensor of the family",
    ),
    "tensor missing": (
        lambda t, c: t.pop(f"{TEXT}layers.0.mlp.gate.weight") and skip(c).remove(
            f"{TEXT}layers.0.mlp.gate"),
        f"{TEXT}layers.0.mlp.gate.weight: the config demands it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules_of_the_family(tmp_path: Path, case: str) -> None:
    change, expected = CASES[case]
    with pytest.raises(InputError) as e:
        planned(edited(tmp_path / "c", change))
    problems = getattr(e.value, "problems", [])
    told = [": ".join(x for x in (p.file, p.name, p.message) if x) for p in problems]
    assert any(expected in text for text in told), (e.value.message, told)
    assert e.value.exit_code == 3


def test_an_unchanged_checkpoint_in_one_file_is_taken(tmp_path: Path) -> None:
    plan, warnings = planned(edited(tmp_path / "c", lambda t, c: None))
    assert (plan.counts(), warnings) == ({"copied": 215, "excluded": 98}, [])


def test_blocks_of_another_size_that_fit(tmp_path: Path) -> None:
    """136 x 160 has a 2 x 2 grid for blocks of 100 x 100 too, and other values."""
    source = edited(tmp_path / "c", lambda t, c: set_block(c, 100, 100))
    with pytest.raises(InputError, match=r"weight_block_size: found \[100, 100\], expected"):
        planned(source)


def small(folder: Path, tensors: Any, config: Any = None) -> Path:
    return write(folder, {"m.safetensors": tensors}, config or fp8_config())


W = {"w.weight": codes((4, 4)), "w.weight_scale_inv": scales((1, 1))}
SHARDS = {f"x.shard_{i}.weight": codes((4, 4), i) for i in range(3)} | {
    "x.weight_scale": scales(())
}


def check(error: type[NtoolError], text: str, source: Path, **wish: Any) -> None:
    with pytest.raises(error) as e:
        planned(source, **wish)
    assert text in e.value.message


def test_nvfp4(tmp_path: Path) -> None:
    packed = {"w.weight": ("U8", np.ones((4, 8), np.uint8)), "w.weight_scale": codes((4, 1))}
    text = "tensor 'w.weight': NVFP4 weights"
    check(Unsupported, text, small(tmp_path / "a", packed, {"model_type": "x"}))
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    check(Unsupported, "quantization_config: found NVFP4", small(tmp_path / "b", W, config))


def test_no_fp8(tmp_path: Path) -> None:
    source = small(tmp_path / "c", {"a.weight": scales((2, 2))}, {"model_type": "x"})
    check(InputError, "FP8 weights: found none", source)


def test_options(tmp_path: Path, ntool: Any) -> None:
    source = small(tmp_path / "c", W)
    check(UsageProblem, "--lowering", source, lowering="rows")
    check(UsageProblem, "--scale-reading", source, reading="f32")
    check(UsageProblem, "FP8 weights left: found none", source, exclude=("w.*",))
    done = ntool("convert-fp8", source, "-o", tmp_path / "p", "--to", "qdq", "--lowering", "x",
                 code=2)  # fmt: skip
    assert "--lowering" in done.err


def test_a_part_of_a_table(tmp_path: Path) -> None:
    source = small(tmp_path / "c", SHARDS)
    check(UsageProblem, "shards of the table 'x.weight'", source, exclude=("x.shard_1.*",))


def test_a_gap_in_a_table_and_shards_of_two_widths(tmp_path: Path) -> None:
    gap = {n: t for n, t in SHARDS.items() if n != "x.shard_1.weight"}
    check(InputError, "shard 1: found missing", small(tmp_path / "a", gap))
    wide = {**SHARDS, "x.shard_1.weight": codes((4, 5))}
    check(InputError, "tensor 'x.shard_1.weight': shape", small(tmp_path / "b", wide))
    mixed = {**SHARDS, "x.shard_1.weight": scales((4, 4))}
    check(InputError, "tensor 'x.shard_1.weight': dtype", small(tmp_path / "c", mixed))


def test_the_bf16_reading_is_for_bf16_scales(tmp_path: Path) -> None:
    tensors = {**W, "w.weight_scale_inv": scales((1, 1), dtype="F32")}
    source = small(tmp_path / "c", tensors)
    check(Unsupported, "dtype of a scale: found F32, expected BF16", source, reading="bf16")
    planned(source, reading="exact")


def test_a_tensor_without_elements(tmp_path: Path) -> None:
    source = small(tmp_path / "c", {**W, "e": scales((0, 4))})
    check(Unsupported, "tensor 'e': no elements", source)


def test_a_tensor_with_the_name_of_a_port(tmp_path: Path) -> None:
    source = small(tmp_path / "c", {**W, "w.weight.dequantized": scales((2,))})
    check(Unsupported, "has the name of a port", source)


def test_the_published_checkpoint_by_its_headers(tmp_path: Path) -> None:
    """152,089 tensors, 185 GB of holes: counts of the format notes, and one graph of 48."""
    folder = write_fp8_full(tmp_path / "full")
    plan, warnings = planned(folder)
    assert warnings == []
    families = {f["name"]: (f["count"], f["exported"]) for f in plan.report["families"]}
    assert families == {
        "routed_experts": (73728, 73728), "routed_expert_scales": (73728, 73728),
        "ple_shards": (128, 128), "ple_scale": (1, 1), "text_dense": (1067, 1067),
        "hash_buffers": (3, 3), "mtp": (3101, 0), "visual": (333, 0),
    }  # fmt: skip
    assert sum(count for count, _ in families.values()) == 152_089
    assert plan.report["ple"] == {"scale_bits": "0x3951", "shards": 128, "rows": 320_001_536}
    assert plan.report["modules_to_not_convert"]["resolved"] == 943
    assert len(plan.companions) == 48 + 1 + 1
    shard = next(s for s in plan.companions if "layers_3/" in s)
    (graph,) = (make() for make in plan.companions[shard].values())
    import onnx

    nodes = onnx.ModelProto.FromString(graph).graph.node
    assert sum(n.op_type == "DequantizeLinear" for n in nodes) == 512 * 3
    assert len(nodes) == 3 * 512 * 3


def test_a_scale_that_was_not_looked_at_before(tmp_path: Path) -> None:
    """Those of a remote source are judged as they pass."""
    from ntool.lib.checkpoint.source import open_checkpoint
    from ntool.lib.conversion.open_files import OpenFiles
    from ntool.lib.fp8.codes import Scales

    bad = bf16(np.array([[1.0, np.inf, np.nan]]))
    checkpoint = open_checkpoint(
        str(small(tmp_path / "c", {"s": bad, "t": scales((2,))}, {"a": 1}))
    )
    with OpenFiles(checkpoint.folder) as files:
        (raw,) = Scales(checkpoint.tensors["t"], files).bands()
        assert len(raw) == 4
        with pytest.raises(InputError, match="tensor 's': values that are not finite: found 2"):
            list(Scales(checkpoint.tensors["s"], files).bands())
