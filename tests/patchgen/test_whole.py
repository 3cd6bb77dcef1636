"""Promises about every config and every code: the specification's tables, held as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ntool.lib.patchgen.findings import CODES

from .projects import REFERENCE, copy_project, make_project, patchgen

CONFIGS = sorted(
    str(p.relative_to(REFERENCE / "project"))
    for p in (REFERENCE / "project").rglob("*_patch_gen_config.py")
)
NAMED = {c: ["-c", "settings" if "other_name" in c else "config"] for c in CONFIGS}


@pytest.mark.parametrize("config", CONFIGS)
def test_read_or_run_generated_once_or_twice_a_config_gives_one_thing(
    config: str, tmp_path: Path
) -> None:
    root = copy_project(tmp_path)
    generate = ["generate", config, *NAMED[config], "--diff", "--fingerprint", "--allow-findings"]
    first = patchgen(*generate, cwd=root)
    assert first.code == int(any(p["severity"] == "error" for p in first.of("problem")))
    files = [root / r["path"] for r in first.of("file")]
    texts = [f.read_bytes() for f in files]
    assert len(files) == 2
    for more in ([], ["--static"]):
        again = patchgen(*generate, *more, cwd=root)
        assert {r["state"] for r in again.of("file")} == {"unchanged"}
        assert again.of("problem") == first.of("problem")
    assert [f.read_bytes() for f in files] == texts
    done = patchgen("check", config, *NAMED[config], "--diff", cwd=root)
    assert done.of("problem") == first.of("problem") and done.code == first.code


LIB = "class A:\n    def m(self, x): return x\ndef f(): return 1\n"
OUT = "class Out:\n    a: int = 0\n    b: int = 0\n"
M = '@config.override_method("A.m")\n'
TWICE = "".join(f'@config.replace_function("f")\ndef f{n}(): return {n}\n' for n in (1, 2))
MAPPED = f'{M[:-2]}, name_map={{"Old": "OldNew"}})\ndef m(self, x): return "Old", "OldNew"\n'

OF_BUILD: dict[str, tuple[str, str, str]] = {
    "target-missing": ("error", LIB, M.replace("A", "B") + "def m(self): pass\n"),
    "not-applied": ("error", LIB, '@config.modify_init("A")\ndef init(o, self): pass\n'),
    "shadowed": ("error", LIB, M + 'def m(self, x): pass\nconfig.exclude_from_output("A")\n'),
    "duplicate-target": ("error", LIB, TWICE),
    "anchor-missing": ("error", LIB, '@config.add_helper_after("g")\ndef h(): pass\n'),
    "dangling-name": ("error", LIB + "B = A\n", 'config.exclude_from_output("A")\n'),
    "undefined-name": ("error", LIB, M + "def m(self, x): return torch\n"),
    "lost-field": (
        "error",
        OUT + LIB.replace("return x", "return Out(1, 2)"),
        M + "def m(self, x): return Out(1)\n",
    ),
    "duplicate-decorator": (
        "error",
        LIB.replace("    def m(self, ", "    @staticmethod\n    def m("),
        M + "@staticmethod\ndef m(x): pass\n",
    ),
    "accessor-split": (
        "error",
        LIB.replace("def f", "    def m(self, x): return 2\ndef f"),
        M + "def m(self, x): pass\n",
    ),
    "signature-narrowed": ("error", LIB, M + "def m(self): pass\n"),
    "undocumented-parameter": (
        "info",
        "from d import auto_docstring\n"
        + LIB.replace("    def m", "    @auto_docstring\n    def m"),
        M + "def m(self, x, y=1): pass\n",
    ),
    "decorator-lost": (
        "info",
        "from d import d\n" + LIB.replace("class A", "@d\nclass A"),
        '@config.replace_class("A")\nclass A: pass\n',
    ),
    "map-over-reach": ("info", LIB, MAPPED),
    "map-changed-literal": ("info", LIB, MAPPED),
    "import-not-dropped": ("info", LIB, 'config.drop_import_names("os")\n'),
    "dead-definition": ("info", LIB + "def _g(): pass\n", ""),
    "kind-changed": ("error", LIB, M + "async def m(self, x): pass\n"),
}
"""Code -> level, a source, a config."""

OF_CHECK = {"orphan", "drift", "formatter-changed", "duplicate-output"}

OLD = "class A(B):\n    x: int = 0\n    @d\n    def m(self, x): return 1\ndef f(): return 1\n"
OF_CONTRACT = {
    "target-missing": OLD.replace("class A", "class Z"),
    "anchor-missing": OLD.replace("def f", "def g"),
    "signature-changed": OLD.replace("(self, x)", "(self, x, y)"),
    "replacement-lacks-parameter": OLD.replace("(self, x)", "(self, x, y)"),
    "decorators-changed": OLD.replace("    @d\n", ""),
    "bases-changed": OLD.replace("A(B)", "A(C)"),
    "fields-changed": OLD.replace("    x: int = 0\n", ""),
    "kind-changed": OLD.replace("def m", "async def m"),
    "body-changed": OLD.replace("(self, x): return 1", "(self, x): return 2"),
    "import-not-dropped": OLD,
}
"""Code -> the new source."""


def test_every_code_has_its_case() -> None:
    assert {*OF_BUILD} | OF_CHECK | {*OF_CONTRACT} == {*CODES}


@pytest.mark.parametrize("code", OF_BUILD)
def test_every_code_of_a_build(code: str, tmp_path: Path) -> None:
    """Its level decides the exit code, and whether anything is written; check tells the same."""
    level, source, config = OF_BUILD[code]
    root = make_project(tmp_path / "p", source, config)
    done = patchgen("generate", cwd=root)
    found = {p["code"]: p["severity"] for p in done.of("problem")}
    assert found[code] == level == CODES[code], found
    assert {c for c, severity in found.items() if severity == "error"} <= {code}
    assert done.code == (level == "error")
    assert (root / "kit/generated/out.py").exists() is (level == "info")
    checked = patchgen("check", cwd=root)
    assert code in {p["code"] for p in checked.of("problem")}
    assert checked.code == done.code
    allowed = patchgen("generate", "--allow", code, cwd=root)
    assert allowed.code == 0 and (root / "kit/generated/out.py").exists()


@pytest.mark.parametrize("code", OF_CONTRACT)
def test_every_code_of_a_contract(code: str, tmp_path: Path) -> None:
    config = """
