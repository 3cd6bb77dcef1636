"""Why a group cannot be stored in another layout. Detection has found nothing wrong with it."""

from __future__ import annotations

from collections.abc import Callable

from ..checkpoint.tensor import Problem, Tensor
from .group import TRANSPOSED, Group
from .matrices import INTERLEAVED, UNKNOWN
from .names import FLAT, FUSED, SPLIT, STACKED
from .scales import BLOCK
from .target import FUSED_TRANSPOSED, is_turned, separates

Say = Callable[[str, str], None]


def order_of(group: Group, named: str | None) -> str | None:
    """The order of gate and up in a fused group: the caller's word, else that of the names."""
    return named or group.gate_up_order if group.layout == FUSED else None


def refusals(group: Group, to: str, order: str | None) -> list[Problem]:
    """Everything that forbids to store a group as `to`, which it is not yet.

    Args:
        order: of gate and up, as `order_of` says.
    """
    out: list[Problem] = []

    def say(code: str, message: str) -> None:
        out.append(Problem(code, f"{group.name}: {message}"))

    if not isinstance(group.I, int):
        message = f"two populations of experts: found I = {group.I}, expected one width"
        say("two-populations", message)
    elif not (group.E and group.H and group.I):
        say("unrecognized-layout", "sizes: found an empty matrix, expected E, H and I above 0")
    else:
        _judge(group, to, order, say)
    return out


def _judge(group: Group, to: str, order: str | None, say: Say) -> None:
    dtypes = {t.dtype for rows in group.scales.values() for t in rows.values()}
    if len(dtypes) > 1:
        say("dtype-mismatch", f"scales: found {' and '.join(sorted(dtypes))}, expected one dtype")
    apart = separates(group, to, order)
    if apart and order == UNKNOWN:
        message = "order of gate and up: found nothing that tells it, expected --gate-up-order"
        say("gate-up-order-unknown", message)
        return
    kind = to if to == SPLIT else FUSED if group.gated and to != STACKED else STACKED
    if any(group.biases.values()) and group.layout != kind:
        message = f"biases: found in {group.layout} experts, and no agreed names in {kind} ones"
        say("bias-split-unsupported", message)
    turned = turns(group, to)
    (first, *_) = (t for rows in group.weights.values() for t in rows.values())
    small = first.nbytes < first.params
    if turned and (group.packed or small):
        message = "transposing: found several values in a byte, expected whole bytes"
        say("packed-transpose", message)
    elif small and any(_broken_rows(t) for r in group.weights.values() for t in r.values()):
        say("unrecognized-layout", f"rows of {first.dtype}: found some that end inside a byte")
    elif group.scale_suffix is not None:
        _scales(group, to, apart, order == INTERLEAVED, say)


def turns(group: Group, to: str) -> bool:
    """Whether the matrices of a group, or some of them, are transposed."""
    return group.layout == FLAT or (group.orientation == TRANSPOSED) != is_turned(to)


def _broken_rows(tensor: Tensor) -> bool:
    return bool(tensor.nbytes % (tensor.params // tensor.shape[-1]))


def _scales(group: Group, to: str, apart: bool, interleaved: bool, say: Say) -> None:
    if group.scale_per is None:
        message = "blocks of scales: found no weight_block_size in the config, expected one"
        say("scale-unaligned", message)
    if group.scale_per != BLOCK:
        return
    assert group.block is not None
    rows = group.block[1 if group.orientation == TRANSPOSED else 0]
    joined = group.gated and group.layout != FUSED and to in (FUSED, FUSED_TRANSPOSED)
    if group.layout == FLAT:
        say("scale-unaligned", "scales of a flat layout: found blocks that may span experts")
    elif apart and interleaved and rows > 1:
        message = f"rows of gate and up alternate: found blocks of {rows} rows, expected of one"
        say("scale-unaligned", message)
    elif (apart or joined) and not group.fusable:
        message = f"blocks of {rows} rows would span gate and up: found I = {group.I}"
        say("scale-unaligned", f"{message}, expected a multiple of {rows}")
