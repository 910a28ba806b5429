"""An op on the CPU: kernels from expressions and from bodies, and how they walk through operands.

Here: code generation, plans of tiles, the walk through them, moves between arrangements, and
kernels run block by block.
Not here: kernels of one family of ops; those are in the family's `cpu`.
"""
