"""flowvm's version, where every layer can have it."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
