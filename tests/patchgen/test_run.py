"""Running configs: what they may do, and that nothing of it is left."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from ntool.lib.errors import InputError
from ntool.lib.patchgen.discover import Found, find_settings, output_folder, resolve, search
from ntool.lib.patchgen.model import Plan
from ntool.lib.patchgen.run import NoConfig, Session

from .projects import HEAD, copy_project, generated, make_project, patchgen


def load(root: Path, name: str = "kit.one_patch_gen_config", *shims: str) -> Plan:
    file = root / (name.replace(".", "/") + ".py")
    with Session(shims) as session:
        return session.load(Found(file, name), [root]).plan("config")


def config(tmp_path: Path, text: str, **others: str) -> Path:
    return make_project(tmp_path / "p", "def f(): pass\n", text, **others)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "raise ValueError('on purpose')",
        "import no_such_module",
        "import sys; sys.exit(0)",
        "import patchgen.patch_spec, patchgen; del patchgen",
        "import sys; sys.modules.pop('patchgen')",
        "import kit.other",
    ],
)
def test_nothing_is_left_behind(text: str, tmp_path: Path) -> None:
    root = config(tmp_path, text, kit__other="x = 1\n")
    before, path, flag = dict(sys.modules), list(sys.path), sys.dont_write_bytecode
    try:
        load(root)
    except InputError as e:
        assert "line 4: the config cannot be loaded" in e.message
    left = {n for n in set(sys.modules) - set(before) if n.startswith(("kit", "patchgen", "lib."))}
    assert left == set() and sys.path == path and sys.dont_write_bytecode == flag
    assert list(root.rglob("__pycache__")) == []


def test_the_package_of_a_config_does_not_run(tmp_path: Path) -> None:
    root = config(tmp_path, "")
    (root / "kit" / "__init__.py").write_text("raise RuntimeError('it runs')\n")
    assert load(root).source_module == "lib.model"


def test_a_sibling_that_is_changed_in_place_is_fresh_each_time(tmp_path: Path) -> None:
    text = "from kit.base_patch_gen_config import config\nconfig.exclude_from_output('f')\n"
    root = config(tmp_path, text, kit__base_patch_gen_config=HEAD)
    with Session() as session:
        for _ in range(2):
            found = Found(root / "kit/one_patch_gen_config.py", "kit.one_patch_gen_config")
            assert session.load(found, [root]).plan("config").excluded == ("f",)
        base = Found(root / "kit/base_patch_gen_config.py", "kit.base_patch_gen_config")
        assert session.load(base, [root]).plan("config").excluded == ()


def test_parameters_by_name(tmp_path: Path) -> None:
    """Those of the documentation, and the names that say what a target is."""
    text = """
def g(): return 2
config.replace_class(target="A", replacement=g, name_map=None)
config.replace_function(target="f", replacement=g, description="d")
config.override_method(target="A.m", replacement=g)
@config.modify_init(target="A")
def init(o, self): pass
config.add_post_import_block(text="x = 1")
config.add_helper(obj=g)
config.add_helper_after(target="f", obj=g)
"""
    plan = load(config(tmp_path / "1", text))
    assert [p.target for p in plan.patches] == ["A", "f", "A.m", "A"]
    for old, new in (
        ('class(target="A"', 'class(target_class="A"'),
        ('function(target="f"', 'function(target_func="f"'),
        ('method(target="A.m"', 'method(target_method="A.m"'),
        ('init(target="A"', 'init(target_class="A"'),
        ("block(text=", "block(block="),
        ("helper(obj=", "helper(func="),
        ('"f", obj=', '"f", helper='),
    ):
        assert old in text
        text = text.replace(old, new)
    other = load(config(tmp_path / "2", text))
    assert [(p.kind, p.target) for p in other.patches] == [(p.kind, p.target) for p in plan.patches]
    assert (other.blocks, len(other.helpers), len(other.after)) == (plan.blocks, 1, 1)


def test_copies_and_filtered_lists(tmp_path: Path) -> None:
    """As configs of published projects derive one device's patches from another's."""
    base = HEAD + "@config.replace_function('f')\ndef f(): return 1\n"
    text = """
