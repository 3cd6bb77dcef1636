"""Names under which routed experts are stored, as data.

A container is the module that holds the experts of one layer: the path component `experts`, or
`block_sparse_moe` and `moe` for the names that have no such component. What follows the container
in a tensor's name is its tail. Nothing that precedes the container is ever looked at, but for
modules of shared experts.
"""

from __future__ import annotations

from typing import NamedTuple

GATE, UP, DOWN, GATE_UP = "gate", "up", "down", "gate_up"
ROLES = (GATE_UP, GATE, UP, DOWN)
"""All roles in the order in which problems are told; `gate_up` is the fused pair."""
WEIGHT, BIAS = "weight", "bias"
SPLIT, FUSED, STACKED, FLAT = "split", "fused", "stacked", "flat"
LAYOUTS = (SPLIT, FUSED, STACKED, FLAT)

NOT_ROUTED = frozenset(("shared_expert", "shared_experts", "share_expert", "shared_mlp"))
"""Modules whose experts see every token: an `experts` inside of one is no group."""

SCALES = ("weight_scale_inv", "scale", "weight_scale", "qscale_weight")
"""Last component of the name of a split matrix's scales; multiplied, also where it says inv."""
SPLIT_PARTS = {WEIGHT: WEIGHT, BIAS: BIAS, **{s: s for s in SCALES}}


class Kit(NamedTuple):
    """A set of module names that are used together, and the role of each.

    Attributes:
        naming: how a group with these names is called.
        roles: {module: role}.
        gateless: how it is called without a gate, or None where a gate is always part of it.
    """

    naming: str
    roles: dict[str, str]
    gateless: str | None = None


KITS = (
    Kit("gate-up-down", {"gate_proj": GATE, "up_proj": UP, "down_proj": DOWN}, "up-down"),
    Kit("w1-w3-w2", {"w1": GATE, "w3": UP, "w2": DOWN}),
    Kit("fc1-fc3-fc2", {"fc1": GATE, "fc3": UP, "fc2": DOWN}),
    Kit("wi-wo", {"wi": UP, "wo": DOWN}, "wi-wo"),
)
NUMBERED_FC = Kit("fc1-fc2", {"fc1": UP, "fc2": DOWN}, "fc1-fc2")
"""What `fc1` and `fc2` are under `expert_J` (NLLB-MoE); under plain numbers `fc1` is the gate."""
MODULES = {module: kit for kit in KITS for module in kit.roles}
EXPERT = "expert_"
"""Stands before the number in Switch Transformers and NLLB-MoE."""


class Bank(NamedTuple):
    """What one tensor of all experts of a layer is.

    Attributes:
        layout: FUSED, STACKED or FLAT; None for names that fused and stacked groups share.
        role: one of ROLES.
        part: WEIGHT, BIAS, or the suffix of scales.
        stem: name of the projection: tensors of one projection share it.
    """

    layout: str | None
    role: str
    part: str
    stem: str


STEMS: dict[str, tuple[str | None, str]] = {
    "gate_up_proj": (FUSED, GATE_UP),
    "fc1": (FUSED, GATE_UP),
    "fc2": (FUSED, DOWN),
    "w13": (FUSED, GATE_UP),
    "gate_proj": (STACKED, GATE),
    "up_proj": (STACKED, UP),
    "down_proj": (None, DOWN),
    "w1": (STACKED, GATE),
    "w3": (STACKED, UP),
    "w2": (None, DOWN),
    "gate_and_up_projs": (STACKED, UP),  # NeMo's export of Nemotron-H: there is no gate in it
    "down_projs": (STACKED, DOWN),
    "mlp.w1": (FLAT, GATE),
    "mlp.v1": (FLAT, UP),
    "mlp.w2": (FLAT, DOWN),
}
"""Projections as one tensor under `experts`: {stem: (layout, role)}."""
SHARED = frozenset(stem for stem, (layout, _) in STEMS.items() if layout is None)
"""Stems that fused and stacked groups share."""
INTERLEAVED_STEMS = frozenset(("w13",))
"""Stems whose fused rows alternate between gate and up."""
TRANSPOSED_STEMS = frozenset(("gate_and_up_projs", "down_projs"))
"""Stems that are transposed wherever they are known from."""
ALWAYS_GATED_STEMS = frozenset(("w1", "w3"))
"""Stacked stems of which a gate is always part."""

BLOCKS = "blocks"
"""Part name of the MXFP4 form: packed bytes [E, out, in/32, 16], with scales [E, out, in/32]."""

_PARTS = {
    "": WEIGHT,
    ".weight": WEIGHT,
    "_weight": WEIGHT,
    "_bias": BIAS,
    ".bias": BIAS,
    "_blocks": BLOCKS,
    "_scales": "scales",
    "_scale_inv": "scale_inv",
    "_scale": "scale",
    "_weight_scale_inv": "weight_scale_inv",
    "_weight_scale": "weight_scale",
    **{f".{s}": s for s in SCALES},
}
"""What may follow a stem."""


def _banks(stems: dict[str, tuple[str | None, str]]) -> dict[str, Bank]:
    return {
        stem + ending: Bank(layout, role, part, stem)
        for stem, (layout, role) in stems.items()
        for ending, part in _PARTS.items()
    }


CONTAINERS: dict[str, dict[str, Bank]] = {
    "experts": _banks(STEMS),
    "block_sparse_moe": _banks({"input_linear": (FUSED, GATE_UP), "output_linear": (FUSED, DOWN)}),
    "moe": _banks({s: STEMS[s] for s in ("gate_proj", "up_proj")} | {"down_proj": (STACKED, DOWN)}),
}
"""Tails of banks for each container."""
