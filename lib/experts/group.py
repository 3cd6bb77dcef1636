"""What is known of one group of experts, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

from ..checkpoint.tensor import BITS, Tensor
from .config_sizes import Sizes
from .containers import Family, Rows
from .names import FLAT, SPLIT

PACKED = "2 values per byte along the input axis"
DIRECT, TRANSPOSED, AMBIGUOUS = "direct", "transposed", "ambiguous"
BYTES = frozenset(("I8", "U8"))
"""Dtypes whose elements may be two 4-bit values."""
PLAIN_FLOATS = frozenset(("F16", "BF16", "F32", "F64", "C64"))
"""Dtypes of the safetensors format that need no scale."""

SHAPE, DTYPE, NAME = itemgetter(2), itemgetter(1), itemgetter(0)
Found = dict[str, Any]
"""A problem: `code`, `group` or `tensor` or `file`, and details such as `found` and `expected`."""


def quantised(dtype: str) -> bool:
    """Whether weights of this dtype mean nothing without a scale."""
    return dtype in BITS and dtype not in PLAIN_FLOATS


@dataclass(slots=True)
class Group:
    """One experts module and how it is stored.

    Attributes:
        name: path of the module, for example `model.layers.0.mlp.experts`.
        layout: `split`, `fused`, `stacked` or `flat`.
        orientation: DIRECT, TRANSPOSED, AMBIGUOUS, or None where it is unknown or does not apply.
        naming: set of names of split matrices, else None.
        gate_up_order: `concatenated`, `interleaved` or `unknown` for fused groups, else None.
        E: number of experts. H, I: widths of the residual stream and of an expert; None if unknown.
            I is a tuple where the first half of the experts has another width than the second.
        dtype: of most weights.
        packed: two 4-bit values in a byte along the input axis.
        scale_suffix: how names of scales end, None without scales.
        block: rows and columns of the stored matrix that share a scale, None if unknown.
        scale_per: "block", "matrix" or "row"; None without scales or if unknown.
        fusable: the scale grids of gate and up can be joined; None if unknown.
        weights, scales, biases: {role: {expert number: tensor}}; a bank is under BANK.
        others: tensors of a second layout or set of names, with those of unknown kind counted.
        problems: what is wrong, in order.
    """

    name: str
    layout: str
    orientation: str | None = None
    naming: str | None = None
    gate_up_order: str | None = None
    E: int | None = None
    H: int | None = None
    I: int | tuple[int, ...] | None = None  # noqa: E741 - the symbol of the source
    dtype: str | None = None
    packed: bool = False
    scale_suffix: str | None = None
    block: tuple[int, int] | None = None
    scale_per: str | None = None
    fusable: bool | None = None
    weights: dict[str, Rows] = field(default_factory=dict)
    scales: dict[str, Rows] = field(default_factory=dict)
    biases: dict[str, Rows] = field(default_factory=dict)
    others: int = 0
    problems: list[Found] = field(default_factory=list)

    @property
    def gated(self) -> bool:
        """Whether there is a gate, by itself or fused with up."""
        return "gate" in self.weights or "gate_up" in self.weights

    def tensors(self) -> Iterator[Tensor]:
        """All weights, scales and biases."""
        for part in (self.weights, self.scales, self.biases):
            for rows in part.values():
                yield from rows.values()

    def report(self, code: str, **details: Any) -> None:
        """Note a problem of this group."""
        self.problems.append({"code": code, "group": self.name, **details})

    def report_tensors(self, code: str, rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Note a problem for each (tensor name, details), in order of names."""
        for name, details in sorted(rows, key=NAME):
            self.report(code, tensor=name, **details)

    def record(self) -> dict[str, Any]:
        """Fields of an `expert-group` record; what does not apply to the layout is left out."""
        banks = self.layout not in (SPLIT, FLAT)
        inner = list(self.I) if isinstance(self.I, tuple) else self.I
        fields: dict[str, tuple[bool, Any]] = {
            "group": (True, self.name),
            "layout": (True, self.layout),
            "orientation": (banks, self.orientation),
            "naming": (self.layout == SPLIT, self.naming),
            "gate_up_order": (self.gate_up_order is not None, self.gate_up_order),
            "E": (self.E is not None, self.E),
            "H": (self.H is not None, self.H),
            "I": (inner is not None, inner),
            "dtype": (True, self.dtype),
            "packed": (self.packed, PACKED),
            "bias": (any(self.biases.values()), True),
        }
        scaled = self.scale_suffix is not None
        fields |= {
            "scales": (scaled, self.scale_suffix),
            "block": (scaled, None if self.block is None else list(self.block)),
            "gate_up_scale_fusable": (scaled and self.gated, self.fusable),
            "problems": (True, sorted({p["code"] for p in self.problems})),
        }
        return {key: value for key, (there, value) in fields.items() if there}


def most_common(rows: Iterable[Rows], key: itemgetter[Any], where: Any = None) -> Any:
    """The most frequent value of a key over tensors; of equals that of the first name; or None.

    Args:
        where: of the values that it accepts.
    """
    rows = list(rows)
    counts = _counts(rows, key)
    values = [v for v in counts if where is None or where(v)]
    top = max((counts[v] for v in values), default=0)
    tied = {v for v in values if counts[v] == top}
    if len(tied) > 1:
        return key(min((t for part in rows for t in part.values() if key(t) in tied), key=NAME))
    return next(iter(tied), None)


def _counts(rows: Iterable[Rows], key: itemgetter[Any]) -> Counter[Any]:
    """How many tensors have each value of a key."""
    return Counter(map(key, chain.from_iterable(part.values() for part in rows)))


def check_dtypes(group: Group, families: Iterable[Family]) -> None:
    """Set the dtype of a group, and note when its weights have several."""
    rows = [r for f in families for r in f.weights.values()]
    group.dtype = most_common(rows, DTYPE)
    counts = _counts(rows, DTYPE)
    if len(counts) > 1:
        group.report("dtype-mismatch", dtypes=dict(counts))


def check_count(group: Group, sizes: Sizes) -> None:
    """Note when E is not what the config says."""
    if group.E is not None and sizes.experts and group.E not in sizes.experts:
        group.report("count-mismatch", config=said(sizes.experts), found=group.E)


def check_hidden(group: Group, sizes: Sizes) -> None:
    """Note when H is not what the config says."""
    if group.H is not None and sizes.hidden and group.H not in sizes.hidden:
        group.report("config-mismatch", config=said(sizes.hidden), found=group.H)


def said(values: frozenset[int]) -> int | list[int]:
    """The one value, or all that the config allows."""
    return next(iter(values)) if len(values) == 1 else sorted(values)
