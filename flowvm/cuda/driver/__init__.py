"""NVIDIA's driver and libraries: functions by address, results, contexts, streams."""
