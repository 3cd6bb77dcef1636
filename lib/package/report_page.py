"""The page of a check: one HTML file that needs nothing else, for a browser, a phone or paper.

No script, no address of anything outside. Every text is escaped where it is put in: names, messages
and prompts come from the package.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import printable, shorten
from ..records import Record, dumps
from .report_facts import Facts, Shown, Size

MAX_TEXT = 4000
"""Characters of one text; a message or a value may be of any length."""
PACKAGE = "package"
GOLDEN = "golden.values"

COLOURS = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee"),
    *("#aa3377", "#bbbbbb", "#885522", "#7788dd", "#117733"),
)
"""Of dtypes, in order of their bytes; told apart by people who do not see all colours."""

STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1d2330;--dim:#5b6475;
--line:#dde1e8;--good:#1a7f45;--goodback:#e6f5ec;--bad:#b3261e;--badback:#fdecea;--warn:#8a5a00;
--warnback:#fff5dc}
@media (prefers-color-scheme:dark){:root{--back:#12151b;--card:#1b2029;--text:#e6e9ef;--dim:#9aa4b5;
--line:#313846;--good:#6fd39b;--goodback:#16301f;--bad:#ff9a92;--badback:#3a1b19;--warn:#f0c266;
--warnback:#352a12}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:0 0 10px}
h3{font-size:1rem;margin:18px 0 6px;overflow-wrap:anywhere}
p{margin:6px 0}
.dim{color:var(--dim)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;
margin:14px 0}
.verdict{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:baseline;border-left:8px solid}
.verdict b{font-size:1.5rem}
.verdict.good{border-left-color:var(--good)}.verdict.good b{color:var(--good)}
.verdict.bad{border-left-color:var(--bad)}.verdict.bad b{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:10px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile b{display:block;font-size:1.5rem;line-height:1.2}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:5px 10px 5px 0;border-top:1px solid var(--line);
overflow-wrap:anywhere}
thead th{border-top:0;color:var(--dim);font-weight:600;font-size:.85rem;overflow-wrap:normal}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.matrix{width:auto}
.matrix td,.matrix thead th{padding:3px 8px;text-align:center;overflow-wrap:normal}
.matrix thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;
max-height:13em;vertical-align:bottom}
thead td{border-top:0}
.checks td:nth-child(-n+2){white-space:nowrap;width:1%}
.matrix tbody th{font-weight:400;white-space:nowrap;padding:3px 14px 3px 0}
.mark{display:inline-block;min-width:1.6em;border-radius:6px;text-align:center;font-weight:700}
.mark.good{color:var(--good);background:var(--goodback)}
.mark.bad{color:var(--bad);background:var(--badback)}
.mark.warn{color:var(--warn);background:var(--warnback)}
.mark.none{color:var(--dim);font-weight:400}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.86rem}
pre{margin:2px 0 6px;white-space:pre-wrap;overflow-wrap:anywhere;background:var(--back);
border-radius:6px;padding:6px 8px}
.fault{border-left:4px solid var(--bad);padding-left:12px;margin:14px 0}
.fault p{overflow-wrap:anywhere}
.bar{display:grid;grid-template:"name svg size"/12em 1fr 12em;gap:2px 12px;align-items:center;
padding:4px 0;overflow-wrap:anywhere}
.bar .name{grid-area:name}.bar .size{grid-area:size}
.bar svg{grid-area:svg;display:block;width:100%;height:18px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:12px 0 0}
.legend svg{width:12px;height:12px;margin-right:6px}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(220px,1fr));gap:14px}
figure{margin:0}
figure img{display:block;max-width:100%;height:auto;border-radius:8px;border:1px solid var(--line)}
figcaption{font-size:.88rem;overflow-wrap:anywhere;margin-top:4px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 16px;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
@media (max-width:640px){
main{padding:12px}.card{padding:12px}
.tiles{grid-template-columns:repeat(2,1fr)}
.bar{grid-template:"name size" "svg svg"/1fr max-content}
.matrix td,.matrix thead th{padding:3px 2px}.matrix tbody th{padding-right:6px}
.stack thead{display:none}
.stack tr{display:block;border-top:1px solid var(--line);padding:6px 0}
.stack td{display:block;border:0;padding:1px 0;text-align:left;white-space:normal}
.stack td[data-name],.checks td:nth-child(-n+2){display:inline-block;margin-right:14px}
.stack td[data-name]::before{content:attr(data-name) " ";color:var(--dim)}
.stack td:empty{display:none}
dl{grid-template-columns:1fr}dd{margin:0 0 6px}
}
@media print{
:root{--back:#fff;--card:#fff;--text:#000;--dim:#444;--line:#bbb;--good:#0d5c2e;--goodback:#fff;
--bad:#8c1008;--badback:#fff;--warn:#5f3e00;--warnback:#fff}
body{font-size:10pt}main{max-width:none;padding:0}
.card,.tile{border-radius:0}
.fault,.tile,figure,tr,.bar{break-inside:avoid}h2,h3{break-after:avoid}
.scroll{overflow:visible}pre{border:1px solid var(--line)}
svg,img,.verdict,.mark{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""


def page(facts: Facts, checks: Sequence[Record], summary: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        checks: fields of the `check` records, in order.
        summary: fields of the `summary` record. The same facts, checks and summary give the same
            page: no time, no host is on it.
    """
    parts = [
        _verdict(facts, checks, summary),
        _tiles(summary),
        _faults(checks),
        _overview(checks, [s.name for s in facts.sizes]),
        _sizes(facts.sizes),
        _precision(facts),
        _golden(checks),
        _pictures(facts.pictures),
        _details(checks, [s.name for s in facts.sizes]),
        _card("Package", _pairs(facts.about)) if facts.about else "",
        _card("Checked with", _pairs(facts.run)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{text('verify-package: ' + facts.title)}</title>\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(p for p in parts if p)
        + "\n</main>\n</body>\n</html>\n"
    )


def text(value: object) -> str:
    """Any value as text of a page: control characters spelled out, cut, escaped."""
    return html.escape(printable(shorten(str(value), MAX_TEXT)), quote=True)


def _value(value: Any) -> str:
    """An expected or found value: text as it is, anything else as JSON, an object field by
    field."""
    if isinstance(value, dict) and value:
        return ", ".join(f"{text(k)}: {_value(v)}" for k, v in value.items())
    return text(value if isinstance(value, str) else dumps({"v": value})[5:-1])


def _card(title: str, body: str) -> str:
    return f'<section class="card">\n<h2>{text(title)}</h2>\n{body}\n</section>'


def _pairs(words: Mapping[str, str]) -> str:
    rows = (f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in words.items())
    return f"<dl>{''.join(rows)}</dl>"


# -- verdict --------------------------------------------------------------------------------------


def _verdict(facts: Facts, checks: Sequence[Record], summary: Mapping[str, Any]) -> str:
    failed = summary["failed"]
    if summary["ok"]:
        kind, word, said = "good", "Passed", "every check that applies holds"
    elif failed:
        ids = dict.fromkeys(c["id"] for c in checks if c["ok"] is False)
        kind, word = "bad", "Failed"
        said = f"{_many(failed, 'finding')} in {', '.join(ids)}"
    else:
        kind, word, said = "bad", "Nothing was checked", "no check applies"
    return (
        f'<header>\n<p class="dim">ntool verify-package</p>\n<h1>{text(facts.title)}</h1>\n'
        f'</header>\n<section class="card verdict {kind}"><b>{word}</b> <span>{text(said)}</span>'
        "</section>"
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    words = (
        ("passed", "passed"), ("failed", "failed"), ("not_applicable", "not applicable"),
        ("warnings", "warnings"),
    )  # fmt: skip
    tiles = (
        f'<div class="tile"><b>{text(summary[key])}</b><span class="dim">{word}</span></div>'
        for key, word in words
    )
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _faults(checks: Sequence[Record]) -> str:
    out = []
    for c in checks:
        warning = c.get("severity") == "warning"
        if c["ok"] is not False and not warning:
            continue
        where = f" in <code>{text(c['component'])}</code>" if c["component"] else ""
        kind = "warning" if warning else "failed"
        rows = [f"<p>{_mark(c)} <code>{text(c['id'])}</code>{where} ({kind})</p>"]
        rows.append(f"<p>{text(c['message'])}</p>")
        for key, word in (("expected", "expected"), ("actual", "found")):
            if c[key] is not None:
                rows.append(f'<p class="dim">{word}</p><pre>{_value(c[key])}</pre>')
        out.append(f'<div class="fault">{"".join(rows)}</div>')
    return _card("What to look at", "\n".join(out)) if out else ""


# -- checks ---------------------------------------------------------------------------------------

MARKS = {"good": ("&#10003;", "holds"), "bad": ("&#10007;", "failed"), "warn": ("!", "warning"),
         "none": ("&#8211;", "does not apply")}  # fmt: skip


def _kind(c: Record) -> str:
    if c.get("severity") == "warning":
        return "warn"
    return {True: "good", False: "bad", None: "none"}[c["ok"]]


def _mark(c: Record) -> str:
    return _sign(_kind(c))


def _sign(kind: str) -> str:
    sign, word = MARKS[kind]
    return f'<span class="mark {kind}" role="img" aria-label="{word}" title="{word}">{sign}</span>'


def _overview(checks: Sequence[Record], components: Sequence[str]) -> str:
    """Checks by components: the worst of each pair."""
    worst: dict[tuple[str, str], str] = {}
    order = ("none", "good", "warn", "bad")
    for c in checks:
        key = (c["id"], c["component"] or PACKAGE)
        worst[key] = max(worst.get(key, "none"), _kind(c), key=order.index)
    columns = _columns(checks, components)
    head = "".join(f'<th scope="col">{text(c)}</th>' for c in columns)
    rows = []
    for i in dict.fromkeys(c["id"] for c in checks):
        cells = (f"<td>{_sign(worst[i, c]) if (i, c) in worst else ''}</td>" for c in columns)
        rows.append(f'<tr><th scope="row"><code>{text(i)}</code></th>{"".join(cells)}</tr>')
    table = (
        f'<div class="scroll"><table class="matrix"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return _card("Checks by component", table)


def _columns(checks: Sequence[Record], components: Sequence[str]) -> list[str]:
    named = [c["component"] or PACKAGE for c in checks]
    return list(dict.fromkeys(c for c in (PACKAGE, *components, *named) if c in named))


def _details(checks: Sequence[Record], components: Sequence[str]) -> str:
    out = []
    for column in _columns(checks, components):
        out.append(f"<h3>{text(column)}</h3>")
        rows = []
        for c in checks:
            if (c["component"] or PACKAGE) != column:
                continue
            more = "".join(
                f' <span class="dim">{word} {_value(c[key])}</span>'
                for key, word in (("expected", "expected"), ("actual", "found"))
                if c[key] is not None
            )
            rows.append(
                f"<tr><td>{_mark(c)}</td><td><code>{text(c['id'])}</code></td>"
                f"<td>{text(c['message'])}{more}</td></tr>"
            )
        out.append(f'<table class="stack checks"><tbody>{"".join(rows)}</tbody></table>')
    return _card("All checks", "\n".join(out))


# -- sizes and precision --------------------------------------------------------------------------


def _sizes(sizes: Sequence[Size]) -> str:
    if not sizes:
        return ""
    totals: dict[str, tuple[int, int]] = {}
    for s in sizes:
        for kind, (tensors, nbytes) in (s.dtypes or {}).items():
            count, total = totals.get(kind, (0, 0))
            totals[kind] = (count + tensors, total + nbytes)
    ranked = sorted(totals, key=lambda k: (-totals[k][1], k))
    colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(ranked)}
    largest = max((s.nbytes for s in sizes), default=0)
    rows = []
    for s in sizes:
        segments = [(k, s.dtypes[k][1]) for k in ranked if k in s.dtypes] if s.dtypes else []
        said = _bytes(s.nbytes) if s.dtypes is not None else "graph not read"
        rows.append((s.name, segments, said))
    every = sum(n for _, n in totals.values())
    kinds = [
        (k, [(k, totals[k][1])], f"{_bytes(totals[k][1])}, {_many(totals[k][0], 'tensor')}")
        for k in ranked
    ]
    most = max((n for _, n in totals.values()), default=0)
    head = (
        '<thead><tr><th scope="col">component</th><th scope="col">weights</th>'
        '<th scope="col">computes in</th><th scope="col" class="number">opset</th>'
        '<th scope="col">provider</th><th scope="col" class="number">tensors</th>'
        '<th scope="col" class="number">bytes</th></tr></thead>'
    )
    lines = "".join(
        f"<tr><td>{text(s.name)}</td>{_cell(s.about.get('weight dtype'), 'weights')}"
        f"{_cell(s.about.get('compute dtype'), 'computes in')}"
        f"{_cell(s.about.get('opset'), 'opset', True)}"
        f"{_cell(s.about.get('execution provider'), 'provider')}"
        f"{_cell(_tensors(s), 'tensors', True)}{_cell(f'{s.nbytes:,}', 'bytes', True)}</tr>"
        for s in sizes
    )
    return _card(
        "Sizes",
        f"<p>{_bytes(every)} of weights in {_many(len(sizes), 'component')}</p>"
        f"<h3>by component</h3>{_bars(rows, colours, largest)}{_legend(colours)}"
        f"<h3>by type</h3>{_bars(kinds, colours, most)}"
        f'<h3>components</h3><table class="stack">{head}<tbody>{lines}</tbody></table>',
    )


def _tensors(s: Size) -> str:
    return f"{sum(n for n, _ in s.dtypes.values()):,}" if s.dtypes is not None else ""


def _cell(value: object, name: str, number: bool = False) -> str:
    kind = ' class="number"' if number else ""
    if value in (None, ""):
        return f"<td{kind}></td>"
    return f'<td{kind} data-name="{text(name)}">{text(value)}</td>'


def _bars(
    rows: Iterable[tuple[str, list[tuple[str, int]], str]], colours: Mapping[str, str], largest: int
) -> str:
    out = []
    for name, segments, said in rows:
        at, rects = 0.0, []
        for kind, nbytes in segments:
            width = 1000 * nbytes / largest if largest else 0
            rects.append(
                f'<rect x="{at:.2f}" y="0" width="{width:.2f}" height="18" '
                f'fill="{colours[kind]}"><title>{text(kind)}: {_bytes(nbytes)}</title></rect>'
            )
            at += width
        out.append(
            f'<div class="bar"><span class="name">{text(name)}</span>'
            f'<svg viewBox="0 0 1000 18" preserveAspectRatio="none" role="img" '
            f'aria-label="{text(name)}: {text(said)}">{"".join(rects)}</svg>'
            f'<span class="size">{text(said)}</span></div>'
        )
    return f"<div>{''.join(out)}</div>"


def _legend(colours: Mapping[str, str]) -> str:
    items = (
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" '
        f'fill="{colour}"/></svg>{text(kind)}</span>'
        for kind, colour in colours.items()
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _precision(facts: Facts) -> str:
    if not facts.precision and not facts.left:
        return ""
    head = "".join(
        f'<th scope="col"{kind}>{name}</th>'
        for name, kind in (
            ("component", ""), ("stored as", ""), ("written as", ""),
            ("tensors", ' class="number"'), ("bytes", ' class="number"'),
            ("largest", ' class="number"'), ("to zero", ' class="number"'),
            ("subnormal", ' class="number"'),
        )
    )  # fmt: skip
    rows = []
    for p in facts.precision:
        narrowed = p.largest is not None
        same = p.stored == p.written
        rows.append(
            f"<tr><td>{text(p.component)}</td>{_cell(p.stored, 'stored as')}"
            f"{_cell('unchanged' if same else p.written, 'written as')}"
            f"{_cell(f'{p.tensors:,}', 'tensors', True)}{_cell(f'{p.nbytes:,}', 'bytes', True)}"
            f"{_cell(f'{p.largest:.6g}' if narrowed else '', 'largest', True)}"
            f"{_cell(f'{p.flushed:,}' if narrowed else '', 'to zero', True)}"
            f"{_cell(f'{p.subnormal:,}' if narrowed else '', 'subnormal', True)}</tr>"
        )
    table = (
        f'<table class="stack"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    left = ""
    if facts.left:
        items = "".join(
            f"<tr>{_cell(f'{n:,}', 'tensors', True)}<td>{text(reason)}</td></tr>"
            for reason, n in facts.left.items()
        )
        left = f'<h3>left out</h3><table class="stack"><tbody>{items}</tbody></table>'
    note = '<p class="dim">From weight-loading-report.json: what the export did.</p>'
    return _card("Precision", f"{note}{table if facts.precision else ''}{left}")


# -- goldens and pictures -------------------------------------------------------------------------

_NUMBERS = (
    ("max_abs", "max abs"), ("rel_l2", "rel L2"), ("pearson", "Pearson"),
    ("worst", "worst / tolerance"), ("psnr", "PSNR dB"), ("outside", "outside"),
)  # fmt: skip


def _golden(checks: Sequence[Record]) -> str:
    rows = [c for c in checks if c["id"] == GOLDEN and isinstance(c["actual"], dict)]
    if not rows:
        return ""
    used = [(k, n) for k, n in _NUMBERS if any(c["actual"].get(k) is not None for c in rows)]
    head = "".join(f'<th scope="col" class="number">{text(n)}</th>' for _, n in used)
    lines = []
    for c in rows:
        cells = "".join(_cell(_number(c["actual"].get(k)), n, True) for k, n in used)
        where = f"<code>{text(c['component'])}</code> " if c["component"] else ""
        lines.append(f"<tr><td>{_mark(c)}</td><td>{where}{text(c['message'])}</td>{cells}</tr>")
    table = (
        f'<table class="stack"><thead><tr><td></td><th scope="col">output</th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    return _card("Golden values", table)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _pictures(pictures: Sequence[Shown]) -> str:
    figures = []
    for p in pictures:
        words = ", ".join(v if k == "prompt" else f"{k} {v}" for k, v in p.recipe.items())
        width, height = p.size
        figures.append(
            f'<figure><img alt="{text(words or p.path)}" src="data:image/png;base64,{p.png}">'
            f"<figcaption>{text(words)}{'<br>' if words else ''}"
            f'<span class="dim">{text(p.path)}, {width} x {height}</span></figcaption></figure>'
        )
    if not figures:
        return ""
    return _card("Pictures", f'<div class="pictures">{"".join(figures)}</div>')


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _bytes(nbytes: int) -> str:
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.3g} {unit}"
    return _many(nbytes, "byte")
