"""Programs that watch this process: what they cannot do is one error, so that others can stand in for them."""

from __future__ import annotations

import errno
import os

import pytest

from voirkit_instruments import detached
from voirkit_instruments.detached import CannotAttach, attach_program


def test_a_kernel_without_descriptors_of_processes_is_one_that_it_cannot_attach_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Started:
        def has_ended(self, wait_s: float = 0.0) -> bool:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(detached, "start_detached", lambda *_: Started())
    with pytest.raises(CannotAttach, match="not implemented"):
        attach_program(["strace"], "log", {}, lambda _: False, CannotAttach)
