"""Names of the files of a package."""

from __future__ import annotations

from importlib import import_module

from ..families import EXPORTED, MODULES

SCHEMA = "ntool-package/1"
REPORT_SCHEMA = "ntool-weight-loading-report/1"
MANIFEST = "package.json"
WEIGHTS = "weights"
"""`kind` of a package that holds weights alone: graphs, and nothing that says how to run them."""
REPORT = "weight-loading-report.json"
SUMS = "SHA256SUMS"
PROCESSOR = "processor.json"
PREPROCESSOR, GENERATION = "preprocessor_config.json", "generation_config.json"
"""Of a checkpoint: how pictures become input, and how text is continued."""
TOKENIZER = "tokenizer"
GRAPH = "model.onnx"
REFLINK, HARDLINK, INPLACE = "reflink", "hardlink", "inplace"
LINKED = (REFLINK, HARDLINK, INPLACE)
"""`data_form` of components whose data files are the checkpoint's shards: clones of them, second
names of them, or themselves, with the graphs beside them."""
TOKENIZER_FILES = (
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""Copied byte for byte from the checkpoint."""
REQUIRED_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
SHARD_NBYTES = 5_000_000_000
"""Largest data file, unless a family or the user says otherwise."""
ANY_EP = "onnx-standard"
"""`execution_provider` of graphs of standard operators, for any runtime."""
STANDARD_EPS = ("default", ANY_EP)
"""Providers for which graphs have standard operators alone, and are checked to have no others."""
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


def beside_weights() -> list[str]:
    """Every file beside weights and config.json that an export of some family reads."""
    names = {GENERATION, PREPROCESSOR}
    for family in EXPORTED:
        names |= set(tokenizer_files(family)[0])
    return sorted(names)


def tokenizer_files(family: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files of the tokenizer that packages of a family may have, and those of them they must have:
    what is said above, unless the family's `TOKENIZER_FILES` says otherwise."""
    if family in MODULES.values():
        data = import_module(f"..families.{family}", package=__package__)
        own: tuple[tuple[str, ...], tuple[str, ...]] | None
        own = getattr(data, "TOKENIZER_FILES", None)
        if own is not None:
            return own
    return TOKENIZER_FILES, REQUIRED_TOKENIZER_FILES
