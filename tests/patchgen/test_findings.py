"""Each finding where it belongs, and not where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ntool.lib.patchgen.findings import CODES

from .projects import codes, findings, make_project

OUT = """\
from typing import ClassVar
class Out:
    a: int = 0
    b: int = 0
    c: "ClassVar[int]" = 0
"""
CASES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "target-missing": (
        "class A: pass\n",
        """
@config.replace_class("B")
class B: pass
@config.replace_function("f")
def f(): pass
@config.override_method("C.m")
def m(self): pass
@config.override_method("A.Inner.m")
def im(self): pass
@config.override_method("A.fresh")
def fresh(self): pass
config.exclude_from_output("Nothing")
""",
        [
            ("target-missing", "Nothing"),
            ("target-missing", "B"),
            ("target-missing", "f"),
            ("target-missing", "C.m"),
            ("target-missing", "A.Inner.m"),
        ],
    ),
    "not-applied": (
        "class A: pass\ndef f(): pass\n",
        """
@config.modify_init("A")
def init(original, self): pass
@config.override_method("f")
def nodot(self): pass
@config.override_method("f.m")
def on_function(self): pass
@config.replace_class("f")
class F: pass
@config.replace_function("A")
def a(): pass
config.patches.append(create_patch_from_external(
    "A.m", "os", "getcwd", patch_type=PatchType.METHOD_OVERRIDE))
""",
        [("not-applied", n) for n in ("A", "f", "f.m", "f", "A", "A.m")],
    ),
    "not-applied: under a condition in the class": (
        """\
class A:
    if flag:
        def m(self): return 1
    else:
        def m(self): return 2
    try:
        class Inner: pass
    finally:
        pass
    class Plain: pass
if flag:
    class B:
        class Inner: pass
""",
        """
@config.override_method("A.m")
def m(self): return 3
@config.override_method("A.Inner.m")
def im(self): return 3
@config.override_method("A.Plain")
def plain(self): return 3
@config.override_method("B.Inner.m")
def bm(self): return 3
config.add_import("flags", names=["flag"])
""",
        [("not-applied", n) for n in ("A.m", "A.Inner.m", "A.Plain", "B.Inner.m")],
    ),
    "shadowed": (
        "class A: pass\nclass B: pass\nclass C: pass\ndef D(): pass\n",
        """
config.exclude_from_output("A", "C")
@config.add_helper
def D(): pass
@config.override_method("A.m")
def m(self): pass
@config.replace_class("B")
class NewB: pass
@config.override_method("B.m")
def bm(self): pass
@config.replace_class("C")
class NewC: pass
""",
        [("shadowed", n) for n in ("A.m", "B.m", "C", "D")],
    ),
    "duplicate-target": (
        "def f(): return 0\n",
        """
@config.replace_function("f")
def one(): return 1
@config.replace_function("f")
def two(): return 2
""",
        [("duplicate-target", "f")],
    ),
    "anchor-missing": (
        "x = 1\nclass A: pass\n",
        """
@config.add_helper_after("x")
def h(): pass
@config.add_helper_after("A")
def k(): pass
""",
        [("anchor-missing", "x")],
    ),
    "dangling-name": (
        """\
import os
from a import b
class A: pass
class Sub(A): pass
@A.register
def f(x: "A" = b) -> None: return isinstance(x, A)
def g(A): return A
def h(): return os
""",
        'config.exclude_from_output("A")\nconfig.drop_import_names("b")\n',
        [("dangling-name", "A"), ("dangling-name", "b")],
    ),
    "dangling-name: given anew": (
        "from a import b\nclass A: pass\ndef f(): return A, b\n__all__ = ['A', 'f']\n",
        """
config.exclude_from_output("A")
config.drop_import_names("b")
config.add_import("c", names=["b"])
@config.add_helper
class A: pass
""",
        [],
    ),
    "undefined-name": (
        "from x import y\ndef f(): return y, own_fault\n",
        """
import math
@config.replace_function("f")
def f():
    z = [w for w in y]
    try: pass
    except Exception as e: print(e, __file__)
    return math.pi, z, own_fault
""",
        [("undefined-name", "math"), ("undefined-name", "own_fault")],
    ),
    "undefined-name: with an import of everything": (
        "from no.such.module import *\ndef f(): return 1\n",
        '@config.replace_function("f")\ndef f(): return perhaps\n',
        [],
    ),
    "lost-field": (
        OUT
        + "class A:\n    def m(self): return Out(1, b=2)\n    def n(self): return Out(a=1, c=3)\n",
        """
@config.override_method("A.m")
def m(self):
    if self: return Out(a=1)
    return self.Out(b=1), other.Out(b=2)
@config.override_method("A.n")
def n(self): return Out(*self)
other = 1
config.add_import("z", names=["other"])
""",
        [("lost-field", "A.m"), ("lost-field", "A.n")],
    ),
    "lost-field: passed in another return": (
        OUT + "def f(): return Out(1, b=2)\n",
        """
