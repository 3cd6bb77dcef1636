"""ntool: look into, convert, export, run and check big generative models, without PyTorch."""

from .version import VERSION as __version__

__all__ = ["__version__"]
