"""The tensors of a group in another layout: names, shapes, and the matrices that they are made of.

split             GROUP.J.gate_proj.weight [I, H], up_proj [I, H], down_proj [H, I]
fused             GROUP.gate_up_proj [E, 2I, H], down_proj [E, H, I]
fused-transposed  GROUP.gate_up_proj [E, H, 2I], down_proj [E, I, H]
stacked           GROUP.gate_proj [E, I, H], up_proj [E, I, H], down_proj [E, H, I]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..checkpoint.tensor import Tensor
from .group import DIRECT, TRANSPOSED, Group
from .matrices import INTERLEAVED, SCALE, Matrix, Stored, is_vector
from .names import BIAS, DOWN, FUSED, GATE, GATE_UP, SCALES, SPLIT, STACKED, UP, WEIGHT
from .scales import MATRIX

FUSED_TRANSPOSED = "fused-transposed"
TARGETS = (SPLIT, FUSED, FUSED_TRANSPOSED, STACKED)
MODULES_OF = {
    "gate-up-down": {GATE: "gate_proj", UP: "up_proj", DOWN: "down_proj"},
    "w1-w3-w2": {GATE: "w1", UP: "w3", DOWN: "w2"},
}
"""Sets of names of split matrices."""
BANK_OF = {GATE_UP: "gate_up_proj", GATE: "gate_proj", UP: "up_proj", DOWN: "down_proj"}
BANK_SCALE = "_scale_inv"
"""What follows the name of a bank in that of its scales."""


@dataclass(frozen=True)
class Style:
    """Names that a split target gets.

    Attributes:
        names: a key of MODULES_OF.
        suffix: one of SCALES: what the scales of the checkpoint's other matrices are called.
        scalar: shape of the one scale of a matrix.
    """

    names: str = "gate-up-down"
    suffix: str = SCALES[0]
    scalar: tuple[int, ...] = (1, 1)


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor of the result.

    Attributes:
        stored, part, roles, experts: its matrices: of each expert those of these roles.
        turned: each expert is stored as [in, out], its matrices side by side; else as [out, in],
            one below the other.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: Stored
    part: str
    roles: tuple[str, ...]
    experts: range
    turned: bool

    def blocks(self) -> Iterator[tuple[Matrix, ...]]:
        """The matrices of each expert, in order."""
        for expert in self.experts:
            yield tuple(self.stored.matrix(self.part, role, expert) for role in self.roles)

    def sources(self) -> list[Tensor]:
        """The tensors that it takes bytes from, each once."""
        found = {
            self.stored.tensor(self.part, role, expert): None
            for expert in self.experts
            for role in self.roles
        }
        return list(found)

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        rows = (self.stored.matrix(self.part, role, 0) for role in self.roles)
        return len(self.experts) * sum(m.rows * m.form.inputs * m.form.item for m in rows)


def group_name(group: Group) -> str:
    """The name of the experts module in the result: `block_sparse_moe` that holds banks itself gets
    an `experts`, and `moe` becomes `mlp.experts`."""
    path, _, last = group.name.rpartition(".")
    if last == "block_sparse_moe":
        return f"{group.name}.experts"
    if last == "moe":
        return f"{path}.mlp.experts" if path else "mlp.experts"
    return group.name


def is_turned(to: str) -> bool:
    """Whether matrices of a target are stored as [in, out]."""
    return to == FUSED_TRANSPOSED


def stays(group: Group, to: str, order: str | None) -> bool:
    """Whether a group is in the target layout already, and is copied as it is.

    Args:
        order: of gate and up, as the caller or the names say.
    """
    if group.layout == SPLIT:
        return to == SPLIT
    if group_name(group) != group.name or to == SPLIT:
        return False
    orientation = TRANSPOSED if is_turned(to) else DIRECT
    fused = to != STACKED and group.gated
    layout = FUSED if fused else STACKED
    return (group.layout, group.orientation) == (layout, orientation) and order != INTERLEAVED


def separates(group: Group, to: str, order: str | None) -> bool:
    """Whether gate and up of a fused group have to be told apart."""
    return group.layout == FUSED and (to in (SPLIT, STACKED) or order == INTERLEAVED)


def targets(stored: Stored, to: str, style: Style) -> list[Target]:
    """The tensors of a group in another layout, in the order in which they are written."""
    group = stored.group
    assert group.E is not None
    parts = [part for part in (WEIGHT, SCALE) if stored.has(part)]
    if to == SPLIT:
        return [
            _split(stored, part, role, expert, style)
            for expert in range(group.E)
            for role in ((GATE, UP, DOWN) if group.gated else (UP, DOWN))
            for part in parts
        ]
    out = []
    for name, roles in _banks(group, to, stored.order):
        for part in parts:
            end = BANK_SCALE if part == SCALE else ""
            out.append(_bank(stored, part, roles, BANK_OF[name] + end, is_turned(to)))
    for role in group.biases if stored.has(BIAS) else ():
        out.append(_bias(stored, role))
    return out


def _banks(group: Group, to: str, order: str | None) -> list[tuple[str, tuple[str, ...]]]:
    """(role of the bank, roles of the matrices in it)."""
    if not group.gated:
        return [(UP, (UP,)), (DOWN, (DOWN,))]
    if to == STACKED:
        return [(role, (role,)) for role in (GATE, UP, DOWN)]
    together = group.layout == FUSED and not separates(group, to, order)
    return [(GATE_UP, (GATE_UP,) if together else (GATE, UP)), (DOWN, (DOWN,))]


def _split(stored: Stored, part: str, role: str, expert: int, style: Style) -> Target:
    matrix = stored.matrix(part, role, expert)
    group = stored.group
    names = style.names if group.gated else "gate-up-down"  # nobody's w3 is without a w1
    module = f"{group_name(group)}.{expert}.{MODULES_OF[names][role]}"
    name = f"{module}.{'weight' if part == WEIGHT else style.suffix}"
    shape: tuple[int, ...] = (matrix.rows, matrix.form.columns)
    if part == SCALE and group.scale_per == MATRIX:
        shape = style.scalar
    elif is_vector(group, part):
        shape = _vector(group, (), matrix.rows, matrix.tensor, False)
    experts = range(expert, expert + 1)
    return Target(name, matrix.tensor.dtype, shape, stored, part, (role,), experts, False)


def _bank(stored: Stored, part: str, roles: tuple[str, ...], name: str, turned: bool) -> Target:
    group = stored.group
    assert group.E is not None
    matrices = [stored.matrix(part, role, 0) for role in roles]
    rows, first = sum(m.rows for m in matrices), matrices[0]
    columns = first.form.columns
    vector = is_vector(group, part)
    shape: tuple[int, ...] = (group.E, columns, rows) if turned else (group.E, rows, columns)
    if vector and group.scale_per == MATRIX:
        shape = (group.E, rows, 1)
    elif vector:
        shape = _vector(group, (group.E,), rows, first.tensor, turned)
    full = f"{group_name(group)}.{name}"
    experts, turned = range(group.E), turned and not vector
    return Target(full, first.tensor.dtype, shape, stored, part, roles, experts, turned)


def _vector(
    group: Group, lead: tuple[int, ...], rows: int, source: Tensor, turned: bool
) -> tuple[int, ...]:
    """Shape of a scale for each output: with an axis for the inputs where the source has one."""
    if len(source.shape) == (1 if group.layout == SPLIT else 2):
        return (*lead, rows)
    return (*lead, 1, rows) if turned else (*lead, rows, 1)


def _bias(stored: Stored, role: str) -> Target:
    """The bias of a bank. Its name stays if that of the weight does; gate comes before up."""
    group = stored.group
    (tensor,) = stored.rows(BIAS, role).values()
    together = role != GATE_UP or stored.order != INTERLEAVED
    roles = (role,) if together else (GATE, UP)
    tail = tensor.name.removeprefix(f"{group.name}.")
    if not tail.startswith(BANK_OF[role]):
        tail = f"{BANK_OF[role]}_bias"
    name = f"{group_name(group)}.{tail}"
    experts = range(group.E or 0)
    return Target(name, tensor.dtype, tensor.shape, stored, BIAS, roles, experts, False)
