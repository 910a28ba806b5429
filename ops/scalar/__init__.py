"""Scalar functions of one element, and the constants that they need.

Here: functions of numbers (`functions` has the table), the parts of numbers they are made of, the
16-bit floats as LLVM code. Each is plain Python that any kernel, on any device, may call.
Not here: anything that knows of tensors, memory or loops.
"""
