# SPDX-License-Identifier: Apache-2.0
"""How fast does SmolLM2 write one token after another: eager PyTorch, our ONNX graph, and the graph of GenAI's builder?

All in float32 on the CPU, one text, greedy, two threads. Each side reads a prompt of ``past`` tokens, and then the
tokens that follow are timed one by one; the sides take turns, round by round. Our graph runs twice: in the loop of
`ExportedModel.generate` (Transformers' ``forward`` call for call), and in ONNX Runtime GenAI, which also runs the
builder's graph. In GenAI each turn is a process of its own: of two models in one process, the one that was loaded last
is faster, whichever it is.

    python benchmarks/decode_speed.py [--past 128 1024] [--steps 24] [--rounds 3] [--work DIR]

Prints a Markdown table of medians in milliseconds; the exit code is 1 when ours is below 1.5 × eager's speed or below
0.95 × the speed of the builder's graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # the real models live with the tests

THREADS = 2
EAGER, LOOP, GENAI, BUILDER = "eager", "ours, generate", "ours, GenAI", "GenAI's builder"
LIMITS = {EAGER: 1.5, BUILDER: 0.95}

#: Reads a prompt of ids ``(1, past)`` and gives the times of the steps after it, in seconds.
Side = Callable[[torch.Tensor, int], list[float]]


def timed(steps: int, step: Callable[[], None]) -> list[float]:
    """Seconds of each step, after two to warm up."""
    found = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found[2:]


def by_forward(model: Any) -> Side:
    """A model, or a program that stands for one: its forward call with its cache."""

    def side(ids: torch.Tensor, steps: int) -> list[float]:
        with torch.no_grad():
            state = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True, logits_to_keep=1)

            def step() -> None:
                nonlocal ids, state
                token = state.logits[:, -1:].argmax(-1)
                ids = torch.cat([ids, token], dim=1)
                places = torch.full_like(token, ids.shape[1] - 1)
                mask = torch.ones_like(ids)
                state = model(
                    input_ids=token, attention_mask=mask, position_ids=places, cache=state.cache, use_cache=True
                )

            return timed(steps, step)

    return side


def by_genai(folder: Path) -> Side:
    """A folder in ONNX Runtime GenAI, in a process that does nothing else."""

    def side(ids: torch.Tensor, steps: int) -> list[float]:
        task = json.dumps({"ids": ids.tolist(), "steps": steps})
        command = [sys.executable, __file__, "--genai", str(folder)]
        done = subprocess.run(command, check=True, input=task, stdout=subprocess.PIPE, text=True)
        times: list[float] = json.loads(done.stdout.splitlines()[-1])
        return times

    return side


def run_genai(folder: Path) -> None:
    """Read a task, and print the times of a folder in ONNX Runtime GenAI."""
    import onnxruntime_genai as genai

    task = json.loads(sys.stdin.read())
    config = genai.Config(str(folder))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": THREADS}}}}))
    model = genai.Model(config)
    parameters = genai.GeneratorParams(model)
    length = len(task["ids"][0]) + task["steps"] + 8
    parameters.set_search_options(max_length=length, min_length=length)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(task["ids"])
    print(json.dumps(timed(task["steps"], generator.generate_next_token)))


def sides(work: Path) -> dict[str, Side]:
    """Everything that is compared. What ``work`` holds already is not made again."""
    import real_models  # type: ignore[import-not-found]
    from transporters import ExportedModel
    from transporters.generation.generator import generator

    ours, checkpoint, built = work / "ours", work / "checkpoint", work / "builder"
    model = real_models.smollm2().model
    if not ours.is_dir():
        real_models.export_smollm2(ours, "--for", "onnxruntime-genai")
    if not built.is_dir():
        save_plain(model, real_models.smollm2().tokenizer, checkpoint)
        builder = [
            sys.executable,
            "-m",
            "onnxruntime_genai.models.builder",
            "-m",
            str(checkpoint),
            "-i",
            str(checkpoint),
        ]
        options = ["-o", str(built), "-p", "fp32", "-e", "cpu", "--extra_options", "hf_token=false"]
        subprocess.run([*builder, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {
        EAGER: by_forward(model),
        LOOP: by_forward(generator(ExportedModel.load(ours))),
        GENAI: by_genai(ours),
        BUILDER: by_genai(built),
    }


def save_plain(model: Any, tokenizer: Any, folder: Path) -> None:
    """The dequantized weights as an ordinary checkpoint, which the builder wants."""
    config = type(model.config).from_dict({**model.config.to_dict(), "quantization_config": None})
    del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--past", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--genai", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.genai is not None:
        run_genai(arguments.genai)
        return 0
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as temporary:
        compared = sides(arguments.work or Path(temporary))
        print(f"| past | {' | '.join(compared)} | ours / eager | ours / builder |")
        print("|---|" + "---|" * (len(compared) + 2))
        worse = False
        for past in arguments.past:
            ids = torch.randint(100, 40000, (1, past), generator=torch.Generator().manual_seed(0))
            times: dict[str, list[float]] = {name: [] for name in compared}
            for _ in range(arguments.rounds):
                for name, side in compared.items():
                    times[name] += side(ids, arguments.steps)
            medians = {name: statistics.median(found) for name, found in times.items()}
            ratios = [medians[EAGER] / medians[LOOP], medians[BUILDER] / medians[GENAI]]
            worse |= ratios[0] < LIMITS[EAGER] or ratios[1] < LIMITS[BUILDER]
            row = [f"{median * 1000:.1f} ms" for median in medians.values()]
            print(f"| {past} | {' | '.join(row)} | {' | '.join(f'**{ratio:.2f}**' for ratio in ratios)} |")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
