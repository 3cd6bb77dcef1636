"""The version, alone in a file that imports nothing, so that the build can read it."""

VERSION = "0.1.0"
