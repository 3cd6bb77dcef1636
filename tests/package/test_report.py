"""The HTML page of a check: self-contained, well formed, escaped, the same for the same input."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ntool.lib.package.report_facts import Facts, Precision, Shown, Size
from ntool.lib.package.report_page import page

from ..conftest import Ended

Run = Callable[..., Ended]
VOID = {"meta", "img", "br"}
HOSTILE = (
    "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[31m\x00\u202e\ud800&lt;"
)


class Parsed(HTMLParser):
    """Tags in order, and a stack that must be empty at the end."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({k for k, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect", tag  # only foreign elements may close themselves
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] != "style":
            self.words.append(data)


def parsed(text: str) -> Parsed:
    """The page, which must be well formed and ask nobody for anything."""
    found = Parsed(text)
    for tag, attributes in found.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form", "a"}
        assert not any(name.startswith("on") for name in attributes)
        for name, value in attributes.items():
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                assert tag == "img" and re.fullmatch(
                    r"data:image/png;base64,[A-Za-z0-9+/=]+", value or ""
                )
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert "url(" not in style and "@import" not in style and "</" not in style
    assert "prefers-color-scheme" in style and "@media print" in style and "max-width" in style
    outside = re.sub(r"data:image/png;base64,\S+", "", text)
    assert re.findall(r"\w+://", outside.replace("hf://", "")) == []
    return found


def record(id: str, ok: bool | None, component: str | None = None, **more: Any) -> dict[str, Any]:
    fields = {"expected": None, "actual": None, "message": f"about {id}", **more}
    return {"id": id, "ok": ok, "component": component, **fields}


def summary(*checks: dict[str, Any]) -> dict[str, Any]:
    states = [c["ok"] for c in checks]
    return {
        "ok": False not in states and True in states,
        "passed": states.count(True), "failed": states.count(False),
        "not_applicable": states.count(None),
        "warnings": sum("severity" in c for c in checks),
    }  # fmt: skip


def facts(name: str = "decoder", words: str = "x") -> Facts:
    return Facts(
        words,
        {"family": words, words: words},
        [Size(name, {"F16": (2, 3_000_000), words: (1, 10)}, {"opset": words}), Size("b", None)],
        [Precision(name, "BF16", words, 3, 12, 65504.0, 7, 9)],
        {words: 4},
        {"ntool": words},
        [Shown(words, "AAAA", (3, 4), {"prompt": words, "seed": words})],
    )


def test_everything_from_strangers_is_escaped() -> None:
    checks = [
        record("graph.parse", False, HOSTILE, message=HOSTILE, expected=HOSTILE,
               actual={HOSTILE: [HOSTILE]}, reason=HOSTILE),
        record("data.path", True, HOSTILE, message=HOSTILE, severity="warning"),
        record("golden.values", True, HOSTILE, message=HOSTILE,
               actual={"max_abs": HOSTILE, "rel_l2": 0.5}),
    ]  # fmt: skip
    text = page(facts(HOSTILE, HOSTILE), checks, summary(*checks))
    found = parsed(text)
    assert "<script" not in text and "onerror=alert(2)>" not in text
    assert not {"\x1b", "\x00", "\u202e", "\ud800"} & set(text)
    assert sum(tag == "img" for tag, _ in found.tags) == 1
    words = " ".join(found.words)
    assert "<script>alert(1)</script>" in words and "\\x1b[31m" in words  # told, not run


def test_long_texts_are_cut() -> None:
    checks = [record("graph.parse", False, "c", message="m" * 10**6, expected=["e" * 10**6])]
    assert len(page(facts(), checks, summary(*checks))) < 60_000


