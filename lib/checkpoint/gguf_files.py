"""What a GGUF file is known by. Other sources start quicker without its reader."""

from __future__ import annotations

from .header import Header, noting_failures
from .tensor import Checkpoint

ENDING = ".gguf"
MAGIC = b"GGUF"


def is_gguf(name: str) -> bool:
    """Whether a file is called like one."""
    return name.lower().endswith(ENDING)


def begins_like_gguf(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a file without an ending that tells has the magic number."""
    with noting_failures(Header(name)), checkpoint.folder.open(name, len(MAGIC)) as f:
        return f.read(0, len(MAGIC)) == MAGIC
    return False
