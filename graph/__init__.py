"""Captured graphs: the layer between autograd and nn.

`capturing` records what Python code issues as a LogicalGraph, without running it; `interpret` runs
one node by node.
"""
