"""Sources of odd shapes, patched: whole modules, each read and judged by a person once."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from .projects import make_project, patchgen

RULE = "# " + "=" * 70


def marked(*lines: str) -> str:
    return "\n".join([RULE, *(f"# {line}" for line in lines), RULE])


SHAPES: dict[str, tuple[str, str, str, set[tuple[str, str]]]] = {
    # bodies on the class's line, comments that must find a new place, overloads, inner classes
    "short classes": (
        '''\
class A: x = 1; y = 2  # note
class B: pass  # nothing
class C(A): """doc"""
class D(A):

    # only a comment
    ...

    # after
class E:
    @overload
    def o(self, x: int) -> int: ...
    @overload
    def o(self, x: str) -> str: ...
    # real one
    def o(self, x):
        return x
    class In: ...
''',
        """
@config.override_method("A.m")
@config.override_method("B.m")
@config.override_method("C.m")
@config.override_method("D.m")
@config.override_method("E.In.m")
# shared
def m(self): ...
@config.override_method("E.o")
def o(self, x): return str(x)
config.add_import("typing", names=["overload"])
""",
        f'''\
# Additional imports for patches
from typing import overload


{marked("[MODIFIED CLASS] A", "Methods patched: m")}


class A:
    x = 1; y = 2  # note

    # shared
    def m(self): ...


{marked("[MODIFIED CLASS] B", "Methods patched: m")}


class B:
    # nothing
    # shared
    def m(self): ...


{marked("[MODIFIED CLASS] C", "Methods patched: m")}


class C(A):
    """doc"""

    # shared
    def m(self): ...


{marked("[MODIFIED CLASS] D", "Methods patched: m")}


class D(A):
    # only a comment
    # shared
    def m(self): ...

    # after


{marked("[MODIFIED CLASS] E", "Methods patched: In.m, o")}


class E:
    @overload
    def o(self, x: int) -> int: ...
    @overload
    def o(self, x: str) -> str: ...
    def o(self, x): return str(x)
    class In:
        # shared
        def m(self): ...
''',
        set(),
    ),
    # two blanks, comments at column 0, texts over lines, conditions in a class
    "indentation of its own": (
        '''\
class A:
  """doc
# not a comment
  """
# col0 comment
  if True:
    y = 1
  else:
    y = 2

  def m(self,
        b=lambda q: q):  # sig
      # eight
      return self + \\
  b

  def n(self): return """t
  t"""; # semicolon
  # tail 2
# tail 0
z = property(lambda s: 1); w = 2
# before f
def f(a): pass
# end
''',
        '''
@config.override_method("A.m")
def m(self, b):
    text = """
keep
  keep
"""
    if b:
            odd = 1
            return odd, text
    for i in b:
        # deep
        print(i)
    # tail of new
@config.replace_function("f")
def f(a): return 1 # x
''',
        f'''\
{marked("[MODIFIED CLASS] A", "Methods patched: m")}


class A:
  """doc
# not a comment
  """
# col0 comment
  if True:
    y = 1
  else:
    y = 2

  def m(self, b):
    text = """
keep
  keep
"""
    if b:
            odd = 1
            return odd, text
    for i in b:
      # deep
      print(i)
    # tail of new

  def n(self): return """t
  t"""; # semicolon
  # tail 2


# tail 0
z = property(lambda s: 1); w = 2


{
            marked(
                "[PATCHED FUNCTION] f",
                "Reason: Replace f with f",
                "Source: kit.one_patch_gen_config",
            )
        }
def f(a): return 1 # x


# end
''',
        set(),
    ),
    # imports under conditions, exclusions from a tuple, statements of all kinds
    "conditions": (
        """\
#!/usr/bin/env python
import os, sys; import json as js
from a import (b as bb, c,  # keep c
               d)
if c():
    # only this
    from x import kernel
elif d():
    from z import kernel, extra  # two
else:
    kernel = extra = None
try:
    from fast import quick  # speed
except ImportError as e:
    quick = None
finally:
    del sys
with open("f") as fh: DATA = fh.read()
counter: int = 0
counter += 1
print(os, js)
class A(bb, c, flag=True):
    x: "c" = None
    def m(self) -> "list[A]": return kernel(quick)
class B(A): pass
def make(kind: "B | None" = None) -> "A": return A()
__all__ = ("A", "B", "make")
A.register = make
""",
        """
config.drop_import_names("kernel", "js", "quick", "bb")
config.exclude_from_output("B")
@config.add_helper_after("A")
# about the helper
def after_a(x):
    return x
""",
        f"""\
#!/usr/bin/env python
import os, sys
from a import (c,  # keep c
               d)
if c():
    pass
elif d():
    from z import extra  # two
else:
    kernel = extra = None
try:
    pass
except ImportError as e:
    quick = None
finally:
    del sys
with open("f") as fh: DATA = fh.read()
counter: int = 0
counter += 1
print(os, js)
class A(bb, c, flag=True):
    x: "c" = None
    def m(self) -> "list[A]": return kernel(quick)


{marked("[HELPERS AFTER] A")}

# about the helper
def after_a(x):
    return x


