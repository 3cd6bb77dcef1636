"""Runs of verify-package look at every output, of bound sessions too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ntool.lib.package.small_run import Watched
from ntool.lib.runtime.session import Session, Settings


def test_outputs_are_looked_at(demo_package: Path) -> None:
    told: list[tuple[str, str]] = []
    session = Session(demo_package / "image_gen_embedding" / "model.onnx", Settings(threads=1))
    watched = Watched("image_gen_embedding", session, lambda *words: told.append(words))
    z = np.zeros((1, 3, 64, 64), np.float32)
    feeds = {"z": z, "timestep": np.zeros(1, np.float32), "noise_scale": np.ones(1, np.float32)}
    room = session.room("inputs_embeds", watched.run(feeds)["inputs_embeds"].shape)
    bound = watched.bind(feeds, {"inputs_embeds": room})
    bound.run()
    watched.run(feeds, keep=True)
    watched.run(feeds, keep={"inputs_embeds"})
    assert told == []
    z[:] = np.nan
    bound.run()
    bound.feed("z", z)
    bound.run()
    for keep in (False, True, {"inputs_embeds"}):
        watched.run(feeds, keep=keep)
    assert told == [("image_gen_embedding", "inputs_embeds")] * 5
