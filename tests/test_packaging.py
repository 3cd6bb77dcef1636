"""The wheel: what is in it, what is not, and that it runs from where it is unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
SOURCES = tuple(FOLDERS.values())


def import_name(folder: Path) -> str:
    """The import name of a folder: `lib/numeric` is `ntool.lib.numeric`."""
    top, *rest = folder.relative_to(ROOT).parts
    name = next(name for name, place in FOLDERS.items() if place == top)
    return ".".join([name, *rest])


def modules() -> list[Path]:
    return [
        p for top in SOURCES for p in (ROOT / top).rglob("*.py") if "__pycache__" not in p.parts
    ]


def test_packages_are_the_folders_with_init() -> None:
    found = sorted(import_name(p.parent) for p in modules() if p.name == "__init__.py")
    assert sorted(SETUPTOOLS["packages"]) == found


def test_every_module_is_in_a_package() -> None:
    strays = [
        str(p.relative_to(ROOT)) for p in modules() if not (p.parent / "__init__.py").exists()
    ]
    assert strays == []


def test_gitignore_keeps_lib() -> None:
    lines = (ROOT / ".gitignore").read_text().splitlines()
    assert not {"lib", "lib/", "/lib", "/lib/"} & {line.strip() for line in lines}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, so that no `build/` is left in the checkout."""
    try:
        version = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        pytest.skip("setuptools is not installed; it is in the test extra")
    if int(version.split(".")[0]) < 77:
        pytest.skip(f"setuptools {version} is too old for this pyproject; the test extra has >= 77")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    for name in (*SOURCES, "completions", "man"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", PROJECT["project"]["readme"]):
        shutil.copy(ROOT / name, copy / name)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("ntool-*.whl")
    return found


def test_wheel_has_only_our_names(wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as z:
        tops = {name.split("/")[0] for name in z.namelist()}
    assert tops == {"ntool", f"ntool-{version}.dist-info", f"ntool-{version}.data"}


def test_wheel_has_every_module_and_the_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
    for module in modules():
        assert f"{import_name(module.parent).replace('.', '/')}/{module.name}" in names
    demo = [p for p in (ROOT / "lib/demo/shapes").iterdir() if p.is_file()]
    assert len(demo) >= 12
    for path in [*demo, *(ROOT / "lib").rglob("*.schema.json")]:
        assert f"ntool/{path.relative_to(ROOT)}" in names
    shares = {name.split(".data/data/")[1] for name in names if ".data/" in name}
    assert shares == {
        "share/bash-completion/completions/ntool.bash",
        "share/zsh/site-functions/_ntool",
        "share/fish/vendor_completions.d/ntool.fish",
        *(f"share/man/man1/{page.name}" for page in (ROOT / "man").iterdir()),
    }


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 15_000_000


def test_unpacked_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        z.extractall(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(python("-c", "import ntool; print(ntool.__file__)").strip()).parent == (
        tmp_path / "ntool"
    )
    assert python("-m", "ntool", "--version") == f"ntool {wheel.name.split('-')[1]}\n"
    assert '"tensors":154' in python("-m", "ntool", "census", "demo:shapes")
    found = (
        "import importlib.util as u; print([u.find_spec(n) for n in ('lib', 'cli', 'commands')])"
    )
    assert python("-c", found) == "[None, None, None]\n"


def test_nothing_else_is_importable_here(tmp_path: Path) -> None:
    """Nor in this environment, which may be an editable install."""
    found = (
        "import importlib.util as u; print([u.find_spec(n) for n in ('lib', 'cli', 'commands')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", found], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[None, None, None]\n"
