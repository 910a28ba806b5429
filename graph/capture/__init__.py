"""Capture: code run once under a recorder, its instructions kept and nothing computed.

Here: the recorder, where a capture ends a segment, what must hold for a capture to serve a call.
Not here: what a graph is (`logical`), and whose modules were called (`flowvm.nn.graph`).
"""
