"""Elements at places that are data: gather, scatter, indexing, masks, order, search, suppression.

Public ops are the files of this folder. `parts` has the ops they are made of; `cpu` and `cuda` have
the kernels.
Not here: slices, whose places are known without looking at data (`shapes`).
"""
