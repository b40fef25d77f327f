# SPDX-License-Identifier: Apache-2.0
"""The contract of an exporter: what every backend's class has, and the one way through it."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .. import versions
from ..errors import ConfigError, MissingBackendError
from .auto import load_object
from .configs import ExportConfig
from .prepare import Prepared
from .registry import find_workaround
from .run import ExportRun, StageRecord
from .shapes import ShapeContract

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec
    from transformers import PreTrainedModel

    from ..artifacts.exported import ExportedModel

#: Resolved when an export ends, because artifacts import exporters and not the other way round.
_ARTIFACT = "transporters.artifacts.exported:ExportedModel"

#: Resolved on use, for the same reason.
_GENERATION = "transporters.generation.export:export_for_generation"


@dataclass
class Finished:
    """What an exporter hands over.

    Attributes:
        program: The backend's own object.
        prepared: The model and the sample it was made from.
        contract: A row per input axis.
        inputs: Name, dtype and symbolic shape per input leaf, in the program's order.
        outputs: The same per output leaf.
        output_spec: Tree that puts the outputs into eager's structure.
        rungs: Name to a callable of the inputs, for the bisection of a mismatch, in pipeline order.
    """

    program: Any
    prepared: Prepared
    contract: ShapeContract
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    output_spec: TreeSpec
    rungs: dict[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)


class Exporter(ABC):
    """Turns a model and sample inputs into a program for one runtime.

    Attributes:
        export_format: Name that configurations take.
        backend: Name that workarounds are registered for.
        stages: The stages, in run order, as the banners in the source name them.
        requires: Requirement strings that must hold.
    """

    export_format: ClassVar[str]
    backend: ClassVar[str]
    stages: ClassVar[tuple[str, ...]]
    config_class: ClassVar[type[ExportConfig]]
    requires: ClassVar[tuple[str, ...]] = ()

    def export(
        self,
        model: PreTrainedModel,
        sample_inputs: Mapping[str, Any],
        config: ExportConfig | Mapping[str, Any] | None = None,
        *,
        observer: Callable[[StageRecord], None] | None = None,
    ) -> ExportedModel:
        """Export ``model``, leaving it, its configuration and the inputs as they are.

        Args:
            model: In evaluation mode, weights loaded. Weights are referenced by the program, never copied.
            sample_inputs: Forward arguments by name. Sizes of 1 may be dynamic too.
            config: Configuration of this exporter's class, or its dict form; the defaults when None.
            observer: Called with each stage's record when it starts and when it ends.

        Raises:
            UsageError: ``config.skip_workarounds`` names no workaround.
            MissingBackendError: The backend's package is absent or unsupported.
            InputError: The model or the inputs cannot be exported as they are.
            FrozenAxisError: An axis froze that was asked to be dynamic and that the model leaves free.
            ExportError: A stage failed; the error names it.
        """
        self.check_environment()
        settings = self._settings(config)
        for workaround_id in settings.skip_workarounds:
            find_workaround(workaround_id)
        run = ExportRun(self.backend, skipped=tuple(settings.skip_workarounds), observer=observer)
        finished = self.run_stages(model, sample_inputs, settings, run)
        return load_object(_ARTIFACT).from_export(self.export_format, finished, run, settings)  # type: ignore[no-any-return]

    def export_for_generation(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Any] | None = None,
        config: ExportConfig | Mapping[str, Any] | None = None,
        *,
        observer: Callable[[StageRecord], None] | None = None,
    ) -> ExportedModel:
        """Export a model that writes text, with its cache, for `ExportedModel.generate`.

        A causal language model becomes one graph. It takes any number of new tokens (from 1), of cached ones (from 0)
        and of rows, with padding on the left by ``attention_mask`` and ``position_ids``. An encoder with a decoder
        becomes two: the decoder's, with the encoder's among its ``parts``. A decoder that reads pictures becomes three:
        that, with the vision encoder and the embeddings among its parts. The caller's model is left as it is.

        ExecuTorch's program has its cache inside, for one text at a time, and takes ``tokens`` and ``input_pos`` as
        ExecuTorch's own runner of language models gives them. Behind an encoder it also takes what the encoder's
        program gave: the keys and values of the states.

        Args:
            model: A ``…ForCausalLM``, an encoder with a decoder, or a decoder that reads pictures, in evaluation mode.
            inputs: A text for the sample, ``input_ids`` ``(batch, length)`` or what the encoder takes, with a picture
                in each row for a model that reads some; made from the configuration when None.
            config: As for `export`.
            observer: As for `export`.

        Raises:
            InputError: The model keeps no cache, or one of a kind that is not known; the message names the layer. Or it
                does more with pictures than to put their features among the embeddings.
            UsageError: The format cannot do this with such a model yet: ExecuTorch where the model reads pictures, or
                cannot go on from a cache inside of the program.
            TransportersError: As `export`.
        """
        found: ExportedModel = load_object(_GENERATION)(self, model, inputs, config, observer=observer)
        return found

    @abstractmethod
    def run_stages(
        self, model: PreTrainedModel, sample_inputs: Mapping[str, Any], config: Any, run: ExportRun
    ) -> Finished:
        """All stages, in order."""

    def check_environment(self) -> None:
        """Check the installed packages.

        Raises:
            MissingBackendError: Naming the requirement that does not hold, and the extra that brings it.
        """
        for requirement in self.requires:
            if not versions.holds(requirement):
                name = re.split(r"[<>=!~ ]", requirement)[0]
                raise MissingBackendError(
                    f"{requirement} is needed, {versions.installed(name) or 'nothing'} is installed",
                    backend=self.backend,
                    advice=f"pip install 'transporters[{self.export_format}]'",
                )

    @classmethod
    def stage_docs(cls) -> list[tuple[str, str]]:
        """Each stage with what it does, read from the numbered list in the exporter module's docstring."""
        text = inspect.getdoc(inspect.getmodule(cls)) or ""
        items = re.findall(r"^\d+\. \*\*(.+?)\*\*: (.+?)(?=^\d+\. \*\*|^\S|\Z)", text, flags=re.M | re.S)
        return [(name, " ".join(body.split())) for name, body in items]

    def _settings(self, config: ExportConfig | Mapping[str, Any] | None) -> ExportConfig:
        if config is None:
            return self.config_class()
        if isinstance(config, Mapping):
            return self.config_class.from_dict(dict(config))
        if not isinstance(config, self.config_class):
            raise ConfigError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, not a {type(config).__name__}",
                advice="AutoExporter.from_config picks the exporter that fits a configuration",
            )
        return config
