# SPDX-License-Identifier: Apache-2.0
"""What a verification found, as plain data: a verdict per output, variation by variation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

#: Verdicts of one output. "tie" means that integer outputs differ only where eager's own scores tie.
PASSING = ("equal", "close", "tie")


@dataclass(frozen=True)
class OutputCheck:
    """One output of one variation, compared with eager.

    Attributes:
        name: Dotted output name (``last_hidden_state``, ``cache.layers.0.keys``).
        verdict: "equal", "close", "tie", "mismatch" or "structure".
        shape: Eager's shape.
        dtype: Eager's dtype without the ``torch.`` prefix.
        max_abs: Largest absolute difference; None when not comparable.
        max_rel: Largest difference relative to the largest magnitude of eager's output.
        mismatched: Elements outside the tolerance.
        total: Elements compared.
        atol: Absolute tolerance that was applied.
        rtol: Relative tolerance that was applied.
        detail: What a failing verdict means, in one sentence.
    """

    name: str
    verdict: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    mismatched: int = 0
    total: int = 0
    atol: float = 0.0
    rtol: float = 0.0
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the output counts as eager's."""
        return self.verdict in PASSING


@dataclass(frozen=True)
class Variation:
    """One set of inputs that the artifact and eager were both run on.

    Attributes:
        name: What changed against the sample ("sample", "batch 3", "left padding"…).
        status: "verified", "mismatch", "run error" or "not applicable" (eager itself refuses these inputs).
        shapes: Input leaf name to its shape.
        outputs: A check per output.
        detail: The runtime's or eager's own error when there was one.
        seconds: Wall time of the runtime's run.
    """

    name: str
    status: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: tuple[OutputCheck, ...] = ()
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class BisectionStep:
    """One rung of the ladder from eager to the runtime: whether outputs still equal eager's there."""

    name: str
    passed: bool
    max_abs: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Bisection:
    """Where a mismatch begins.

    Attributes:
        variation: Name of the variation that was bisected.
        steps: Rungs in order (eager, patched eager, program, each stage, runtime).
        first_stage: Name of the first rung that deviates, empty when none does.
        first_submodule: Dotted name of the first submodule whose output deviates, empty when unknown.
    """

    variation: str
    steps: tuple[BisectionStep, ...] = ()
    first_stage: str = ""
    first_submodule: str = ""


@dataclass
class Report:
    """The verification of one artifact.

    Attributes:
        model: Class name of the model.
        export_format: "torch", "onnx", "executorch" or a third party's.
        variations: One entry per set of inputs.
        run: The export's record (`ExportRun.to_dict`).
        shape_contract: The rows of `ShapeContract.to_dict`.
        bisection: Where the first mismatch begins, when there was one.
        files: File name to size in bytes, when the artifact is on disk.
        created: UTC time, ISO 8601.
    """

    model: str
    export_format: str
    variations: list[Variation] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)
    shape_contract: list[dict[str, Any]] = field(default_factory=list)
    bisection: Bisection | None = None
    files: dict[str, int] = field(default_factory=dict)
    created: str = ""

    @property
    def verified(self) -> bool:
        """True when the first variation, which is the sample, is equal to eager, and so are all others that ran.

        The sample of a part ("encoder: sample") must have run, too.
        """
        ran = [v for v in self.variations if v.status != "not applicable"]
        samples = [v for v in self.variations if v is self.variations[0] or v.name.endswith(": sample")]
        return bool(ran) and all(v.status == "verified" for v in (*samples, *ran))

    @property
    def status(self) -> str:
        """ "verified", or the status of the first variation that is not."""
        if self.verified:
            return "verified"
        return next((v.status for v in self.variations if v.status not in ("verified", "not applicable")), "not run")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"status": self.status, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Inverse of `to_dict`."""
        fields = {key: value for key, value in data.items() if key != "status"}
        fields["variations"] = [_variation(row) for row in data["variations"]]
        if data.get("bisection"):
            steps = tuple(BisectionStep(**step) for step in data["bisection"]["steps"])
            fields["bisection"] = Bisection(**{**data["bisection"], "steps": steps})
        return cls(**fields)


def _variation(row: dict[str, Any]) -> Variation:
    outputs = tuple(OutputCheck(**{**check, "shape": tuple(check["shape"])}) for check in row["outputs"])
    shapes = {name: tuple(shape) for name, shape in row["shapes"].items()}
    return Variation(**{**row, "outputs": outputs, "shapes": shapes})
