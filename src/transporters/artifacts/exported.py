# SPDX-License-Identifier: Apache-2.0
"""`ExportedModel`: a program together with all that is known of it; run it, verify it, save it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import RunError, UsageError
from ..exporters import auto
from ..exporters import preparers as preparing
from ..exporters.preparers import Preparer
from ..exporters.run import ExportRun
from ..exporters.shapes import ShapeContract
from ..trees import containers, pytrees
from . import manifest as manifests
from . import samples
from .storage import whole_folder

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec
    from transformers import PreTrainedModel

    from ..exporters.base import Finished
    from ..exporters.configs import ExportConfig
    from ..verification.report import Report

#: Resolved on use, because verification imports artifacts and not the other way round.
_VERIFY = "transporters.verification.verify:verify"

#: Resolved on use, for the same reason.
_GENERATOR = "transporters.generation.generator:generator"
_EAGER_PART = "transporters.generation.export:eager_part"


@dataclass
class ExportedModel:
    """A model as a program of another runtime.

    Attributes:
        export_format: "torch", "onnx", "executorch" or a third party's.
        program: The backend's own object (for "torch" a `torch.export.ExportedProgram`).
        run: What was done to the model: stages with times, workarounds that fired, findings, versions.
        contract: A row per input axis.
        model_class: `module:qualname` of the model's class.
        inputs: Name, dtype and symbolic shape of every input leaf, in the program's order.
        outputs: The same of every output leaf.
        output_spec: Tree that puts the outputs into eager's structure.
        constants: Arguments that are baked in.
        preparers: They compute further inputs from the caller's whenever the program runs.
        sample_inputs: What the program was made from, as the caller would pass it.
        export_config: The export's configuration as a dict.
        model: The eager model, where there is one in this process.
        model_config: The model's own configuration.
        report: The last verification.
        task: Name of the task, where known.
        source: Where the model came from, where known.
        folder: Where the artifact is, once it was saved or loaded.
        cache_contract: For a program made by `Exporter.export_for_generation`: what it keeps between two steps, per
            layer (`transporters.generation.cache_contract`).
        generation_config: The model's own defaults for `generate`, where it has some.
        parts: Further programs of the same model in the same folder, by name: the encoder that runs before a decoder.
        part: For such a program its name.
        file: Where the program is in the folder, when that is not the format's own place.
    """

    export_format: str
    program: Any
    run: ExportRun
    contract: ShapeContract
    model_class: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    output_spec: TreeSpec
    constants: dict[str, Any] = field(default_factory=dict)
    preparers: tuple[Preparer, ...] = ()
    sample_inputs: dict[str, Any] = field(default_factory=dict)
    export_config: dict[str, Any] = field(default_factory=dict)
    model: PreTrainedModel | None = None
    model_config: Any = None
    report: Report | None = None
    task: str | None = None
    source: dict[str, str | None] | None = None
    folder: Path | None = None
    cache_contract: dict[str, Any] | None = None
    generation_config: Any = None
    parts: dict[str, ExportedModel] = field(default_factory=dict)
    part: str | None = None
    file: str | None = None
    rungs: dict[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict, repr=False)
    _runner: Any = field(default=None, repr=False)

    @classmethod
    def from_export(cls, export_format: str, finished: Finished, run: ExportRun, config: ExportConfig) -> ExportedModel:
        """Wrap what an exporter handed over."""
        prepared = finished.prepared
        return cls(
            export_format=export_format,
            program=finished.program,
            run=run,
            contract=finished.contract,
            model_class=containers.type_name(type(prepared.model)),
            inputs=list(finished.inputs),
            outputs=list(finished.outputs),
            output_spec=finished.output_spec,
            constants=prepared.constants,
            preparers=prepared.preparers,
            sample_inputs=prepared.given,
            export_config=config.to_dict(),
            model=prepared.model,
            model_config=getattr(prepared.model, "config", None),
            rungs=finished.rungs,
        )

    def __call__(self, **inputs: Any) -> Any:
        """Run the program in its own runtime.

        Args:
            inputs: The forward arguments of the model by name, as the eager model takes them. They are not changed.

        Returns:
            The outputs in the structure that the eager model gives.

        Raises:
            RunError: When an argument is missing, unknown, or differs from a baked-in constant, or when the runtime
                refuses the inputs.
        """
        given = self._checked(inputs)
        leaves = self.runner.run(self.complete_inputs(given))
        outputs = pytrees.rebuild(leaves, self.output_spec)
        for preparer in self.preparers:
            outputs = preparer.after(self.model_config, given, outputs)
        return outputs

    def generate(self, inputs: Any = None, **arguments: Any) -> Any:
        """Continue texts by the program, in its own runtime, with Transformers' ``generate``.

        Behind an encoder a text is written anew: the encoder's program runs once, and the decoder's in steps.

        Args:
            inputs: Token ids ``(batch, length)`` int64, as ``input_ids``; or what else the encoder takes.
            arguments: As Transformers' ``GenerationMixin.generate`` takes them: ``attention_mask``,
                ``max_new_tokens``, ``do_sample``, ``num_beams``, …. ``cache`` continues an earlier text: what
                ``return_dict_in_generate=True`` gives as ``cache``.

        Returns:
            What Transformers' ``generate`` returns: ids ``(batch, length)``, or its output object.

        Raises:
            UsageError: The program was not made by `Exporter.export_for_generation`.
            RunError: The runtime refuses a step.
        """
        return auto.load_object(_GENERATOR)(self).generate(inputs, **arguments)

    def complete_inputs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the program itself takes: private copies in its order, with what the preparers compute."""
        complete = dict(given)
        for preparer in self.preparers:
            complete = preparer.before(self.model_config, self._model_type(), complete)
        return self._bound(complete)

    @property
    def runner(self) -> Any:
        """The program, loaded in its runtime; made on first use."""
        if self._runner is None:
            self._runner = auto.runner_class(self.export_format)(self.program, self.inputs, self.outputs)
        return self._runner

    def reload(self) -> None:
        """Have the program loaded anew when it runs next: nothing of earlier runs is left in it."""
        self._runner = None

    def verify(self, *, model: Any = None, observer: Callable[[Any], None] | None = None) -> Report:
        """Run the artifact in its runtime against eager, on the sample and on variations of it.

        Args:
            model: The eager model; by default the one the program was made from.
            observer: Called with each variation's result.

        Raises:
            UsageError: When there is no eager model in this process and none is given.
        """
        report: Report = auto.load_object(_VERIFY)(self, model=model, observer=observer)
        self.report = report
        return report

    @property
    def manifest(self) -> dict[str, Any]:
        """What ``export.json`` says, but for the list of files."""
        return {
            "export_format": self.export_format,
            "model_class": self.model_class,
            "task": self.task,
            "source": self.source,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "shape_contract": self.contract.to_dict(),
            "constants": self.constants,
            "preparers": preparing.describe(self.preparers),
            "containers": sorted(
                {*pytrees.container_names_of(self.output_spec), *samples.container_names(self.sample_inputs)}
            ),
            "output_spec": pytrees.dumps(self.output_spec),
            "samples": samples.describe(self.sample_inputs),
            "config": self.export_config,
            **({"cache_contract": self.cache_contract} if self.cache_contract else {}),
            **({"file": self.file} if self.file else {}),
            **({"parts": {name: part.manifest for name, part in self.parts.items()}} if self.parts else {}),
            **self.run.to_dict(),
            "program": self.runner.describe(),
            "verification": self.report.to_dict() if self.report else None,
        }

    def save(
        self,
        directory: str | Path,
        *,
        assets: Iterable[Any] = (),
        extra_files: Mapping[str, Path | str] | None = None,
        source: dict[str, str | None] | None = None,
        task: str | None = None,
    ) -> Path:
        """Write the artifact into a folder, which appears whole or not at all.

        Args:
            directory: The folder. An artifact that stands there is replaced; anything else is refused.
            assets: Objects with ``save_pretrained`` (tokenizer, processor) to write beside the program.
            extra_files: Relative name to a file to copy, or to the text to write.
            source: Where the model came from, so that the artifact can be verified later.
            task: Name of the task.

        Raises:
            UsageError: When ``directory`` is something else than an artifact.
            ArtifactError: When it cannot be written.
        """
        target = Path(directory)
        self.task = task or self.task
        self.source = source or self.source
        with whole_folder(target) as folder:
            for program in (self, *self.parts.values()):
                program._write_program(folder)
            if self.model_config is not None:
                self.model_config.save_pretrained(folder)
            if self.generation_config is not None:
                self.generation_config.save_pretrained(folder)
            for asset in assets:
                asset.save_pretrained(folder)
            for name, content in (extra_files or {}).items():
                samples.place(folder, name, content)
            files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
            manifests.write(folder, {**self.manifest, "files": files})
        for program in (self, *self.parts.values()):
            program.folder = target
        return target

    @classmethod
    def load(cls, directory: str | Path) -> ExportedModel:
        """Read an artifact back; its program runs without the model's weights being loaded a second time.

        Raises:
            ArtifactError: When the folder is missing, incomplete, damaged, or of a newer schema.
        """
        folder = Path(directory)
        return cls._from_manifest(folder, manifests.read(folder))

    @classmethod
    def _from_manifest(cls, folder: Path, manifest: Mapping[str, Any], part: str | None = None) -> ExportedModel:
        samples.register_containers(manifest["containers"])
        file = {"file": manifest["file"]} if "file" in manifest else {}
        return cls(
            export_format=manifest["export_format"],
            program=auto.runner_class(manifest["export_format"]).read(folder, **file),
            run=ExportRun.from_dict({"backend": "", **manifest}),
            contract=ShapeContract.from_dict(manifest["shape_contract"]),
            model_class=manifest["model_class"],
            inputs=manifest["inputs"],
            outputs=manifest["outputs"],
            output_spec=pytrees.loads(manifest["output_spec"]),
            constants=manifest["constants"],
            preparers=preparing.from_description(manifest["preparers"]),
            sample_inputs=samples.read(folder, manifest.get("samples") or {}, part),
            export_config=manifest.get("config") or {},
            model_config=samples.read_model_config(folder),
            report=samples.read_report(manifest.get("verification")),
            task=manifest.get("task"),
            source=manifest.get("source"),
            folder=folder,
            cache_contract=manifest.get("cache_contract"),
            generation_config=samples.read_generation_config(folder) if "cache_contract" in manifest else None,
            parts={name: cls._from_manifest(folder, of, name) for name, of in manifest.get("parts", {}).items()},
            part=part,
            **file,
        )

    def _write_program(self, folder: Path) -> None:
        file = {"file": self.file} if self.file else {}
        auto.runner_class(self.export_format).write(self.program, folder, **file)
        samples.write(folder, self.sample_inputs, self.part)

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The caller's tensors, with constants checked and absent arguments dropped."""
        names = dict.fromkeys(entry["name"].split(".")[0] for entry in self.inputs)
        given = {}
        for name, value in inputs.items():
            if value is None:
                continue
            if name in self.constants:
                if value != self.constants[name]:
                    raise RunError(
                        f"{name}={value!r}, but the program was made with {name}={self.constants[name]!r}",
                        advice=f"leave {name} out, or export again with {name}={value!r} in the sample inputs",
                    )
            elif name in names or name in self.sample_inputs:
                given[name] = value
            else:
                near = difflib.get_close_matches(name, names, n=1)
                raise RunError(
                    f"the program takes no input {name!r}",
                    advice=f"did you mean {near[0]!r}?" if near else f"its inputs are: {', '.join(names)}",
                )
        missing = [name for name in self.sample_inputs if name not in given]
        if missing:
            raise RunError(
                f"the input {missing[0]!r} is missing", advice=f"the program takes: {', '.join(self.sample_inputs)}"
            )
        return given

    def _bound(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Private copies in the program's order; the runtime may write into what it is given."""

        def copy(_: str, leaf: Any) -> Any:
            return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf

        order = dict.fromkeys(entry["name"].split(".")[0] for entry in self.inputs)
        return {name: pytrees.map_named(copy, inputs[name]) for name in order}

    def _model_type(self) -> type:
        return type(self.model) if self.model is not None else containers.find_type(self.model_class)

    def eager_model(self, model: Any = None) -> Any:
        """The eager model to compare with.

        Raises:
            UsageError: When there is none in this process, or it is of another class than the program's.
        """
        found = model if model is not None else self.model
        if found is None:
            raise UsageError(
                "the eager model is not loaded, so there is nothing to verify against",
                advice="pass model=AutoModel.from_pretrained(…), or `transporters verify DIR --model SOURCE`",
            )
        made_from = found if self.cache_contract is None and self.part is None else getattr(found, "of_model", found)
        if containers.type_name(type(made_from)) != self.model_class:
            raise UsageError(
                f"the program was made from {self.model_class}, not from {containers.type_name(type(made_from))}",
                advice="load the model with the class that it was exported with",
            )
        return auto.load_object(_EAGER_PART)(found, self.part, self.cache_contract, self.export_format)