def test_what_a_page_says() -> None:
    checks = [
        record("layout.files", True),
        record("graph.parse", True, "decoder"),
        record("graph.dead", False, "decoder", message="two of them", expected=0, actual=[1, 2]),
        record("data.path", True, "decoder", severity="warning", message="hard link"),
        record("data.hash", None, message="no SHA256SUMS"),
        record("golden.values", True, "decoder", message="logits: fine",
               actual={"max_abs": 0.25, "rel_l2": 1e-7, "pearson": None, "at": [0]}),
    ]  # fmt: skip
    text = page(facts(words="F32"), checks, summary(*checks))
    words = " ".join(" ".join(parsed(text).words).split())
    for said in (
        "Failed 1 finding in graph.dead", "4 passed 1 failed 1 not applicable 1 warnings",
        "two of them expected 0 found [1,2]", "hard link", "max abs rel L2", "0.25 1e-07",
        "3 MB of weights in 2 components", "graph not read", "65504", "left out", "no SHA256SUMS",
    ):  # fmt: skip
        assert said in words, said
    order = [
        words.index(s)
        for s in (
            "What to look at",
            "Checks by component",
            "Sizes",
            "Precision",
            "Golden values",
            "Pictures",
            "All checks",
        )
    ]
    assert order == sorted(order)
    good = page(facts(), [checks[0]], summary(checks[0]))
    assert "Passed" in good and "What to look at" not in good and "Golden values" not in good
    assert "Nothing was checked" in page(facts(), [checks[4]], summary(checks[4]))


def test_bars_are_in_proportion() -> None:
    sizes = [Size("a", {"F32": (1, 400), "F16": (1, 100)}), Size("b", {"F16": (1, 250)})]
    about = Facts("t", {}, sizes, [], {}, {}, [])
    found = parsed(page(about, [record("layout.files", True)], summary()))
    rects = [a for tag, a in found.tags if tag == "rect" and "x" in a]
    by_component = [(float(a["x"] or 0), float(a["width"] or 0)) for a in rects[:3]]
    assert by_component == [(0, 800), (800, 200), (0, 500)]
    assert rects[0]["fill"] != rects[1]["fill"] == rects[2]["fill"]
    assert [float(a["width"] or 0) for a in rects[3:]] == [1000, 875]  # 400 and 350 bytes


# -- as an option of the command ------------------------------------------------------------------


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    info = PngInfo()
    info.add_text("ntool", json.dumps({"prompt": "a <b>red</b> circle", "seed": 7}))
    info.add_text("secret", "do not copy")
    file = tmp_path / "s.png"
    values = np.arange(64 * 2048 * 3, dtype=np.uint32).astype(np.uint8)
    Image.fromarray(values.reshape(64, 2048, 3)).save(file, pnginfo=info)
    return file


def test_of_the_demonstration(ntool: Run, demo_package: Path, tmp_path: Path, sample: Path) -> None:
    out = tmp_path / "report.html"
    options = ("--device", "cpu", "--report", out, "--picture", sample)
    done = ntool("verify-package", demo_package, *options)
    (file,) = done.of("file")
    assert file == {
        "kind": "file", "path": str(out), "nbytes": out.stat().st_size, "role": "report"
    }  # fmt: skip
    first = out.read_bytes()
    ntool("verify-package", demo_package, *options)
    assert out.read_bytes() == first, "the same input gives the same bytes"
    text = first.decode()
    found = parsed(text)
    words = " ".join(" ".join(found.words).split())
    assert "a <b>red</b> circle, seed 7" in words and "2048 x 64" in words
    assert b"do not copy" not in first
    digest = re.search(r"SHA-256 of package.json ([0-9a-f]{64})", words)
    assert digest is not None and "BF16 F32 67 6,060,160" in words
    (src,) = [a["src"] or "" for tag, a in found.tags if tag == "img"]
    import base64

    shown = Image.open(io.BytesIO(base64.b64decode(src.partition(",")[2])))
    assert shown.size == (1024, 32) and not getattr(shown, "text", {})
    marks = [a for tag, a in found.tags if tag == "span" and "mark" in (a.get("class") or "")]
    assert len(marks) > len(done.of("check"))


