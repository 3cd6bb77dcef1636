"""How plans are applied: what moves, what stays, byte for byte."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .projects import body, generated, make_project

SOURCE = '''\
#!/usr/bin/env python
# -*- coding: latin-1 -*-
# licence

"""Doc é."""
import os, sys; import re
from .more import (
    alpha,  # the alpha
    beta,
    # about gamma
    gamma as g,
)
if os.name == "none":
    from .nothing import X
try:
    from . import other
except ImportError:
    other = None
logger = os.getcwd() + sys.path[0]

def deco(*a, **k):
    return lambda f: f


@deco(
    "x",  # comment ( in brackets
    y=[1,
2],
)
async def work(a, /, b, *, c=1):
    """Doc."""
    from .inner import thing
    return alpha, thing
    # trailing comment of work

# between

class Outer(object):
    """Docstring of outer."""

    class Inner:
        def f(self): return beta

    @property
    def p(self): return 1
    @staticmethod
    def s(x): return x   # trailing
    # end of Outer

class Dots: ...  # say something
class Passing: pass; ...
class Doc:
    """Only doc."""

match os.name:
    case "posix":
        import posixpath as px
    case _:
        px = None
x: int = 3; y = 4
del y
'''
CONFIG = '''
config.drop_import_names("gamma", "re")

def deco(*a, **k): return lambda f: f

# above work
@config.replace_function("work", description="multi\\nline")
@deco("mine")
async def my_work(a, /, b, *, c=1):
    """My doc.

  odd indentation
    """
    if a: return my_work(b, a)
    x = lambda my_work: my_work
    return alpha  # done
    # trailing 1

    # trailing 2

# over f
@config.override_method("Outer.Inner.f")
def f(self):
    return """
text at column 0
""" + str(beta)

@config.override_method("Outer.s")
def s(x):
    # c1
    return x + 1
    # c2

@config.override_method("Outer.new")
@classmethod
async def new_one(
    cls,
    a,
):
  # two spaces
  if a:
     return cls
  return 1

@config.override_method("Dots.a")
def a(self): return 1
@config.override_method("Dots.b")
def b(self):
    return 2
@config.override_method("Passing.a")
def pa(self): return 1
@config.override_method("Doc.a")
def da(self): return 1
'''


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("odd") / "p"
    return body(generated(make_project(folder, SOURCE.encode("latin-1"), CONFIG)))


def test_the_head_stays_and_the_encoding_is_ours(odd: str) -> None:
    assert odd.startswith(SOURCE[: SOURCE.index("import os")])
    ast.parse(odd.encode())


def test_dropped_imports_leave_their_neighbours(odd: str) -> None:
    expected = """\
import os, sys
from lib.more import (
    alpha,  # the alpha
    beta,
)
if os.name == "none":
    from lib.nothing import X
try:
    from lib import other
except ImportError:
    other = None
"""
    assert expected in odd


def test_a_replaced_function(odd: str) -> None:
    expected = '''\
# above work
@deco("mine")
async def work(a, /, b, *, c=1):
    """My doc.

  odd indentation
    """
    if a: return work(b, a)
    x = lambda my_work: my_work
    return alpha  # done
    # trailing 1

    # trailing 2


# ====='''
    assert expected in odd
    assert "trailing comment of work" not in odd
    assert "# Reason: multi line\n" in odd


def test_methods_in_their_places(odd: str) -> None:
    expected = '''\
# between
class Outer(object):
    """Docstring of outer."""

    class Inner:
        # over f
        def f(self):
            return """
text at column 0
""" + str(beta)

    @property
    def p(self): return 1
    @staticmethod
    def s(x):
        # c1
        return x + 1
        # c2

    @classmethod
    async def new(
        cls,
        a,
    ):
        # two spaces
        if a:
           return cls
        return 1
    # end of Outer
'''
    assert expected in odd


def test_bodies_that_say_nothing_are_opened(odd: str) -> None:
    assert (
        "class Dots:\n    # say something\n    def a(self): return 1\n\n    def b(self):\n" in odd
    )
    assert "class Passing:\n    def a(self): return 1\n" in odd
    assert 'class Doc:\n    """Only doc."""\n\n    def a(self): return 1\n' in odd


def test_every_other_statement_stays(odd: str) -> None:
    assert odd.endswith(SOURCE[SOURCE.index("match os.name") :])


def test_line_ends_bom_and_form_feeds(tmp_path: Path) -> None:
    source = (
        b"\xef\xbb\xbf# Licence\r\n# two\r\n\r\n# on A\r\nclass A:\r\n    x = '''a\r\nb'''\r\n"
        b"\x0c\r\n# on f\r\ndef f(): return 1\r\nF = ['A\\f', '\xe2\x80\xa8']\r\n"
        b"__all__ = ('A', 'f')\r\n"
    )
    config = """
config.exclude_from_output("A")
config.add_import("__future__", names=["annotations"])
config.add_import("os", alias="system", is_from_import=False)
"""
    text = body(generated(make_project(tmp_path / "p", source, config)))
    assert text == (
        "# Licence\n# two\n\n\nfrom __future__ import annotations\n\n\n"
        "# Additional imports for patches\nimport os as system\n\n"
        "\x0c\n# on f\ndef f(): return 1\nF = ['A\\f', '\u2028']\n__all__ = ('f',)\n"
    )


def test_an_untouched_source_is_kept_to_the_byte(tmp_path: Path) -> None:
    source = "# a\n\nimport os\n\n\n\n\n\nx = os\t# two\n\n\n# end\n"
    assert body(generated(make_project(tmp_path / "p", source, ""))) == source


def test_an_empty_source(tmp_path: Path) -> None:
    config = (
        'config.add_import("os", is_from_import=False)\n@config.add_helper\ndef h(): return 1\n'
    )
    text = generated(make_project(tmp_path / "p", "", config))
    assert [type(n) for n in ast.parse(text).body] == [ast.Import, ast.FunctionDef]


def test_escapes_that_python_warns_of_are_the_sources_own(tmp_path: Path) -> None:
    """The test run turns warnings into errors."""
    source = 'x = "\\d"\ndef f(a: "\\d" = 1): return a\n'
    config = '@config.replace_function("f")\ndef f(a=1): return "\\d", a\n'
    text = generated(make_project(tmp_path / "p", source, config))
    assert 'x = "\\d"\n' in text and 'return "\\d", a' in text


def test_a_source_of_comments_alone(tmp_path: Path) -> None:
    source = "# only\n\n# comments\n"
    root = make_project(tmp_path / "p", source, "")
    assert body(generated(root)) == source


def test_an_exclusion_leaves_every_list_of_all(tmp_path: Path) -> None:
    source = """\
__all__ = [
    "A",  # a
    # about B
    "B",
] + ["C"]
__all__ += ("B", "D")
__all__.extend(["B", "C"])
class A: pass
class B: pass
class C: pass
class D: pass
"""
    text = generated(make_project(tmp_path / "p", source, 'config.exclude_from_output("B")\n'))
    assert body(text) == source.replace('    # about B\n    "B",\n', "").replace(
        '("B", "D")', '("D",)'
    ).replace('["B", "C"]', '["C"]').replace("class B: pass\n", "")
