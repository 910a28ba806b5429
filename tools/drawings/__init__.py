"""Drawings of docs/architecture, made from the code: `python -m tools.drawings [folder]`."""