from copy import deepcopy
from kit.base_patch_gen_config import config as base
config = deepcopy(base)
config.target_file = "two.py"
config.patches = [p for p in config.patches if p.target != "f"]
config.post_import_blocks.extend(base.post_import_blocks)
config.drop_imported_names.update({"b", "a"})
"""
    plan = load(config(tmp_path, text, kit__base_patch_gen_config=base))
    assert (plan.target_file, plan.patches, plan.dropped) == ("two.py", (), ("a", "b"))


def test_wrapped_functions_are_found_where_they_are_written(tmp_path: Path) -> None:
    text = """
import functools
def deco(fn):
    @functools.wraps(fn)
    def inner(): return fn()
    return inner
@config.replace_function("f")
@deco
@functools.lru_cache
def mine(): return 1
class Holder:
    @staticmethod
    def held(): return 1
if True:
    class Twice:
        def one(self): pass
else:
    class Twice:
        def two(self): pass
config.add_helper(Twice)
config.add_helper(Holder.held)
config.add_helper(functools.wraps)
class Compiled:
    def __init__(self, fn): self.fn = fn
@config.add_helper
@Compiled
def compiled(): return 1
@config.add_helper
@property
def prop(self): return 1
@config.add_helper
@functools.cached_property
def cached(self): return 1
"""
    plan = load(config(tmp_path, text))
    (patch,) = plan.patches
    assert (patch.replacement.name, patch.replacement.module) == (
        "mine",
        "kit.one_patch_gen_config",
    )
    lines = (tmp_path / "p/kit/one_patch_gen_config.py").read_text().split("\n")
    assert [lines[h.line - 1].strip() for h in plan.helpers[:2]] == [
        "class Twice:",
        "def held(): return 1",
    ]
    assert plan.helpers[2].module == "functools"
    assert [h.name for h in plan.helpers[3:]] == ["compiled", "prop", "cached"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def deco(fn):\n    def inner(): pass\n    return inner\n@config.replace_function('f')\n"
         "@deco\ndef f(): pass", "inside another function"),
        ("exec('def g(): pass')\nconfig.add_helper(g)", "<string>"),
        ("config.add_helper(len)", "no class or function of a Python file"),
        ("config.patches.append(1)", "patches"),
        ("config.additional_imports.append('os')", "additional_imports"),
        ("config.transformers_version = 5", "transformers_version"),
        ("config.helpers = None", "helpers"),
    ],
)  # fmt: skip
def test_what_cannot_become_a_plan(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load(config(tmp_path, text))


def test_no_config_and_something_else(tmp_path: Path) -> None:
    root = config(tmp_path, "other, config = config, None\n")
    with pytest.raises(NoConfig):
        load(root)
    root = make_project(tmp_path / "q", "", "config = 1\n")
    with pytest.raises(InputError, match="found int, expected a PatchConfig"):
        load(root)


def test_more_names_for_the_module_of_configs(tmp_path: Path) -> None:
    text = HEAD.replace("patchgen", "kit.tool.patchgen.patch_spec")
    root = config(tmp_path, "")
    (root / "kit/one_patch_gen_config.py").write_text(text)
    with pytest.raises(InputError, match=r"No module named 'kit\.tool"):
        load(root)
    assert load(root, "kit.one_patch_gen_config", "kit.tool.patchgen").target_file == "out.py"
    settings = (root / "pyproject.toml").read_text() + 'shim_modules = ["kit.tool.patchgen"]\n'
    (root / "pyproject.toml").write_text(settings)
    assert "def f(): pass" in generated(root)


@pytest.mark.parametrize(
    "text",
    [
        "from acme.deep.specs import PatchConfig",
        "from acme.deep.specs.patch_spec import PatchConfig",
        "import acme.deep.specs\nPatchConfig = acme.deep.specs.PatchConfig",
        "import acme.deep.specs as s\nPatchConfig = s.PatchConfig",
        "from acme.deep import specs\nPatchConfig = specs.PatchConfig",
        "from acme import deep\nPatchConfig = deep.specs.PatchConfig",
        "import acme.deep.specs.patch_spec as s\nPatchConfig = s.PatchConfig",
        "import tool\nPatchConfig = tool.PatchConfig",
        "import kit.tool as s\nPatchConfig = s.PatchConfig",
    ],
)
def test_packages_around_those_names_need_not_be_there(text: str, tmp_path: Path) -> None:
    root = config(tmp_path, "")
    made = "config = PatchConfig(source_module='lib.model', target_file='out.py')\n"
    (root / "kit/one_patch_gen_config.py").write_text(f"{text}\n{made}")
    before = set(sys.modules)
    shims = ("acme.deep.specs", "tool", "kit.tool")
    assert load(root, "kit.one_patch_gen_config", *shims).target_file == "out.py"
    assert {n for n in set(sys.modules) - before if n.startswith(("acme", "tool", "kit"))} == set()
    settings = (root / "pyproject.toml").read_text() + f"shim_modules = {list(shims)}\n"
    (root / "pyproject.toml").write_text(settings)
    assert generated(root) == generated(root, "--static")


def test_the_real_package_is_used_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records have the fields of ours, and are read by them."""
    real = types.ModuleType("patchgen")

    class PatchConfig:
        def __init__(self, source_module: str, **fields: object) -> None:
            self.source_module, self.target_file = source_module, fields["target_file"]
            self.description, self.transformers_version = "", None
            self.patches, self.additional_imports, self.post_import_blocks = [], [], []
            self.helpers, self.positioned_helpers, self.exclude = [], [], ["f"]
            self.drop_imported_names: set[str] = set()

    names = {"PatchConfig": PatchConfig, "PatchType": 1, "create_patch_from_external": 2}
    real.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "patchgen", real)
    assert load(config(tmp_path, "")).excluded == ("f",)
    assert sys.modules["patchgen"] is real


