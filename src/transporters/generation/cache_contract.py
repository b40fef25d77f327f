# SPDX-License-Identifier: Apache-2.0
"""What a decoder's program keeps between two steps: per layer its kind, and per tensor its name, dtype and shape law.

The law of a size is a number, or one of these, as a function of the number of tokens ``n`` that the program has seen:

- ``batch``: rows;
- ``past``: exactly ``n``;
- ``window``: any number of the last tokens that is at least ``min(n, window - 1)``. The program masks what lies outside
  of the window, so a runner may keep everything, as clients that know one length for all layers do, or crop;
- ``cross``: 0 where a text begins, and after its first step as many as the encoder gave states, which stays so. Where
  the program has its own cache inside (`CacheContract.context`), the encoder's program gives these tensors, under the
  names of outputs; each step takes them, under the names of inputs, and none gives them back.

A state of a convolution or a recurrence has sizes that do not depend on ``n``, and is all zeros for ``n = 0``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

BATCH, PAST, WINDOW, CROSS = "batch", "past", "window", "cross"

#: Groups of tensors: forward argument, and the name under which the next step's values come out.
PRESENT = {"past_key_values": "present", "past_conv": "present_conv", "past_ssm": "present_ssm"}

#: Axis of keys and values that counts tokens.
TOKENS = 2


@dataclass(frozen=True)
class Slot:
    """One tensor of the cache.

    Attributes:
        group: Argument of the program: a key of `PRESENT`.
        path: Its keys under the argument: ``("0", "key")``, ``("3",)``, ``("0", "encoder", "key")``.
        dtype: Name of a torch dtype.
        shape: Per axis a number or one of the laws above.
        window: The window, for the law ``window``.
    """

    group: str
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int | str, ...]
    window: int | None = None

    @property
    def name(self) -> str:
        """Name of the input: ``past_key_values.0.key``."""
        return ".".join((self.group, *self.path))

    @property
    def present(self) -> str:
        """Name of the output: ``present.0.key``."""
        return ".".join((PRESENT[self.group], *self.path))

    @property
    def grows(self) -> bool:
        """Whether it has an entry per token."""
        return PAST in self.shape or WINDOW in self.shape

    def sizes(self, batch: int, length: int = 0, encoded: int = 0) -> tuple[int, ...]:
        """The shape for ``batch`` rows after ``length`` tokens, when it holds no more than it must.

        Args:
            batch: Rows.
            length: Tokens seen.
            encoded: The encoder's states, where there is one.
        """
        kept = length if self.window is None else min(length, self.window - 1)
        known = {BATCH: batch, PAST: length, WINDOW: kept, CROSS: encoded if length else 0}
        return tuple(size if isinstance(size, int) else known[size] for size in self.shape)


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps.

    Attributes:
        kind: ``full``, ``window``, ``linear`` (convolution and recurrence), ``hybrid`` (linear beside attention),
            ``shared`` (the layer reads another layer's, or needs none), ``cross`` (attention to an encoder's states; an
            entry of its own after the ``full`` one of the same layer).
        slots: Its tensors; none for ``shared``.
    """

    kind: str
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True)
class Pictures:
    """What a decoder that takes embeddings gets of pictures.

    Attributes:
        token: Id in whose places their features stand.
        types: Argument that says of each token of the text whether it is of a picture, where the mask depends on it.
        inner: Argument with what is added to the states behind the first layers, where that is done.
        places: Argument of the text model that says in which places.
        layers: Behind how many layers.
    """

    token: int
    types: str | None = None
    inner: str | None = None
    places: str | None = None
    layers: int = 0


@dataclass(frozen=True)
class CacheContract:
    """What all layers keep, in the order of the layers; a layer with an encoder before it has two entries.

    Attributes:
        layers: Each layer's.
        context: For a cache that lies inside of the program, how many tokens it holds, of one text; the program then
            neither takes nor gives the layers' tensors, but for those of an encoder's states, which it takes.
        pictures: For a decoder that takes embeddings, among them those of pictures.
    """

    layers: tuple[LayerCache, ...]
    context: int | None = None
    pictures: Pictures | None = None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every tensor, in the order in which the program takes and returns them."""
        return tuple(s for group in PRESENT for layer in self.layers for s in layer.slots if s.group == group)

    @property
    def inner(self) -> tuple[Slot, ...]:
        """Those of the decoder itself, which lie inside of a program that has a ``context``."""
        return tuple(slot for slot in self.slots if CROSS not in slot.shape)

    @property
    def cross(self) -> tuple[Slot, ...]:
        """Those of the encoder's states."""
        return tuple(slot for slot in self.slots if CROSS in slot.shape)

    @property
    def linear(self) -> list[bool]:
        """Per layer whether it counts no tokens, as Transformers' ``Cache.is_linear`` says it."""
        return [layer.kind == "linear" for layer in self.layers]

    @property
    def has_cross(self) -> bool:
        """Whether there is an encoder before the decoder."""
        return any(layer.kind == "cross" for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, as the manifest keeps it."""
        layers = [{"kind": layer.kind, "tensors": [_plain(s) for s in layer.slots]} for layer in self.layers]
        context = {} if self.context is None else {"context": self.context}
        pictures = {} if self.pictures is None else {"pictures": asdict(self.pictures)}
        return {"layers": layers, **context, **pictures}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CacheContract:
        """Inverse of `to_dict`."""
        layers = [LayerCache(layer["kind"], tuple(map(_slot, layer["tensors"]))) for layer in data["layers"]]
        pictures = Pictures(**data["pictures"]) if "pictures" in data else None
        return cls(tuple(layers), data.get("context"), pictures)


def _plain(slot: Slot) -> dict[str, Any]:
    found = {"input": slot.name, "output": slot.present, "dtype": slot.dtype, "shape": list(slot.shape)}
    return found if slot.window is None else {**found, "window": slot.window}


def _slot(data: dict[str, Any]) -> Slot:
    group, *path = data["input"].split(".")
    return Slot(group, tuple(path), data["dtype"], tuple(data["shape"]), data.get("window"))
