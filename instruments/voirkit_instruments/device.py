"""Waiting for the device, so that what a rate counts has really been computed.

Never imports torch and never creates a CUDA context: looks only at what the script has loaded. Checked with torch 2.1
to 2.15.
"""

from __future__ import annotations

import sys


def synchronize() -> None:
    """Wait until the current CUDA device has done all it was given; does nothing where that can not be asked.

    During the capture of a CUDA graph a synchronisation would break the capture, so there is none.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized() and not cuda.is_current_stream_capturing():
            cuda.synchronize()
    except Exception:
        # A forked child, or an error of an earlier kernel: that one is the program's, and it meets it at its own next
        # call.
        return
