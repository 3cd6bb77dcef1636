"""Routed experts of mixture-of-experts checkpoints: how they are stored. Standard library only.

What is decided here comes from names and shapes of headers; the config is used to cross-check, and
where half of a group is absent or a layout fits both ways.
"""
