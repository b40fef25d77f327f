# SPDX-License-Identifier: Apache-2.0
"""Special tokens of a shrunk vocabulary: equal ids stay equal, different ones stay different."""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(
    r"(?!num_|max_|min_|samples_per|.*_per_token).*(_token_id|_token_ids|_token_index|_token_idx|token_id|_token|pad_idx|_id)"
)
#: What small ids may be: a config's own ids up to here are left as they are.
SMALL = 12


class TokenMap:
    """Where the special tokens go. One map serves a whole tree of configs."""

    def __init__(self, size: int, taken: set[int]) -> None:
        self._free = [token for token in range(size - 1, SMALL, -1) if token not in taken]
        self._places: dict[int, int] = {}
        self._size = size

    def place(self, token: int) -> int:
        """The id that a special token has in the small vocabulary."""
        if token < SMALL or (token < self._size and token not in self._places.values() and token not in self._free):
            return token
        if token not in self._places:
            if not self._free:
                raise ValueError(f"{len(self._places)} special tokens do not fit into a vocabulary of {self._size}.")
            self._places[token] = self._free.pop(0)
        return self._places[token]


def is_token(name: str, value: Any) -> bool:
    """Whether a value is the id of a special token, or a list of them."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_token(name, entry) for entry in value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0 and bool(_NAME.fullmatch(name))
