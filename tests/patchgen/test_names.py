"""Which names a module uses of its own scope: compared with what Python does."""

from __future__ import annotations

import ast
import sys

import pytest

from ntool.lib.patchgen.names import GIVEN, names_of

CASES = [
    ("x = y", {"y"}),
    ("def f(a=b, *c: d, e: 'g[h]' = 1, **i) -> j: return a, c, e, i, k", set("bdghjk")),
    ("class A(b, metaclass=c):\n    d = 1\n    e = d\n    def f(self): return d, __class__",
     {"b", "c", "d"}),
    ("class A:\n    x = x\n    for i in y:\n        j = i", {"x", "y"}),
    ("class A:\n    y = 1\n    z = [y for _ in range(3)]", {"y"}),
    ("class A:\n    y = [1]\n    z = [q for q in y]", set()),
    ("def f():\n    global g\n    g = 1\n    return g, h", {"g", "h"}),
    ("def f():\n    a = 1\n    def k():\n        nonlocal a\n        a += 1", set()),
    ("def f():\n    return [a for a in b if (c := a)], c", {"b"}),
    ("lambda a, b=c: (a, b, d)", {"c", "d"}),
    ("{k: v for k, v in items for w in v if w}", {"items"}),
    ("try:\n    pass\nexcept (A, B) as e:\n    e", {"A", "B", "e"}),
    ("with a as (b, *c): b", {"a", "b"}),
    ("match a:\n    case B(c=d) if f: d\n    case [g, *h] | {'i': 1, **j} as k: l",
     {"a", "B", "d", "f", "l"}),
    ("import a.b as c, d.e\nfrom f import g as h, i\nc, d, h, i", set("cdhi")),
    ("x: 'A'\ny: 'Literal[\"B\"]'\nz: Literal['C']\nw: Annotated['D', 'E']\nv: 'F | None'",
     {"A", "Literal", "Annotated", "D", "F"}),
    ("@dec(a)\nclass C: pass", {"dec", "a"}),
    ("x += 1", {"x"}),
    ("async def f(a):\n    async for b in c:\n        async with d as e: await e(b)", set("cd")),
    ("del x", set()),
    ("f'{a!r:>{b}} {c}'", set("abc")),
    ("x: 'not valid ['", set()),
    ("for x in y:\n    pass\nelse:\n    z", {"y", "z"}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), CASES, ids=range(len(CASES)))
def test_uses(source: str, expected: set[str]) -> None:
    assert set(names_of(ast.parse(source)).uses) - GIVEN == expected


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of 3.12")
def test_type_parameters() -> None:
    source = "class A[T: B](C[T]):\n    def f[U](self, x: U) -> T: pass\ntype L[V] = list[V] | W\n"
    names = names_of(ast.parse(source))
    assert set(names.uses) - GIVEN == {"B", "C", "W"}
    assert names.bound == {"A", "L"}


def test_places() -> None:
    source = """\
class A(X):
    y: X
    def f(self, a: X = X): return lambda: X
    class B:
        @X
        def g(self): return [X for _ in "a"]
X()
"""
    names = names_of(ast.parse(source))
    assert names.where("X") == ["A", "A.f", "A.B.g", "module level"]


def test_bound() -> None:
    source = """\
import a.b, c as d
from e import f as g, h
def i(): global j; j = 1
class k: l = 1
for m in (): pass
with x as (n, o): pass
try: pass
except E as p: pass
[q for q in ()]
(r := 1)
s: int
del t
match x:
    case {"u": u, **v}: pass
    case [*w]: pass
"""
    assert names_of(ast.parse(source)).bound == set("adghijkmnoprstuvw")


def test_agrees_with_the_compiler_on_modules_of_the_standard_library() -> None:
    """Every name that compiled code looks up in the module is a use here, and no other is."""
    import argparse
    import dataclasses
    import difflib
    import dis
    import tempfile
    import textwrap
    from types import CodeType

    def globals_of(code: CodeType) -> set[str]:
        found = {
            str(i.argval)
            for i in dis.get_instructions(code)
            if i.opname == "LOAD_GLOBAL" or (i.opname == "LOAD_NAME" and code.co_name == "<module>")
        }
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                found |= globals_of(constant)
        return found

    for module in (argparse, dataclasses, difflib, tempfile, textwrap):
        with open(str(module.__file__), encoding="utf-8") as f:
            text = f.read()
        names = names_of(ast.parse(text))
        compiled = globals_of(compile(text, "x", "exec", dont_inherit=True))
        assert compiled <= set(names.uses) | {"__annotations__"}
        assert set(names.uses) - names.bound - GIVEN == set()
