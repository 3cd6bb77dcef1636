"""Checkpoints from checkpoints: planned from headers, written by shards, whole or not at all."""
