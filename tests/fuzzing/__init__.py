"""Readers of untrusted files, fed with bytes that nobody wrote: `python -m tests.fuzzing`."""
