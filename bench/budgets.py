"""What the project promised itself, and which rows judge it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """One promise: what costs what, at most, and the names of the rows that measure it."""

    what: str
    promise: str
    rows: tuple[str, ...]


BUDGETS = (
    Budget(
        "`--help`, `--version`, completion",
        "80 ms of CPU over bare Python",
        ("start-help", "start-version", "start-completion"),
    ),
    Budget(
        "`inspect-headers`, 131 shards, 152,000 tensors, JSON Lines",
        "3x the bare read-and-parse loop and start-up, 100 MB",
        ("inspect-headers",),
    ),
    Budget("`census` of the same, direct", "0.8 s, 150 MB", ("census",)),
    Budget(
        "Hub, 131 shards, 30 ms a request",
        "135 requests, 40 MB, at least 3x faster than huggingface_hub",
        ("hub-census", "hub-headers"),
    ),
    Budget(
        "GGUF set of 1,224 tensors, vocabulary of 248,000 tokens",
        "0.25 s",
        ("inspect-headers-gguf",),
    ),
    Budget(
        "FP8 to BF16",
        "2x `cp` of the output, 100 MB for any size, at least 6x compressed-tensors",
        ("convert-fp8-dense", "convert-fp8-peer"),
    ),
    Budget(
        "BF16 to FP8 blocks",
        "at least 6x llm-compressor, 100 MB",
        ("convert-fp8-codes", "convert-fp8-codes-peer"),
    ),
    Budget(
        "export, bytes unchanged: copy",
        "1.5x `cp` and 0.5 s",
        ("export-copy", "export-copy-large", "export-peer"),
    ),
    Budget(
        "export, bytes unchanged: reflink, inplace",
        "1.5 s and 400 MB whatever the size",
        ("export-linked", "export-dry-run"),
    ),
    Budget("structure check of a package", "1.5x `onnx.checker` by path", ("verify-structure",)),
    Budget("hashes", "1.1x `hashlib.file_digest` of the bytes", ("verify-data",)),
    Budget("`--against`", "1.5x `hashlib.file_digest` of the bytes", ("verify-values",)),
    Budget(
        "prefill and sampling",
        "everything but ONNX Runtime's own run time is 3 % of the loop",
        ("loops-128", "loops-512", "loops-larger"),
    ),
)
"""A line of the project's table of budgets each; export and hashes have two budgets in one line."""