@config.replace_function("f")
def f():
    if 1: return Out(a=1)
    return Out(b=1)
""",
        [],
    ),
    "duplicate-decorator": (
        "import d\nclass A:\n    @d.no_grad()\n    @d.x(1)\n    def m(self): pass\n",
        """
class d:
    no_grad = x = staticmethod(lambda *a: lambda f: f)
@config.override_method("A.m")
@d.no_grad()
@d.x(2)
def m(self): pass
""",
        [("duplicate-decorator", "A.m")],
    ),
    "accessor-split": (
        """\
from typing import overload
class A:
    @property
    def p(self): return 1
    @p.setter
    def p(self, v): pass
    @overload
    def o(self, x: int): ...
    def o(self, x): return x
def f(): return 1
def f(): return 2
""",
        """
@config.override_method("A.p")
def p(self): return 2
@config.override_method("A.o")
def o(self, x): return 3
@config.replace_function("f")
def f(): return 3
""",
        [("accessor-split", "f"), ("accessor-split", "A.p")],
    ),
    "accessor-split: once more under a condition": (
        """\
from flags import flag
class A:
    def m(self): return 1
    if flag:
        def m(self): return 2
def f(): return 1
if flag:
    def f(): return 2
""",
        """
@config.override_method("A.m")
def m(self): return 3
@config.replace_function("f")
def f(): return 3
""",
        [("accessor-split", "f"), ("accessor-split", "A.m")],
    ),
    "kind-changed": (
        """\
class A:
    async def m(self): return 1
    def n(self): return 1
    async def same(self): return 1
async def f(): return 1
class C: pass
""",
        """
@config.override_method("A.m")
def m(self): return 2
@config.override_method("A.n")
async def n(self): return 2
@config.override_method("A.same")
async def same(self): return 2
@config.override_method("A.added")
async def added(self): return 2
@config.replace_function("f")
def f(): return 2
@config.replace_class("C")
def C(): return 2
""",
        [("kind-changed", n) for n in ("A.m", "A.n", "f", "C")],
    ),
    "signature-narrowed": (
        """\
class A:
    def m(self, x, *, flag=1): pass
    def n(me, x): pass
    @staticmethod
    def s(x, y): pass
    def k(self, a, /, *args, **kwargs): pass
def f(x, y): pass
""",
        """
@config.override_method("A.m")
def m(this, x): pass
@config.override_method("A.n")
def n(self, **kwargs): pass
@config.override_method("A.s")
def s(y, x): pass
@config.override_method("A.k")
def k(self, a): pass
@config.replace_function("f")
def f(y): pass
""",
        [
            ("signature-narrowed", "A.m"),
            ("signature-narrowed", "A.n"),
            ("signature-narrowed", "A.k"),
            ("signature-narrowed", "f"),
        ],
    ),
    "undocumented-parameter": (
        """\
from u import auto_docstring
class A:
    @auto_docstring
    def m(self, x): pass
    @auto_docstring(checkpoint="c")
    def n(self, x): pass
    def o(self, x): pass
""",
        """
@config.override_method("A.m")
def m(self, x, extra=None): "says extravagant"
@config.override_method("A.n")
def n(self, x, extra=None):
    '''extra (`int`): known.'''
@config.override_method("A.o")
def o(self, x, extra=None): pass
""",
        [("undocumented-parameter", "A.m")],
    ),
    "decorator-lost": (
        """\
from d import dataclass, keep, cached
@dataclass(frozen=True)
@keep
class A: pass
@cached
def f(): pass
""",
        """
def keep(c): return c
@config.replace_class("A")
@keep
class New: pass
@config.replace_function("f")
def f(): pass
""",
        [("decorator-lost", "A"), ("decorator-lost", "f")],
    ),
    "import-not-dropped": (
        "import a.b\nimport numpy as np\nfrom c import d as e\nimport h.i\n",
        'config.drop_import_names("numpy", "e", "b", "gone", "h")\n',
        [("import-not-dropped", "gone"), ("import-not-dropped", "h")],
    ),
    "dead-definition": (
        """\
def _unused(): return 1
def _recursive(): return _recursive()
def _used(): return 1
def _by_excluded(): return 1
def _exported(): return 1
def __getattr__(name): return name
class Gone:
    x = _by_excluded()
