"""What a config module works with, and the plan that either way of loading makes of it.

`PatchConfig` and the records that it keeps are the interface of existing config modules: names,
defaults and the order of parameters are given (docs/patchgen.md, "Configs"). A `Plan` is what the
rest of this package works with: plain data, the same whether the config was run or read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

from ..errors import InputError

REGISTRARS = frozenset(
    (
        "replace_class",
        "override_method",
        "replace_function",
        "modify_init",
        "add_helper",
        "add_helper_after",
    )
)
"""Methods of PatchConfig that serve as decorators; they are no part of what is generated."""


class PatchType(Enum):
    """Kinds of patches; the values are shown in headers and findings."""

    CLASS_REPLACEMENT = "class_replacement"
    METHOD_OVERRIDE = "method_override"
    FUNCTION_REPLACEMENT = "function_replacement"
    ADDITIONAL_IMPORT = "additional_import"
    INIT_MODIFICATION = "init_modification"


@dataclass(frozen=True)
class Code:
    """A class or function by the place of its definition.

    Attributes:
        file: absolute path.
        line: of `class` or `def` itself, below decorators; from 1.
        name: as defined there.
        module: dotted name of the file's module.
    """

    file: str
    line: int
    name: str
    module: str


@dataclass
class Patch:
    """One registered patch.

    Attributes:
        replacement: a class, a function or `Code`; None for an external one.
        source_module: module of the replacement.
        replacement_source: `MODULE.NAME` of an external replacement.
        name_map: text of the replacement -> text in the output.
    """

    patch_type: PatchType
    target: str
    replacement: Any
    source_module: str | None = None
    description: str | None = None
    replacement_source: str | None = None
    name_map: Mapping[str, str] | None = None


@dataclass
class ImportSpec:
    """An import to add: `from module import names`, or `import module [as alias]`."""

    module: str
    names: list[str] | None = None
    alias: str | None = None
    is_from_import: bool = True


@dataclass
class PositionedHelper:
    """A class or function to be copied right after a top-level definition of the source."""

    target: str
    helper: Any
    placement: str = "after"


def _also_spelled(**names: str) -> Callable[[F], F]:
    """A method whose parameters go by other names too: other name -> parameter."""

    def decorated(method: F) -> F:
        @wraps(method)
        def called(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **{names.get(key, key): v for key, v in kwargs.items()})

        return called  # type: ignore[return-value]

    return decorated


F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class PatchConfig:
    """What to change in a source module. The lists may be filled directly."""

    source_module: str
    target_file: str = "patched_modeling.py"
    description: str = ""
    patches: list[Patch] = field(default_factory=list)
    additional_imports: list[ImportSpec] = field(default_factory=list)
    post_import_blocks: list[str] = field(default_factory=list)
    helpers: list[Any] = field(default_factory=list)
    positioned_helpers: list[PositionedHelper] = field(default_factory=list)
    drop_imported_names: set[str] = field(default_factory=set)
    exclude: list[str] = field(default_factory=list)
    transformers_version: str | None = None

    @_also_spelled(target_class="target")
    def replace_class(
        self,
        target: str,
        replacement: Any = None,
        name_map: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Any:
        """Replace a class whole. Without `replacement` a decorator."""
        kind = PatchType.CLASS_REPLACEMENT
        return self._register(kind, target, replacement, name_map, description)

    @_also_spelled(target_method="target")
    def override_method(
        self,
        target: str,
        replacement: Any = None,
        name_map: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Any:
        """Replace or add the method `Class.method`. Without `replacement` a decorator."""
        kind = PatchType.METHOD_OVERRIDE
        return self._register(kind, target, replacement, name_map, description)

    @_also_spelled(target_func="target")
    def replace_function(
        self,
        target: str,
        replacement: Any = None,
        name_map: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Any:
        """Replace a module-level function whole. Without `replacement` a decorator."""
        kind = PatchType.FUNCTION_REPLACEMENT
        return self._register(kind, target, replacement, name_map, description)

    @_also_spelled(target_class="target")
    def modify_init(self, target: str, description: str | None = None) -> Any:
        """Decorator: a function that gets the class's `__init__` first. Reported as not applied."""
        return self._register(PatchType.INIT_MODIFICATION, target, None, None, description)

    def add_import(
        self,
        module: str,
        names: list[str] | None = None,
        alias: str | None = None,
        is_from_import: bool = True,
    ) -> None:
        """Add `from module import names` (`*` without names) or `import module [as alias]`."""
        self.additional_imports.append(ImportSpec(module, names, alias, is_from_import))

    def drop_import_names(self, *names: str) -> None:
        """Leave these names out of the source's imports."""
        self.drop_imported_names.update(names)

    @_also_spelled(block="text")
    def add_post_import_block(self, text: str) -> None:
        """Add code after the imports."""
        self.post_import_blocks.append(text)

    @_also_spelled(func="obj")
    def add_helper(self, obj: Any = None) -> Any:
        """Copy a class or function after the imports. Also a decorator, with or without `()`."""
        if obj is None:
            return self.add_helper
        self.helpers.append(obj)
        return obj

    @_also_spelled(helper="obj")
    def add_helper_after(self, target: str, obj: Any = None) -> Any:
        """Copy a class or function after a definition. Without `obj` a decorator."""

        def add(helper: Any) -> Any:
            self.positioned_helpers.append(PositionedHelper(target, helper))
            return helper

        return add if obj is None else add(obj)

    def exclude_from_output(self, *names: str) -> None:
        """Leave out top-level classes and functions."""
        self.exclude.extend(names)

    def get_patches_for_target(self, target: str) -> list[Patch]:
        """Patches of a definition, those of its methods included."""
        return [p for p in self.patches if p.target == target or p.target.startswith(target + ".")]

    def get_class_replacements(self) -> dict[str, Patch]:
        """Target -> the last patch of this kind."""
        return self._of(PatchType.CLASS_REPLACEMENT)

    def get_method_overrides(self) -> dict[str, Patch]:
        """Target -> the last patch of this kind."""
        return self._of(PatchType.METHOD_OVERRIDE)

    def get_function_replacements(self) -> dict[str, Patch]:
        """Target -> the last patch of this kind."""
        return self._of(PatchType.FUNCTION_REPLACEMENT)

    def get_init_modifications(self) -> dict[str, Patch]:
        """Target -> the last patch of this kind."""
        return self._of(PatchType.INIT_MODIFICATION)

    def _of(self, kind: PatchType) -> dict[str, Patch]:
        return {p.target: p for p in self.patches if p.patch_type == kind}

    def _register(
        self,
        kind: PatchType,
        target: str,
        replacement: Any,
        name_map: Mapping[str, str] | None,
        description: str | None,
    ) -> Callable[[Any], Any] | None:
        def add(obj: Any) -> Any:
            text = description or default_description(kind, target, name_of(obj))
            self.patches.append(Patch(kind, target, obj, module_of(obj), text, name_map=name_map))
            return obj

        if replacement is None:
            return add
        add(replacement)
        return None


