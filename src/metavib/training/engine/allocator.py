"""Memory that is freed stays with the process, where the C library is glibc.

By default glibc gives every large block back to the system when it is freed, so that each activation of each step is
made of new pages, which the kernel must first clear: a third of a Conv4 step on a CPU.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # parameters of mallopt(3)
_NEVER, _PAD = 2**31 - 1, 2**28


def keep_freed_memory() -> bool:
    """Says whether it could be done; elsewhere than on glibc it cannot, and nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no such library, no such function, or no way to ask for either
        return False
    return all(mallopt(*option) for option in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _PAD)))
