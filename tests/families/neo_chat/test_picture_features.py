"""Pictures from their files to features, by ntool's own preprocessing and exported vision tower."""

from __future__ import annotations

import numpy as np
import pytest

from ntool.lib.families.neo_chat import processor
from ntool.lib.sampling.image import load_image

from .golden_cases import CASES, COMPONENT, close, load_case
from .graph_session import run_component


@pytest.mark.parametrize("run", ["vqa", "edit_4_dual"])
@pytest.mark.parametrize("name", CASES)
def test_features_of_a_given_picture(name: str, run: str) -> None:
    case = load_case(name)
    args = case.runs[run]["args"]
    (file,) = args.get("images") or [args["image"]]
    picture = load_image(case.folder / "inputs" / file)
    rows, grid = processor.preprocess(picture, args["min_pixels"], args["max_pixels"])
    feeds = {"pixel_values": rows, "grid_hw": np.array([grid])}
    found = run_component(name, "vision_encoder", feeds)["image_features"]
    close(found, case.golden(run)["vision_features"], COMPONENT)
