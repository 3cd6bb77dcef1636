"""Names of the files of a package."""

from __future__ import annotations

SCHEMA = "ntool-package/1"
REPORT_SCHEMA = "ntool-weight-loading-report/1"
MANIFEST = "package.json"
WEIGHTS = "weights"
"""`kind` of a package that holds weights alone: graphs, and nothing that says how to run them."""
REPORT = "weight-loading-report.json"
SUMS = "SHA256SUMS"
PROCESSOR = "processor.json"
TOKENIZER = "tokenizer"
GRAPH = "model.onnx"
TOKENIZER_FILES = (
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""Copied byte for byte from the checkpoint."""
REQUIRED_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
ANY_EP = "onnx-standard"
"""`execution_provider` of graphs of standard operators, for any runtime."""
OPTIONAL_FILES = (
    "README.md",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "MODEL_CARD.md",
    ".gitattributes",
    SUMS,
)
"""What people and the Hub put beside a package; nothing of it is read by a runtime."""
BOOKKEEPING = (".cache", ".git")
"""Folders that download tools keep in a package folder."""
