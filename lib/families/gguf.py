"""What the families know of a GGUF model: the record of `inspect-headers`, the contract, and the
refusal of its payload. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..checkpoint.tensor import Checkpoint, Problem, Tensor
from ..errors import Unsupported

if TYPE_CHECKING:
    from ..checkpoint.gguf_set import GgufFacts

ARCHITECTURES: dict[str, str] = {"qwen4exp": "qwen4_exp"}
"""`general.architecture` -> family, which is the name of its folder; only that is imported."""
NO_ROUTE = {
    "code": "no-payload-route",
    "message": "the payload of GGUF files is not converted, only their headers are read",
}


def _contract(facts: GgufFacts) -> Any:
    """Module `gguf_contract` of the family, or None."""
    folder = family(facts.architecture)
    return import_module(f".{folder}.gguf_contract", package=__package__) if folder else None


def family(architecture: str | None) -> str | None:
    """The family that a model's architecture belongs to, or None."""
    return ARCHITECTURES.get(architecture or "")


def judge(facts: GgufFacts | None, tensors: Iterable[Tensor]) -> list[Problem]:
    """Everything in which a model breaks the contract of its family; nothing for unknown ones."""
    contract = None if facts is None else _contract(facts)
    return contract.check(facts, _by_name(tensors))[1] if contract else []


def described(
    facts: GgufFacts | None, tensors: Iterable[Tensor]
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Fields of the `gguf` record (none for other formats), and what `judge` finds."""
    if facts is None:
        return [], []
    by_name = _by_name(tensors)
    contract = _contract(facts)
    found: list[Problem] = []
    geometry = None
    if contract:
        shape, found = contract.check(facts, by_name)
        geometry = None if shape is None else shape.fields()
    record = {
        "architecture": facts.architecture,
        "version": facts.version,
        "byte_order": "big" if facts.big_endian else "little",
        "parts": facts.count,
        "files": [{"path": p, "tensors": n} for p, n in facts.parts.items()],
        "types": dict(sorted(Counter(t.dtype for t in by_name.values()).items())),
        "geometry": geometry,
        "payload": {"convertible": False, "reasons": _reasons(facts, by_name)},
    }
    return [record], found


def refuse_payload(checkpoint: Checkpoint) -> None:
    """Refuse to convert a GGUF model, before a byte of its payload is read; others pass.

    Raises:
        Unsupported: with the reasons.
    """
    facts = checkpoint.gguf
    if facts is None:
        return
    texts = "; ".join(r["message"] for r in _reasons(facts, checkpoint.tensors))
    raise Unsupported(
        f"{checkpoint.source}: the payload of this GGUF model is not converted: {texts}",
        hint="ntool inspect-headers and ntool census read its headers",
    )


def _by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {t.name: t for t in tensors}


def _reasons(facts: GgufFacts, tensors: Mapping[str, Tensor]) -> list[dict[str, str]]:
    contract = _contract(facts)
    return [r._asdict() for r in contract.reasons(tensors)] if contract else [NO_ROUTE]
