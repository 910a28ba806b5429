"""A CUDA device without one: a driver whose functions are Python."""
