"""Routed experts of mixture-of-experts checkpoints: how they are stored, and stored otherwise.

The standard library is enough, but for turning matrices. What is decided here comes from names and
shapes of headers; the config is used to cross-check, and where half of a group is absent or a
layout fits both ways.
"""
