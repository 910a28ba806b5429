"""flowvm: a deep learning framework in pure Python, eager first, around a virtual machine that schedules instructions."""
