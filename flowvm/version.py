"""flowvm's version, where every layer can have it."""

VERSION = "0.1.0"
