# SPDX-License-Identifier: Apache-2.0
"""How long do the stages on the way to ExecuTorch take, and do they take in proportion to a model's depth?

Tiny Llamas that differ in their number of layers are exported with the workarounds that save time, and, with
``--without``, right after that without them. Seconds of the processor, one thread: another program on the machine does
not count.

    python benchmarks/executorch_stages.py [--layers 8 16 30] [--without] [--limit 1.5]

Prints a Markdown table; the exit code is 1 when a layer of the deepest model takes longer to lower than ``limit`` × a
layer of the shallowest.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from transporters import ExecutorchExporter
from transporters.exporters import run

#: Column to the stages that it adds up.
COLUMNS = {
    "trace": ("Dynamic shapes",),
    "decompose": ("ExecuTorch patches",),
    "lower": ("Lower",),
    "plan": ("Plan",),
}

#: Those that change nothing but the time.
SAVE_TIME = ("executorch:_patch_idle_passes", "executorch:_patch_known_values", "executorch:_patch_order_of_nodes")


def tiny_llama(layers: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """A narrow model and its inputs."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=128,
    )
    inputs = {"input_ids": torch.randint(0, 128, (2, 10)), "attention_mask": torch.ones(2, 10, dtype=torch.long)}
    return LlamaForCausalLM(config).eval(), inputs


def measure(layers: int, skip: tuple[str, ...] = ()) -> tuple[dict[str, float], bytes]:
    """Seconds by column, and the program."""
    model, inputs = tiny_llama(layers)
    with mock.patch.object(run.time, "perf_counter", time.process_time):
        exported = ExecutorchExporter().export(model, inputs, {"skip_workarounds": list(skip)})
    seconds: dict[str, float] = {}
    for stage in exported.run.stages:
        seconds[stage.name] = seconds.get(stage.name, 0) + stage.seconds
    columns = {column: sum(seconds[stage] for stage in stages) for column, stages in COLUMNS.items()}
    return columns, bytes(exported.program["pte"])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 16, 30])
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--limit", type=float, default=1.5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure(1)  # imports
    print(f"| layers | workarounds | {' | '.join(COLUMNS)} | lower, per layer |")
    print("|---|---|" + "---|" * (len(COLUMNS) + 1))
    per_layer = []
    for layers in sorted(arguments.layers):
        programs = []
        for name, skip in [("on", ()), ("off", SAVE_TIME)][: 1 + arguments.without]:
            seconds, program = measure(layers, skip)
            programs.append(program)
            cells = " | ".join(f"{value:.1f} s" for value in seconds.values())
            print(f"| {layers} | {name} | {cells} | {seconds['lower'] / layers:.2f} s |", flush=True)
            if not skip:
                per_layer.append(seconds["lower"] / layers)
        if len(set(programs)) > 1:
            print(f"{layers} layers: the programs differ", file=sys.stderr)
            return 1
    grown = per_layer[-1] / per_layer[0]
    print(f"\na layer of the deepest takes {grown:.2f} x the time of a layer of the shallowest")
    return int(grown > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