def test_a_folder_of_that_name_is_not_the_real_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = config(tmp_path, "")
    (root / "patchgen").mkdir()
    assert load(root).target_file == "out.py"
    (root / "patchgen/__init__.py").write_text("x = 1\n")
    assert load(root).target_file == "out.py"
    (root / "patchgen/__init__.py").write_text("from .patch_spec import PatchConfig, PatchType\n")
    (root / "patchgen/patch_spec.py").write_text("PatchConfig = PatchType = None\n")
    with pytest.raises(InputError, match="cannot import name 'create_patch_from_external'"):
        load(root)


def test_search_and_names(tmp_path: Path) -> None:
    root = config(tmp_path, "")
    (root / "kit/deep/patches").mkdir(parents=True)
    for name in ("a_patch_gen_config.py", "_b_patch_gen_config.py", "c_patch_gen_config.txt"):
        (root / "kit/deep/patches" / name).write_text(HEAD)
    text = (root / "pyproject.toml").read_text() + 'legacy_patches_prefix = "kit.deep.patches"\n'
    (root / "pyproject.toml").write_text(text)
    settings = find_settings(root / "kit" / "deep")
    assert settings is not None
    names = [f.module for f in search(settings)]
    assert names == ["kit.deep.patches.a_patch_gen_config", "kit.one_patch_gen_config"]
    file = root / "kit/deep/patches/a_patch_gen_config.py"
    for spelled in ("patches.a_patch_gen_config", names[0], str(file)):
        assert resolve(spelled, settings, (root,)) == Found(file, names[0])
    assert output_folder(file) == root / "kit/deep/generated"
    with pytest.raises(InputError, match="no such module"):
        resolve("patches.b_patch_gen_config", settings, ())


def test_files_without_settings(tmp_path: Path) -> None:
    root = copy_project(tmp_path)
    (root / "pyproject.toml").unlink()
    folder = root / "fixkit/models/mini_moe"
    done = patchgen(
        "generate", "mini_moe_reuse_patch_gen_config.py", "--allow-findings", cwd=folder
    )
    assert done.code == 1 and (folder / "generated/patched_mini_moe_reuse.py").exists(), done.err
