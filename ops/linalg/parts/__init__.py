"""The ops of linear algebra: each factorization by LAPACK, with its gradient; shared checks.

Not here: what users call.
"""
