"""FP8 checkpoints: which scale belongs to which weight, and what is wrong with a pair."""