def default_description(kind: PatchType, target: str, name: str) -> str:
    """What a patch without a description says of itself."""
    if kind is PatchType.METHOD_OVERRIDE:
        return f"Override {target}"
    if kind is PatchType.INIT_MODIFICATION:
        return f"Modify {target}.__init__"
    return f"Replace {target} with {name}"


def create_patch_from_external(
    target: str,
    replacement_module: str,
    replacement_name: str,
    patch_type: PatchType = PatchType.CLASS_REPLACEMENT,
    description: str | None = None,
) -> Patch:
    """A patch that puts `from replacement_module import replacement_name as target` in place."""
    text = description or f"Replace {target} with {replacement_name} from {replacement_module}"
    source = f"{replacement_module}.{replacement_name}"
    return Patch(patch_type, target, None, replacement_module, text, replacement_source=source)


def name_of(obj: Any) -> str:
    """Name of a class, a function or `Code`."""
    return obj.name if isinstance(obj, Code) else str(getattr(obj, "__name__", type(obj).__name__))


def module_of(obj: Any) -> str | None:
    """Module of a class, a function or `Code`."""
    return obj.module if isinstance(obj, Code) else getattr(obj, "__module__", None)


@dataclass(frozen=True)
class External:
    """A class or function of another module, imported under the target's name."""

    module: str
    name: str


@dataclass(frozen=True)
class PlannedPatch:
    """A patch of a plan.

    Attributes:
        replacement: where its text is, or what is imported instead.
        name_map: pairs, in the order given.
    """

    kind: PatchType
    target: str
    replacement: Code | External
    description: str
    name_map: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PlannedImport:
    """An import to add. `names` None: all (`*`), or the module itself."""

    module: str
    names: tuple[str, ...] | None
    alias: str | None
    is_from_import: bool


@dataclass(frozen=True)
class Plan:
    """A config as plain data.

    Attributes:
        file: absolute path of the config; `module` its dotted name, `variable` the config's name.
        version: text for the header, or None.
        after: (top-level name of the source, helper) in the order given.
        dropped: names of imports, sorted.
    """

    file: str
    module: str
    variable: str
    source_module: str
    target_file: str
    description: str
    version: str | None
    patches: tuple[PlannedPatch, ...]
    imports: tuple[PlannedImport, ...]
    blocks: tuple[str, ...]
    helpers: tuple[Code, ...]
    after: tuple[tuple[str, Code], ...]
    dropped: tuple[str, ...]
    excluded: tuple[str, ...]


