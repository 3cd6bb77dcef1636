"""Bytes of a census as a picture: one bar a group, stacked by dtype. Needs matplotlib."""

from __future__ import annotations

import logging
import warnings
from typing import Any, BinaryIO

from .errors import EnvironmentProblem, printable, shorten

WIDTH, DPI = 10.0, 100
"""Inches and dots an inch: 1000 pixels, the width of a page."""
MAX_BARS = 40
"""Groups that are drawn; the smaller ones after them are drawn as one."""
ROW, MARGIN = 0.34, 1.5
"""Inches of a bar, and of what is above and below all bars."""


def require() -> None:
    """Fail before the work where the library is not installed.

    Raises:
        EnvironmentProblem: names the command that installs it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as e:
        raise EnvironmentProblem(
            "--plot: matplotlib is not installed", hint="pip install 'ntool[plot]'"
        ) from e


Row = tuple[str, dict[str, int], int]
"""Key, {dtype: bytes}, tensors."""


def rows_of(groups: list[dict[str, Any]], as_given: bool = False) -> list[Row]:
    """The bars, the largest first; the smallest that do not fit are summed in one more.

    Args:
        groups: fields of `group` records of one key.
        as_given: the bars keep the order of the groups.
    """
    ordered = sorted(groups, key=lambda g: -g["nbytes"])

    def rows(chosen: list[dict[str, Any]]) -> list[Row]:
        if as_given:
            drawn = {id(g) for g in chosen}
            chosen = [g for g in groups if id(g) in drawn]
        return [
            (g["key"], {d: c["nbytes"] for d, c in g["dtypes"].items()}, g["tensors"])
            for g in chosen
        ]

    if len(ordered) <= MAX_BARS:
        return rows(ordered)
    kept, rest = rows(ordered[: MAX_BARS - 1]), rows(ordered[MAX_BARS - 1 :])
    dtypes: dict[str, int] = {}
    for _, parts, _ in rest:
        for dtype, nbytes in parts.items():
            dtypes[dtype] = dtypes.get(dtype, 0) + nbytes
    return [*kept, (f"{len(rest)} smaller groups", dtypes, sum(n for _, _, n in rest))]


def draw(groups: list[dict[str, Any]], by: str, title: str, out: BinaryIO) -> None:
    """Write the picture of one `--by` as a PNG, 1000 pixels wide. Layers keep their order.

    Args:
        groups: fields of `group` records.
        by: what they are grouped by.
        title: the name of the checkpoint.
    """
    # it tells of building its font cache, once, as a warning
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = rows_of(groups, by == "layer")
    dtypes = sorted({d for _, parts, _ in rows for d in parts})
    total = sum(sum(parts.values()) for _, parts, _ in rows)
    unit, name = _unit(max((sum(parts.values()) for _, parts, _ in rows), default=0))
    size = (WIDTH, MARGIN + ROW * max(len(rows), len(dtypes) / 2, 2))
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    starts = [0.0] * len(rows)
    for i, dtype in enumerate(dtypes):
        widths = [parts.get(dtype, 0) / unit for _, parts, _ in rows]
        axes.barh(range(len(rows)), widths, left=starts, label=_label(dtype), color=_COLORS[i % 10])
        starts = [a + b for a, b in zip(starts, widths, strict=True)]
    for y, (_, parts, tensors) in enumerate(rows):
        text = f" {_size(sum(parts.values()))} · {_tensors(tensors)}"
        axes.text(starts[y], y, text, va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [_label(key) for key, _, _ in rows], fontsize=9)
    axes.invert_yaxis()
    axes.margins(y=0.02)
    axes.set_xlim(0, max(starts, default=0) * 1.3 or 1)
    axes.set_xlabel(name)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    count = sum(n for _, _, n in rows)
    axes.set_title(f"{_label(title, 60)} by {by}: {_tensors(count)}, {_size(total)}", fontsize=11)
    if dtypes:
        axes.legend(loc="lower right", fontsize=9, frameon=False)
    with warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes; the records have it whole
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(out, format="png", metadata={"Software": None})


_COLORS = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee"),
    *("#aa3377", "#bbbbbb", "#332288", "#ddcc77", "#117733"),
)
"""Told apart by people who do not see all colours."""


def _label(text: str, length: int = 38) -> str:
    """A name as it is: a dollar sign begins no formula, a control character draws nothing odd."""
    length = length if text.isascii() else length // 2  # characters of other scripts may be wide
    return shorten(printable(text), length).replace("$", r"\$") or "(none)"


def _unit(nbytes: int) -> tuple[float, str]:
    for power, name in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return 10.0**power, name
    return 1.0, "bytes"


def _size(nbytes: int) -> str:
    unit, name = _unit(nbytes)
    return f"{nbytes:,} bytes" if unit == 1 else f"{nbytes / unit:.3g} {name}"


def _tensors(count: int) -> str:
    return f"{count:,} tensor{'' if count == 1 else 's'}"
