"""What goes along a sequence: recurrent networks, attention.

Public ops are the files of this folder. `parts` has the ops that they are made of, `cpu` kernels
that go through a whole sequence in one instruction.
Not here: layers (`flowvm.nn.modules`), scans of single numbers (`rows`).
"""
