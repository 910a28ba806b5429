"""What the functions of linear algebra are made of: an op for each factorization by LAPACK, with
its gradient, and what they share.

Not here: what users call.
"""
