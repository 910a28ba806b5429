"""`flow.backends.openmp`: kernels run on the VM's own threads (`flow.set_num_threads`)."""

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Return False: flowvm does not use OpenMP."""
    return False


__all__ = own_names(globals())
