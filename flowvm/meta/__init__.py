"""What is known of a tensor without its values: element type, device, shape and strides, layout,
placement.

Here: records that never change, and the rules for mixing them. Not here: tensors, memory, anything
that is issued; only errors and guards lie below. `meta.py` has what a tensor on one rank is,
`global_meta.py` what a global one is.
"""
