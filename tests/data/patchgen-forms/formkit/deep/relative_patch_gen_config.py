"""Relative imports at several levels, star imports, packages."""

from patchgen.patch_spec import *

from . import bodies, listed
from . import shown as from_package
from .. import extending_patch_gen_config as up
from ..first_patch_gen_config import settings as first

config = PatchConfig("kit.modeling_mini", target_file="patched_relative.py")
config.override_method("Model.one", replacement=listed)
config.override_method("Model.two", replacement=from_package)
config.override_method("Model.three", replacement=bodies.unlisted)
config.additional_imports.extend(up.config.additional_imports)
config.helpers.append(first.helpers[0])
