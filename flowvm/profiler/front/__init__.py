"""The profiler as it is called: `profile()`, the commands, magics, `top`.

Not here: what is shown (`views`) and what is computed (`analysis`).
"""