config.drop_import_names("gone")
@config.replace_class("A")
class A: pass
@config.override_method("A.m")
def m(self, x): return 2
@config.add_helper_after("f")
def helper(): pass
"""
    root = make_project(tmp_path / "p", OLD, config)
    for name, text in (("old", "import gone\n" + OLD), ("new", OF_CONTRACT[code])):
        (root / name).mkdir()
        gone = "" if code == "import-not-dropped" else "import gone\n"
        (root / name / "model.py").write_text((gone if name == "new" else "") + text)
    words = ["contract", "kit.one_patch_gen_config", "--old", "old", "--new"]
    same = patchgen(*words, "old", cwd=root)
    assert (same.code, same.of("problem")) == (0, [])
    done = patchgen(*words, "new", cwd=root)
    found = {p["code"]: p["severity"] for p in done.of("problem")}
    assert found[code] == CODES[code]
    assert done.code == (CODES[code] == "error")


def test_every_code_of_loading_ends_with_3(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p", LIB, "")
    texts = {
        "config-not-loaded": "raise ValueError\n",
        "not-built": "from patchgen import PatchConfig\nconfig = PatchConfig('no.such')\n",
    }
    for number, (code, text) in enumerate(texts.items()):
        name = f"kit/broken{number}_patch_gen_config.py"
        (root / name).write_text(text)
        done = patchgen("generate", name, "kit.one_patch_gen_config", cwd=root)
        assert (done.code, [p["code"] for p in done.of("problem")]) == (3, [code])
        assert len(done.of("file")) == 1, "the other one is made"
    done = patchgen("generate", "no/such.py", cwd=root)
    assert (done.code, [p["code"] for p in done.of("problem")]) == (3, ["config-missing"])
    text = (root / "kit/one_patch_gen_config.py").read_text()
    (root / "kit/one_patch_gen_config.py").write_text(text + "for _ in 'a': config.helpers\n")
    done = patchgen("generate", "kit.one_patch_gen_config", "--static", cwd=root)
    assert (done.code, [p["code"] for p in done.of("problem")]) == (3, ["not-static"])
