"""A deep copy of a sibling's config; the sibling is reached as a module."""

import copy
from copy import deepcopy

import formkit.extending_patch_gen_config as sibling
import formkit.first_patch_gen_config
import patchgen

config = deepcopy(sibling.config)
config.target_file = "patched_copied.py"
config.exclude_from_output("Copied")
other = copy.deepcopy(config)
other.exclude.clear()
config.add_helper(formkit.first_patch_gen_config.later)
fresh = patchgen.PatchConfig(
    source_module=config.source_module, target_file="patched_fresh.py", exclude=list(config.exclude)
)
override = fresh.override_method
register = fresh.override_method("Gate.forward")


@register
def gate(self):
    return self


@override("Gate.width")
def width(self):
    return self
