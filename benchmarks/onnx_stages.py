# SPDX-License-Identifier: Apache-2.0
"""How long do the stages on the way to ONNX take beside the trace, and does optimizing ever take longer than it?

Every model is exported a few times; the stages of one export run one after the other on the same machine, so each
ratio is of two times of the same export. Every other export leaves the decomposition to torch, which traces the whole
program anew: the column "torch's decompose". One thread.

    python benchmarks/onnx_stages.py [--repeats 3] [--limit 1.0] [--only NAME …]

Prints a Markdown table of medians; the exit code is 1 when optimizing a model takes longer than ``limit`` × its trace.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from transporters import OnnxExporter
from transporters.exporters import decomposition, exporter_onnx
from transporters.inputs.samples import sample_inputs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # the tiny models live with the tests

NAMES = ("bert", "llama", "mixtral", "mamba", "t5", "swin", "detr", "segformer", "rt_detr", "d_fine", "mask2former")

#: Column to the stages that it adds up.
COLUMNS = {
    "decompose": ("ONNX patches", "FX node fixes"),
    "translate": ("ONNX translations",),
    "optimize": ("ONNX IR fixes",),
}


@dataclass(frozen=True)
class Row:
    """Medians over the repeats.

    Attributes:
        name: The model.
        nodes: Nodes of the finished graph.
        trace: Seconds of the trace.
        ratios: Column to its time as a multiple of the trace's.
    """

    name: str
    nodes: int
    trace: float
    ratios: dict[str, float]


def measure(name: str, repeats: int) -> Row:
    """Export a model ``repeats`` times, after once to warm up."""
    from tiny import build  # type: ignore[import-not-found]

    model = build(name)
    inputs = sample_inputs(model)
    exported = OnnxExporter().export(model, inputs)
    runs, left_to_torch = [], []
    for _ in range(repeats):
        exported = OnnxExporter().export(model, inputs)
        runs.append({stage.name: stage.seconds for stage in exported.run.stages})
        with patch.object(exporter_onnx, "decompose", decomposition._retraced):
            by_torch = OnnxExporter().export(model, inputs)
        left_to_torch.append({stage.name: stage.seconds for stage in by_torch.run.stages})

    def ratio(times: list[dict[str, float]], stages: tuple[str, ...]) -> float:
        return statistics.median(sum(run[stage] for stage in stages) / run["Dynamic shapes"] for run in times)

    ratios = {"torch's decompose": ratio(left_to_torch, COLUMNS["decompose"])}
    ratios |= {column: ratio(runs, stages) for column, stages in COLUMNS.items()}
    trace = statistics.median(run["Dynamic shapes"] for run in runs)
    return Row(name, len(exported.program.graph), trace, ratios)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=NAMES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("torch's decompose", *COLUMNS)
    print(f"| model | nodes | trace | {' | '.join(f'{column} / trace' for column in columns)} |")
    print("|---|---|---|" + "---|" * len(columns))
    slow = []
    for name in arguments.only:
        row = measure(name, arguments.repeats)
        print(
            f"| {row.name} | {row.nodes} | {row.trace:.2f} s | {' | '.join(f'{r:.2f}' for r in row.ratios.values())} |"
        )
        if row.ratios["optimize"] > arguments.limit:
            slow.append(name)
    if slow:
        print(f"optimizing takes longer than {arguments.limit} × the trace: {', '.join(slow)}", file=sys.stderr)
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
