"""Fourier transforms of complex and real numbers, of frames of a signal, and their frequencies.

`transforms` has those of one and more dimensions and `frequencies` what belongs to their results,
met as `flow.fft.fft` (`flowvm/fft.py`), `frames` those of frames; `cpu` has the kernel.
Not here: convolution, which is computed without them (`planes`).
"""
