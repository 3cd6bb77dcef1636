"""config.json, of checkpoints that would otherwise be taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ntool.lib import demo

from ..checkpoint.header_files import shard
from .making import case

SHAPES = json.loads((Path(demo.path("shapes")) / "config.json").read_text())


READ_BY = ["census", "export-component", "convert-fp8"]


def cf(
    name: str,
    verdict: str,
    config: bytes | dict[str, Any],
    words: str | None = None,
    commands: list[str] = READ_BY,
) -> None:
    def build(folder: Path) -> None:
        shard(folder / "model.safetensors", "a")
        raw = config if isinstance(config, bytes) else json.dumps(config).encode()
        (folder / "config.json").write_bytes(raw)

    case(name, verdict, build, kind="config", main=".", commands=commands, words=words)


for label, raw in {
    "empty": b"",
    "list": b"[]",
    "cut": b'{"model_type":"x"',
    "bom": b"\xef\xbb\xbf{}",
    "utf16": '{"a":1}'.encode("utf-16"),
    "latin": b'{"a":"\xe9"}',
    "deep": b'{"a":' * 60_000,
    "dup": b'{"model_type":"x","model_type":"y"}',
    "dup-deep": b'{"t":[{"a":1,"a":2}]}',
    "surrogate": b'{"a":"\\udc00"}',
    "trailing": b'{"a":1} x',
    "bigfloat": b'{"a":1e99999}',
    "minus-bigint": b'{"a":[-' + b"9" * 6000 + b"]}",
    "python": b"{'a': None}",
    "nul": b'{"a":1}\0',
}.items():
    verdict = "either" if label in ("bigfloat", "surrogate") else "reject"
    cf(f"cf-bad-json-{label}", verdict, raw)


def _changed_config(path: str, value: Any) -> dict[str, Any]:
    changed = json.loads(json.dumps(SHAPES))
    *folders, last = path.split(".")
    place = changed
    for key in folders:
        place = place[key]
    assert last in place, path
    place[last] = value
    return changed


for path, values in {
    "llm_config.num_hidden_layers": [-1, 0, 1.5, True, "4", None, 10**9, [4, 4]],
    "llm_config.head_dim": [15, 0, -16, 2.0, 7, 10**12],
    "llm_config.hidden_size": [0, -64, 2**40, "160"],
    "llm_config.num_attention_heads": [0, -1, 7, None],
    "llm_config.num_key_value_heads": [0, 4, -2, False],
    "llm_config.vocab_size": [0, -1, 2**63, 1.0],
    "llm_config.rope_theta": [0, -1.0, "x", None, False],
    "llm_config.rms_norm_eps": [-1e-6, "1e-6", None],
    "model_type": ["", 1, None, ["neo_chat"], "../neo_chat", "neo_chat\u202e"],
    "downsample_ratio": [0, -0.5, 3, "0.5"],
    "llm_config": [[], None, "x", 1],
    "vision_config": [[], None, "x"],
}.items():
    for number, value in enumerate(values):
        label = path.replace("llm_config.", "").replace("_", "-")
        cf(
            f"cf-bad-{label}-{number}",
            "refuse",
            _changed_config(path, value),
            commands=["export-component"],
        )
_FP8 = {"model_type": "made", "quantization_config": {"quant_method": "fp8"}}
for number, block in enumerate(
    [
        [0, 128],
        [-1, 128],
        [128],
        [128, 128, 128],
        "128",
        [128.0, 128],
        [True, 128],
        [128, None],
        128,
        [2**64, 1],
        {},
    ]
):
    config = json.loads(json.dumps(_FP8))
    config["quantization_config"]["weight_block_size"] = block
    cf(f"cf-bad-block-{number}", "reject", config, commands=["convert-fp8"])
for label, value in {"list": [], "text": "fp8", "number": 8}.items():
    cf(
        f"cf-bad-quantization-{label}",
        "reject",
        {**_FP8, "quantization_config": value},
        commands=["convert-fp8"],
    )
cf("cf-warn-minus-infinity", "accept_warn", b'{"a":[-Infinity]}', commands=["census"])
cf("cf-warn-deep-nan", "accept_warn", b'{"a":{"b":{"c":[1,NaN]}}}', commands=["census"])
