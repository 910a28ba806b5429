"""NVIDIA's driver and libraries: functions by address, results, contexts, streams.

Not here: kernels and their compiler; what users call (`flowvm.cuda`).
"""