V = _used()
__all__ = ["_exported"]
""",
        'config.exclude_from_output("Gone")\n',
        [("dead-definition", n) for n in ("_unused", "_recursive", "_by_excluded")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_finding(name: str, tmp_path: Path) -> None:
    source, config, expected = CASES[name]
    root = make_project(tmp_path / "p", source, config)
    assert codes(root) == expected


def test_every_code_of_a_build_has_a_case() -> None:
    elsewhere = {"map-over-reach", "map-changed-literal"}  # test_name_map.py
    # in test_commands.py and test_settings.py
    of_check = {"orphan", "drift", "formatter-changed", "duplicate-output"}
    of_contract = {c for c in CODES if c.endswith("-changed")} - {"formatter-changed"}
    tested = {name.partition(":")[0] for name in CASES}
    left = {*CODES} - tested - elsewhere - of_check - of_contract
    assert left <= {"replacement-lacks-parameter"}


def one(name: str, tmp_path: Path, number: int = 0) -> dict:
    source, config, _ = CASES[name]
    return findings(make_project(tmp_path / "p", source, config))[number]


def test_what_the_records_say(tmp_path: Path) -> None:
    found = one("dangling-name", tmp_path / "1")
    assert found["where"] == ["Sub", "f"] and found["severity"] == "error"
    found = one("lost-field", tmp_path / "2")
    assert (found["cls"], found["fields"]) == ("Out", ["b"])
    found = one("lost-field", tmp_path / "3", 1)
    assert (found["severity"], found["fields"]) == ("info", ["a"])
    found = one("signature-narrowed", tmp_path / "4")
    assert (found["severity"], found["parameters"]) == ("error", ["flag"])
    assert one("signature-narrowed", tmp_path / "5", 1)["severity"] == "info"
    found = one("signature-narrowed", tmp_path / "24", 2)
    assert (found["severity"], found["parameters"]) == ("info", ["*args", "**kwargs"])
    assert one("undefined-name", tmp_path / "6")["where"] == ["f"]
    assert one("undefined-name", tmp_path / "7", 1)["severity"] == "info"
    assert one("shadowed", tmp_path / "8")["by"] == "exclude_from_output A"
    assert one("not-applied", tmp_path / "9")["patch_kind"] == "init_modification"
    assert one("accessor-split", tmp_path / "10", 1)["detail"] == "the property has a setter"
    found = one("kind-changed", tmp_path / "21")
    assert found["message"] == "the source has an async function, the replacement is a function"
    found = one("not-applied: under a condition in the class", tmp_path / "22")
    assert (
        found["message"] == "A.m is defined under a condition (line 3), not directly in the class"
    )
    found = one("accessor-split: once more under a condition", tmp_path / "23", 1)
    assert found["lines"] == [3, 5]
    assert one("target-missing", tmp_path / "11")["severity"] == "info"
    assert one("undocumented-parameter", tmp_path / "12")["parameters"] == ["extra"]


SIBLING = """
from patchgen import PatchConfig
config = PatchConfig(source_module="lib.dense", target_file="dense.py")
@config.override_method("Dense.m")
def m(self):
    return DenseOut(a=1)
"""
DENSE = "class DenseOut:\n    a: int = 0\nclass Dense:\n    def m(self): return DenseOut(a=1)\n"


def test_a_field_that_only_the_sibling_has_is_lost(tmp_path: Path) -> None:
    """Even where the sibling's own method does not pass it, and its fields come from a base."""
    source = """\
from lib.base import Base
class DenseMoeOut(Base):
    a: int = 0
class DenseMoe:
    def m(self): return None
"""
    config = """
from .dense_patch_gen_config import m
config.override_method("DenseMoe.m", replacement=m, name_map={"Dense": "DenseMoe"})
"""
    root = make_project(
        tmp_path / "p",
        source,
        config,
        kit__dense_patch_gen_config=SIBLING,
        lib__dense=DENSE,
        lib__base="class Base:\n    router: int = 0\n",
    )
    (found,) = findings(root)
    assert (found["code"], found["cls"], found["fields"]) == (
        "lost-field",
        "DenseMoeOut",
        ["router"],
    )
    # without a map it is another method: nothing says that it should pass the field
    (root / "kit/one_patch_gen_config.py").write_text(
        (root / "kit/one_patch_gen_config.py").read_text().replace("name_map", "description='x' #")
        + ")\n"
    )
    assert ("lost-field", "DenseMoe.m") not in codes(root)


def test_classes_are_found_through_imports(tmp_path: Path) -> None:
    source = """\
import lib.outs
import lib.outs as outs
from lib import outs as again
from lib.outs import Out as Renamed
from lib.passing import *
class A:
    def a(self): return lib.outs.Out(x=1, y=2)
    def b(self): return outs.Out(x=1, y=2)
    def c(self): return again.Out(x=1, y=2)
    def d(self): return Renamed(x=1, y=2)
    def e(self): return Starry(x=1, y=2)
"""
    config = "".join(
        f"@config.override_method('A.{name}')\ndef {name}(self): return {call}(x=1)\n"
        for name, call in zip(
            "abcde", ("lib.outs.Out", "outs.Out", "again.Out", "Renamed", "Starry"), strict=True
        )
    )
    outs = "class Base:\n    x: int\nclass Out(Base):\n    y: int = 0\n"
    passing = "from .outs import Out as Starry\nfrom .model import A\n"
    root = make_project(tmp_path / "p", source, config, lib__outs=outs, lib__passing=passing)
    assert codes(root) == [("lost-field", f"A.{name}") for name in "abcde"]