_LISTS: dict[str, tuple[str, ...]] = {
    "patches": ("patch_type", "target", "replacement"),
    "additional_imports": ("module", "names", "alias", "is_from_import"),
    "post_import_blocks": (),
    "helpers": (),
    "positioned_helpers": ("target", "helper"),
    "drop_imported_names": (),
    "exclude": (),
}
"""Field of a config -> what each of its elements has."""


def plan_of(
    config: Any, file: str, module: str, variable: str, locate: Callable[[Any], Code]
) -> Plan:
    """The plan of a config.

    Args:
        config: a PatchConfig, or one of the reference tool with the same fields.
        locate: gives the place of a class or function; `Code` never reaches it.
    Raises:
        InputError: a field has the wrong type, or a replacement cannot be located.
    """
    where = f"{file}: {variable}"

    def place(obj: Any) -> Code:
        return obj if isinstance(obj, Code) else locate(obj)

    def text(value: Any, what: str) -> str:
        if not isinstance(value, str):
            raise InputError(f"{where}: {what}", found=repr(value), expected="text")
        return value

    def patch(p: Any) -> PlannedPatch:
        target = text(p.target, "target of a patch")
        try:
            kind = PatchType(getattr(p.patch_type, "value", p.patch_type))
        except ValueError as e:
            raise InputError(f"{where}: kind of the patch of {target}: {e}") from e
        replacement: Code | External
        if p.replacement is None:
            source = text(getattr(p, "replacement_source", None), f"replacement of {target}")
            replacement = External(*source.rpartition(".")[::2])
        else:
            replacement = place(p.replacement)
        given = getattr(p, "name_map", None) or {}
        pairs = dict(given) if isinstance(given, Mapping) else {"": ""}
        if "" in pairs or any(not isinstance(x, str) for pair in pairs.items() for x in pair):
            raise InputError(f"{where}: name_map of {target}", expected="text to text, none empty")
        name = replacement.name
        return PlannedPatch(
            kind,
            target,
            replacement,
            str(p.description or default_description(kind, target, name)),
            tuple(pairs.items()),
        )

    def imported(spec: Any) -> PlannedImport:
        names = spec.names
        if isinstance(names, str):
            raise InputError(f"{where}: names of {spec.module}", found=names, expected="a list")
        return PlannedImport(
            text(spec.module, "module of an import"),
            tuple(text(n, f"name of {spec.module}") for n in names) if names else None,
            None if spec.alias is None else text(spec.alias, f"alias of {spec.module}"),
            bool(spec.is_from_import),
        )

    for name, attributes in _LISTS.items():
        values = getattr(config, name)
        if not isinstance(values, list | tuple | set | frozenset):
            found = type(values).__name__
            raise InputError(f"{where}: {name}", found=found, expected="a list")
        for value in values:
            if not all(hasattr(value, a) for a in attributes):
                expected = f"something with {', '.join(attributes)}"
                raise InputError(f"{where}: {name}", found=repr(value), expected=expected)
    target_file = text(config.target_file, "target_file")
    wrong = target_file in ("", ".", "..") or target_file.endswith(".diff")
    wrong |= not target_file.endswith(".py") or len(target_file.encode(errors="replace")) > 250
    if wrong or {"/", "\\"} & {*target_file} or not target_file.isprintable():
        raise InputError(f"{where}: target_file", found=target_file, expected="name of a .py file")
    for helper in config.positioned_helpers:
        if getattr(helper, "placement", "after") != "after":
            expected = "'after'"
            raise InputError(f"{where}: placement", found=helper.placement, expected=expected)
    version = config.transformers_version
    return Plan(
        file=file,
        module=module,
        variable=variable,
        source_module=text(config.source_module, "source_module"),
        target_file=target_file,
        description=str(config.description or ""),
        version=None if version is None else text(version, "transformers_version"),
        patches=tuple(map(patch, config.patches)),
        imports=tuple(map(imported, config.additional_imports)),
        blocks=tuple(text(b, "post-import block") for b in config.post_import_blocks),
        helpers=tuple(map(place, config.helpers)),
        after=tuple(
            (text(h.target, "anchor of a helper"), place(h.helper))
            for h in config.positioned_helpers
        ),
        dropped=tuple(sorted(text(n, "dropped name") for n in config.drop_imported_names)),
        excluded=tuple(dict.fromkeys(text(n, "excluded name") for n in config.exclude)),
    )
