# SPDX-License-Identifier: Apache-2.0
"""For how many model classes is there a tiny model that runs?

Every class of the zoo is built, given its sample and run once in eager mode, one after the other in one process of one
thread. A class counts when its model has fewer than two million parameters, takes the sample and gives finite outputs.
The rest is listed with its causes, the most frequent first; causes that differ in numbers and names only are one.

    python benchmarks/zoo_builds.py [--least 0.97] [--only PATTERN]

The exit code is 1 when the share is below ``--least``.
"""

from __future__ import annotations

import argparse
import collections
import gc
import logging
import re
import sys
import time
import warnings

import torch

from transporters import zoo
from transporters.zoo import outcomes, unbuildable


def cause(name: str, fault: str) -> str:
    """The written cause of a class, else what it said, without its own numbers and names."""
    known = unbuildable.UNBUILDABLE.get(name)
    return known if known is not None else re.sub(r"\d+", "#", fault.replace(name, "…"))[:140]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--least", type=float, default=0.97)
    parser.add_argument("--only", default="", help="a regular expression for class names")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    names = [entry.name for entry in zoo.classes() if re.search(options.only, entry.name)]
    gc.collect()
    gc.freeze()  # thousands of classes are not to be searched through again and again
    start = time.perf_counter()
    faults: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        fault = outcomes.outcome(name)
        if fault:
            faults[cause(name, fault)].append(name)
    built = len(names) - sum(map(len, faults.values()))
    print(f"{built} of {len(names)} classes ({built / len(names):.2%}) in {time.perf_counter() - start:.0f} s\n")
    for text, those in sorted(faults.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"- {len(those)} × {text}\n  {', '.join(those)}")
    return 0 if built >= options.least * len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
