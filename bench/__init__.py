"""Benchmarks: `python -m bench` from the root of a checkout. They print a table."""
