"""Where the bytes of each expert's matrices are, whatever the layout that holds them.

A matrix is [out, in]. On disk it is a stretch of a file, rows of such a stretch (gate and up of a
fused bank), or turned: [in, out], or some columns of that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..checkpoint.tensor import Tensor
from .containers import BANK, Rows
from .group import TRANSPOSED, Group
from .names import BIAS, DOWN, FLAT, FUSED, GATE, GATE_UP, SPLIT, UP, WEIGHT
from .scales import MATRIX, ROW

SCALE = "scale"
"""The part of a group that its scales are, beside WEIGHT and BIAS."""
CONCATENATED, INTERLEAVED, UNKNOWN = "concatenated", "interleaved", "unknown"
"""Orders of gate and up in a fused bank."""


class Form(NamedTuple):
    """How one expert lies in a stored tensor.

    Attributes:
        outputs, inputs: sides of the stored matrix, in items.
        columns: the input axis as shapes count it; of sub-byte dtypes several values are one item.
        item: bytes.
        transposed: stored as [inputs, outputs].
    """

    outputs: int
    inputs: int
    columns: int
    item: int
    transposed: bool

    @property
    def nbytes(self) -> int:
        """Bytes of one expert."""
        return self.outputs * self.inputs * self.item


class Matrix(NamedTuple):
    """One matrix: some of the outputs of a stored one.

    Attributes:
        tensor: that holds it.
        offset: of the stored matrix, bytes from the start of the file.
        form: of the stored matrix.
        start, rows, step: which outputs are its rows, and how many.
    """

    tensor: Tensor
    offset: int
    form: Form
    start: int
    rows: int
    step: int = 1

    @property
    def whole(self) -> bool:
        """Whether it is all of the stored matrix."""
        return self.rows == self.form.outputs

    def stretch(self, turned: bool) -> tuple[int, int] | None:
        """(offset, bytes) if it lies in the file as [out, in], or for `turned` as [in, out]; else
        None."""
        form = self.form
        if form.transposed != turned or self.step > 1 or (turned and not self.whole):
            return None
        row = form.inputs * form.item
        return self.offset + self.start * row, self.rows * row


class Stored:
    """The matrices of a group by part, role and expert.

    Args:
        order: of gate and up, where the group is fused.
    """

    def __init__(self, group: Group, order: str | None) -> None:
        self.group, self.order = group, order
        self._parts = {WEIGHT: group.weights, SCALE: group.scales, BIAS: group.biases}
        self._forms: dict[tuple[str, str], Form] = {}

    def rows(self, part: str, role: str) -> Rows:
        """The tensors that hold matrices of a role; gate and up may be in one."""
        roles = self._parts[part]
        return roles.get(role) or (roles.get(GATE_UP, {}) if role in (GATE, UP) else {})

    def has(self, part: str) -> bool:
        """Whether the group has such a part."""
        return any(self._parts[part].values())

    def tensor(self, part: str, role: str, expert: int) -> Tensor:
        """The tensor that holds a matrix."""
        return self.rows(part, role)[expert if self.group.layout == SPLIT else BANK]

    def matrix(self, part: str, role: str, expert: int) -> Matrix:
        """A matrix of an expert; GATE_UP is both of a fused bank, in their order there."""
        tensor, form = self.tensor(part, role, expert), self.form(part, role)
        at = tensor.offset + (0 if self.group.layout == SPLIT else expert * form.nbytes)
        if role not in (GATE, UP) or self.group.layout != FUSED or form.outputs == 1:
            return Matrix(tensor, at, form, 0, form.outputs)
        half, second = form.outputs // 2, role == UP
        if self.order == INTERLEAVED and half > 1:
            return Matrix(tensor, at, form, int(second), half, 2)
        return Matrix(tensor, at, form, half if second else 0, half)

    def form(self, part: str, role: str) -> Form:
        """How the stored matrices of a role lie; those of a group are alike."""
        form = self._forms.get((part, role))
        if form is None:
            tensor = next(iter(self.rows(part, role).values()))
            form = self._forms[part, role] = _form(self.group, part, role, tensor)
        return form


def is_vector(group: Group, part: str) -> bool:
    """Whether a part has a value, or none but one, for each output: it has no orientation."""
    return part == BIAS or (part == SCALE and group.scale_per in (MATRIX, ROW))


def _form(group: Group, part: str, role: str, tensor: Tensor) -> Form:
    banks = group.layout != SPLIT
    experts = group.E if banks and group.E else 1
    params, nbytes = tensor.params // experts, tensor.nbytes // experts
    if is_vector(group, part):
        return Form(params, 1, 1, nbytes // params, False)
    if group.layout == FLAT:
        rows, columns = tensor.shape[0] // experts, tensor.shape[1]
        transposed = role == DOWN
    else:
        rows, *rest = tensor.shape[1:] if banks else tensor.shape
        columns = math.prod(rest)
        transposed = banks and group.orientation == TRANSPOSED
    if transposed:
        return Form(columns, rows, rows, nbytes // params, True)
    if nbytes % params == 0:
        return Form(rows, columns, columns, nbytes // params, False)
    return Form(rows, nbytes // rows, columns, 1, False)