def make(kind: "B | None" = None) -> "A": return A()
__all__ = ("A", "make")
A.register = make
""",
        {("dangling-name", "js"), ("dangling-name", "bb"), ("dangling-name", "B")},
    ),
    # accessors, class and static methods, several bases, a name that is assigned as well
    "members of all kinds": (
        """\
class Mix(dict, list, metaclass=type):
    __slots__ = ("a",)
    forward = None
    def __init__(self, a, *rest, key=None, **kw): self.a = a
    @classmethod
    def build(cls, *, a): return cls(a)
    @property
    def total(self): return 1
    @total.setter
    def total(self, v): ...
    @staticmethod
    def s(x, /, y): return x
    async def later(self):
        async for x in self: yield x
    call = later
""",
        """
@config.override_method("Mix.__init__")
def __init__(self, a, key=None): super(Mix, self).__init__()
@config.override_method("Mix.build")
@classmethod
def build(cls, *, b): return cls(b)
@config.override_method("Mix.total")
@property
def total(self): return 2
@config.override_method("Mix.s")
def s(x, y): return x
@config.override_method("Mix.extra")
@staticmethod
def extra(): return __class__
@config.override_method("Mix.forward")
def forward(self): return 3
@config.override_method("Mix.later")
def later(self): return iter(self)
""",
        f"""\
{
            marked(
                "[MODIFIED CLASS] Mix",
                "Methods patched: __init__, build, total, s, extra, forward, later",
            )
        }


class Mix(dict, list, metaclass=type):
    __slots__ = ("a",)
    forward = None
    def __init__(self, a, key=None): super(Mix, self).__init__()
    @classmethod
    @classmethod
    def build(cls, *, b): return cls(b)
    @property
    @property
    def total(self): return 2
    @total.setter
    def total(self, v): ...
    @staticmethod
    def s(x, y): return x
    def later(self): return iter(self)
    call = later

    @staticmethod
    def extra(): return __class__

    def forward(self): return 3
""",
        {
            ("duplicate-decorator", "Mix.build"),
            ("signature-narrowed", "Mix.build"),
            ("accessor-split", "Mix.total"),
            ("duplicate-decorator", "Mix.total"),
            ("kind-changed", "Mix.later"),
        },
    ),
    # what stands for a class or function elsewhere; names that are not ASCII
    "externals and letters": (
        """\
# ünï
class Ä:
    é: int = 1  # «»
    s = "line\u2028sep\x0bvt"
    def mé(self): return "日本" + self.é
class Norm: pass
def rot(x): return x
use = rot, Norm
def ƒ(x): return Ä()
""",
        """
config.patches.append(create_patch_from_external("Norm", "fast.norms", "RMSNorm"))
config.patches.append(create_patch_from_external(
    "rot", "fast.rot", "rot", patch_type=PatchType.FUNCTION_REPLACEMENT, description="fused"))
@config.override_method("Ä.mé")
def mé(self): return "日本語", Ä
@config.replace_function("ƒ")
def ƒneu(x): return ƒneu("ƒneu"), "ƒneu"
""",
        f"""\
{marked("[MODIFIED CLASS] Ä", "Methods patched: mé")}


# ünï
class Ä:
    é: int = 1  # «»
    s = "line\u2028sep\x0bvt"
    def mé(self): return "日本語", Ä


{
            marked(
                "[PATCHED CLASS] Norm",
                "Original class replaced with: external",
                "Reason: Replace Norm with RMSNorm from fast.norms",
                "Source: fast.norms",
            )
        }
# Import from: fast.norms.RMSNorm
from fast.norms import RMSNorm as Norm


{marked("[PATCHED FUNCTION] rot", "Reason: fused", "Source: fast.rot")}
# Import from: fast.rot.rot
from fast.rot import rot


use = rot, Norm


{
            marked(
                "[PATCHED FUNCTION] ƒ",
                "Reason: Replace ƒ with ƒneu",
                "Source: kit.one_patch_gen_config",
            )
        }
def ƒ(x): return ƒ("ƒneu"), "ƒneu"
""",
        set(),
    ),
}
"""Name -> a source, a config, the module, the findings of level error."""


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, form) for name in SHAPES for form in ("as it is", "carriage returns and a mark")),
        ("members of all kinds", "tabs"),
    ],
)
def test_shape(name: str, form: str, tmp_path: Path) -> None:
    source, config, expected, errors = SHAPES[name]
    given = source
    if form == "carriage returns and a mark":
        given = "\ufeff" + source.replace("\n", "\r\n")
    elif form == "tabs":
        given, expected = (t.replace("    ", "\t") for t in (source, expected))
    root = make_project(tmp_path / "p", given.encode(), config)
    words = ["generate", "kit.one_patch_gen_config", "--stdout", "--allow-findings", "--json"]
    done, read = patchgen(*words, cwd=root), patchgen(*words, "--static", cwd=root)
    assert (read.code, read.out, read.err) == (done.code, done.out, done.err)
    header, _, text = done.out.partition(f"\n{RULE}\n\n")
    assert header.startswith(RULE) and text == expected
    ast.parse(done.out)
    found = map(json.loads, done.err.splitlines())
    assert {(p["code"], p["name"]) for p in found if p["severity"] == "error"} == errors
    assert done.code == bool(errors)
