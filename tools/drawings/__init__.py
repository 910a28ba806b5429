"""Drawings of docs/how-it-works, made from the code: `python -m tools.drawings [folder]`."""
