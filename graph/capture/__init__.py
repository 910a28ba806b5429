"""Capture: code run once under a lazy interpreter, and the instructions kept."""
