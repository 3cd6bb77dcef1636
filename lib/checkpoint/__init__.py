"""Checkpoints: strict header readers, index files, sources. Standard library only."""
