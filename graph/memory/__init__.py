"""The memory of a graph: results that may be written in place, and offsets in one chunk.

Not here: taking the memory, which a launch does when it runs (`flowvm.vm.workers`).
"""