def test_it_is_written_when_checks_fail(ntool: Run, demo_package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "<b>pkg"
    shutil.copytree(demo_package, broken)
    (broken / "<script>alert(1)<\\script>.txt").write_text("x")
    (broken / "decoder/model.onnx").write_bytes(b"\x00" * 50)
    (broken / "weight-loading-report.json").write_text('{"tensors": [1, {"targets": [2]}]}')
    out = tmp_path / "report.html"
    ntool("verify-package", broken, "--no-run", "--report", out, code=1)
    words = " ".join(" ".join(parsed(out.read_text()).words).split())
    assert "Failed" in words and "graph not read" in words and "<script>alert(1)" in words
    (broken / "package.json").write_text('{"schema": [], "components": {"a": {"graph": "x"}}}')
    ntool("verify-package", broken, "--no-run", "--report", out, code=1)
    assert "Failed" in parsed(out.read_text()).words


def test_a_lone_graph(ntool: Run, demo_package: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    ntool("verify-package", demo_package / "embedding/model.onnx", "--no-run", "--report", out)
    assert "Sizes" in parsed(out.read_text()).words


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("-", 2, "standard output has the records"),
        ("PKG/report.html", 2, "lies in the input"),
        ("PKG/package.json", 2, "lies in the input"),
        ("golden.png", 2, "are one file"),
        ("link.html", 2, "lies in the input"),
        ("sums", 2, "are one file"),
        ("nowhere/r.html", 4, "no folder"),
        ("sums/r.html", 4, "no folder"),
        ("dangling.html", 4, "a link to"),
        ("x" * 300, 6, "cannot write: File name too long"),
        ("folder", 2, "is a folder"),
        ("folder/", 2, "is a folder's name"),
        ("", 2, "expected a file name"),
    ],
)
def test_outputs_that_are_refused(
    output: str, code: int, words: str, ntool: Run, demo_package: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    os.symlink(demo_package / "package.json", "link.html")
    os.symlink("nowhere/r.html", "dangling.html")
    os.mkdir("folder")
    Image.new("RGB", (8, 8)).save("golden.png")
    Path("sums").write_text("x")
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    given = output.replace("PKG", str(demo_package))
    options = ("--picture", "golden.png", "--manifest", "sums")
    done = ntool("verify-package", demo_package, "--no-run", "--report", given, *options, code=code)
    assert words in done.err and done.of("check") == []
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_pictures_are_judged_first(ntool: Run, demo_package: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nx")
    for picture, code in (("nope.png", 4), ("bad.png", 3)):
        options = ("--report", out, "--picture", tmp_path / picture)
        ntool("verify-package", demo_package, *options, code=code)
        assert not out.exists()
    ntool("verify-package", demo_package, "--picture", tmp_path / "bad.png", code=2)


# -- in a browser ---------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def test_rendered(ntool: Run, demo_package: Path, tmp_path: Path) -> None:
    """A headless browser draws the page as on a phone: the verdict's colour is there, and nothing
    is wider than the screen."""
    browser = next((b for b in map(shutil.which, BROWSERS) if b), None)
    if browser is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    width = 390
    out = tmp_path / "r.html"
    ntool("verify-package", demo_package, "--no-run", "--report", out)
    # a window is at least 500 pixels wide, a frame in it is not
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<body style="margin:0"><iframe src="r.html" '
        f'style="border:0;width:{width}px;height:2000px"></iframe></body>'
    )
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 200},2000",
         f"--screenshot={shot}", frame.as_uri()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and shot.exists(), done.stderr[-1000:]
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    inside, beside = pixels[:, :width], pixels[:, width + 5 :]
    green = (np.abs(inside - [0x1A, 0x7F, 0x45]).max(axis=2) < 12).sum()
    assert green > 500, "the verdict"
    assert (np.abs(inside - [0x44, 0x77, 0xAA]).max(axis=2) < 4).sum() > 1000, "the bars"
    assert (beside > 250).all(), "outside of the frame"
    # the cards' right border is inside: the margin left of it mirrors that on the other side
    margin = inside[200:1900, -10:]
    assert (margin.min(axis=(1, 2)) > 230).all(), "something is wider than the page"
