"""More odd files of the kinds in tests/data/hostile, made in code: other offsets, other fields,
nested places, other encodings."""
