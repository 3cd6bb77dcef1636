from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ntool.lib import chart
from ntool.lib.errors import EnvironmentProblem

from .conftest import run_ntool


def group(key: str, tensors: int = 1, **nbytes: int) -> dict[str, Any]:
    dtypes = {d: {"tensors": 1, "params": n, "nbytes": n} for d, n in nbytes.items()}
    return {"key": key, "tensors": tensors, "nbytes": sum(nbytes.values()), "dtypes": dtypes}


def picture(groups: list[dict[str, Any]], title: str = "t") -> Image.Image:
    out = io.BytesIO()
    chart.draw(groups, "family", title, out)
    return Image.open(out)


def colours(image: Image.Image) -> dict[tuple[int, ...], int]:
    return {c: n for n, c in image.convert("RGB").getcolors(1 << 20)}


def test_bars_are_as_long_as_their_bytes() -> None:
    """The pixels of each dtype's colour, in proportion to the bytes."""
    image = picture([group("a", BF16=300, F32=600), group("b", BF16=100)])
    assert image.width == 1000
    found = colours(image)
    blue, red = (found[tuple(bytes.fromhex(c[1:]))] for c in chart._COLORS[:2])
    legend = 30 * 12  # its two patches are of the same colours
    assert abs(blue / red - 400 / 600) < 0.05 + legend / red


def test_largest_first_and_the_small_ones_together() -> None:
    groups = [group(str(i), tensors=i, BF16=i) for i in range(1, 101)]
    rows = chart.rows_of(groups)
    assert len(rows) == chart.MAX_BARS
    assert [r[0] for r in rows[:2]] == ["100", "99"]
    name, dtypes, tensors = rows[-1]
    assert name == "61 smaller groups"
    assert dtypes == {"BF16": sum(range(1, 62))} and tensors == sum(range(1, 62))


def test_layers_in_their_order() -> None:
    sizes = {f"layers.{i}": 1000 - i * (i % 7) for i in range(50)}
    groups = [group(key, BF16=n) for key, n in sizes.items()]
    rows = chart.rows_of(groups, as_given=True)
    small = sorted(sizes, key=lambda k: -sizes[k])[chart.MAX_BARS - 1 :]
    assert [r[0] for r in rows] == [k for k in sizes if k not in small] + ["11 smaller groups"]
    assert rows[-1][1] == {"BF16": sum(sizes[k] for k in small)}
    assert [r[0] for r in chart.rows_of(groups[:3], as_given=True)] == list(sizes)[:3]


@pytest.mark.parametrize(
    "groups",
    [[], [group("empty")], [group("$x^{$", BF16=1)], [group("a\nb\x1b[31m", F32=2)],
     [group("模型" * 60, **{f"GGUF:Q{i}": i for i in range(14)})]],
)  # fmt: skip
def test_odd_groups_are_drawn(groups: list[dict[str, Any]]) -> None:
    assert picture(groups, "$title_{").format == "PNG"


def test_the_same_bytes_twice() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    for out in (first, second):
        chart.draw([group("a", BF16=3)], "family", "t", out)
    assert first.getvalue() == second.getvalue()


def test_as_a_command(tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    done = run_ntool("census", "demo:shapes", "--plot", path)
    assert (done.code, done.err) == (0, "")
    [file] = done.of("file")
    assert file == {
        "kind": "file", "path": str(path), "nbytes": path.stat().st_size, "role": "plot",
    }  # fmt: skip
    with Image.open(path) as image:
        assert image.width == 1000 and image.height > 200
    again = run_ntool("census", "demo:shapes", "--plot", path)
    assert again.code == 2 and "exists" in again.err and "--force" in again.err
    assert run_ntool("census", "demo:shapes", "--plot", path, "--force").code == 0
    assert run_ntool("census", "demo:shapes", "--plot", "-").code == 2
    assert run_ntool("census", "demo:shapes", "--plot", tmp_path / "no" / "x.png").code == 4


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentProblem, match="matplotlib") as caught:
        chart.require()
    assert caught.value.hint == "pip install 'ntool[plot]'"


def test_the_library_is_not_loaded_for_a_census_without_a_picture() -> None:
    code = "import sys; from ntool.guard import run; run(['census', 'demo:shapes']); "
    code += "sys.exit('matplotlib' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    assert done.returncode == 0
