# SPDX-License-Identifier: Apache-2.0
"""Keeps the output of upstream libraries off the screen until somebody wants it.

torch, transformers and the runtimes write to the process's file descriptors from Python, from loggers and from C++.
While `captured` is in force both descriptors lead to a temporary file, and the command writes to the screen through
its own copies of them.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TextIO


@dataclass(frozen=True)
class Streams:
    """The command's own way to the screen, and what others wrote meanwhile.

    Attributes:
        out: Standard output, for results only.
        err: Standard error, for progress and messages.
        sink: Where the output of everybody else goes; None when it is passed through to standard error.
    """

    out: TextIO
    err: TextIO
    sink: IO[bytes] | None

    def noise(self, lines: int = 40) -> str:
        """The last lines that others wrote, without progress bars."""
        if self.sink is None:
            return ""
        _flush()
        self.sink.seek(0)
        text = self.sink.read().decode("utf-8", errors="replace")
        self.sink.seek(0, os.SEEK_END)
        settled = [line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
        return "\n".join([line for line in settled if line and "%|" not in line][-lines:])


@contextmanager
def captured(*, passthrough: bool = False) -> Iterator[Streams]:
    """Redirect descriptors 1 and 2 away from the screen for the time of the block.

    Args:
        passthrough: Show what others write, on standard error; standard output stays free for the command's result.
    """
    with ExitStack() as stack:
        _flush()
        out = _own(sys.stdout, 1, stack)
        err = _own(sys.stderr, 2, stack)
        sink = None if passthrough else stack.enter_context(tempfile.TemporaryFile())
        target = 2 if sink is None else sink.fileno()
        for descriptor in (1, 2):
            stack.callback(_restore, descriptor, os.dup(descriptor))
            os.dup2(target, descriptor)
        stack.callback(_flush)
        if err is not sys.stderr and not faulthandler.is_enabled():  # a crash in C++ must not end in the sink unseen
            faulthandler.enable(err)
            stack.callback(faulthandler.disable)
        yield Streams(out, err, sink)


def _own(stream: TextIO, descriptor: int, stack: ExitStack) -> TextIO:
    """A text stream to where ``stream`` leads now, which a later redirection does not move."""
    try:
        backed = stream.fileno() == descriptor
    except (OSError, ValueError):  # a stream in memory has no descriptor, so nothing moves it
        backed = False
    if not backed:
        return stream
    copy = os.fdopen(os.dup(descriptor), "w", encoding=stream.encoding, errors="replace", buffering=1)
    return stack.enter_context(copy)


def _restore(descriptor: int, saved: int) -> None:
    os.dup2(saved, descriptor)
    os.close(saved)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
