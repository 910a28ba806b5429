"""Metadata of tensors without their values: element type, device, shape and strides, layout,
placement.

Here: immutable records, and the rules for mixing them.  Not here: tensors, memory, anything that is
issued; only errors and guards lie below.  `meta.py` describes a tensor on one rank,
`global_meta.py` a global one.
"""
