"""The profiler as it is called: `profile()`, the commands, magics, `top`."""
