"""The definition of an op: its declaration, its recording and its lowering for each device.

Here: the registry (`op`), elementwise declarations, assemblies of pieces, views and changes in
place, and the few ops that all others are written with (`core`).
`cpu` and `cuda` make a device's kernels of what an op answers.
Not here: a family of ops. Those have rooms beside this one, and import it.
"""
