# SPDX-License-Identifier: Apache-2.0
"""Configurations round-trip, refuse what they do not know, and pick their exporter."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.export import Dim

from transporters import AutoExportConfig, AutoExporter, DynamoConfig, DynamoExporter, register_backend
from transporters.errors import ConfigError, MissingBackendError, UsageError
from transporters.exporters import auto

names = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=8)
dimensions = st.one_of(
    st.sampled_from(["auto", "static", "dynamic", None]),
    st.fixed_dictionaries({"name": names, "min": st.integers(1, 4), "max": st.integers(8, 64)}),
)
shapes = st.dictionaries(names, st.dictionaries(st.integers(0, 4).map(str), dimensions, max_size=3), max_size=3)


@given(shapes=st.none() | shapes, allow=st.lists(names, max_size=3), skip=st.lists(names, max_size=2))
def test_round_trip_through_dict_and_json(shapes, allow, skip):
    config = DynamoConfig(dynamic_shapes=shapes, allow_static=allow, skip_workarounds=skip)
    assert DynamoConfig.from_dict(config.to_dict()) == config
    assert DynamoConfig.from_json(config.to_json()) == config
    assert AutoExportConfig.from_dict(json.loads(config.to_json())) == config


def test_dims_and_hints_become_json():
    spec = {"x": {0: Dim("batch", min=2, max=8), 1: Dim.AUTO, 2: None}}
    plain = DynamoConfig(dynamic_shapes=spec).to_dict()["dynamic_shapes"]
    assert plain == {"x": {"0": {"name": "batch", "min": 2, "max": 8}, "1": "auto", "2": None}}


@pytest.mark.parametrize(
    ("key", "nearest"), [("dynamic_shape", "dynamic_shapes"), ("dinamic", "dynamic"), ("skip", "skip_workarounds")]
)
def test_an_unknown_key_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=key) as caught:
        DynamoConfig.from_dict({key: True})
    assert repr(nearest) in caught.value.advice
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "values",
    [
        {"dynamic": "yes"},
        {"dynamic_shapes": [1]},
        {"skip_workarounds": "all"},
        {"allow_static": [1]},
        {"dynamic": False, "dynamic_shapes": {"x": {0: "auto"}}},
    ],
)
def test_wrong_values_are_refused(values):
    with pytest.raises(ConfigError):
        DynamoConfig.from_dict(values)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_text_that_is_no_configuration(text):
    with pytest.raises(ConfigError):
        DynamoConfig.from_json(text)


def test_the_format_picks_the_classes():
    for name in ("torch", "dynamo", "pt2"):
        config = AutoExportConfig.from_dict({"export_format": name, "dynamic": False})
        assert config == DynamoConfig(dynamic=False)
    assert isinstance(AutoExporter.from_config(config), DynamoExporter)
    assert isinstance(AutoExporter.from_config({"export_format": "torch"}), DynamoExporter)
    assert isinstance(AutoExporter.from_format("torch"), DynamoExporter)


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(UsageError, match="'trch'") as caught:
        AutoExporter.from_format("trch")
    assert "'torch'" in caught.value.advice
    with pytest.raises(ConfigError, match="no 'export_format'"):
        AutoExportConfig.from_dict({"dynamic": True})
    with pytest.raises(ConfigError, match="is not DynamoConfig's"):
        DynamoConfig.from_dict({"export_format": "onnx"})


def test_unknown_workarounds_to_skip_are_refused():
    with pytest.raises(UsageError, match="no workaround is called") as caught:
        DynamoExporter().export(torch.nn.Linear(2, 2).eval(), {}, {"skip_workarounds": ["model:_patch_dynamic_rop"]})
    assert "model:_patch_dynamic_rope" in caught.value.advice


THIRD_PARTY = '''
    from dataclasses import dataclass
    from typing import ClassVar
    from transporters.exporters.configs import DynamoConfig
    from transporters.exporters.exporter_dynamo import DynamoExporter
    from transporters.runners.torch_runner import TorchRunner

    @dataclass
    class UpperConfig(DynamoConfig):
        export_format: ClassVar[str] = "upper"
        loud: bool = True

    class UpperExporter(DynamoExporter):
        export_format: ClassVar[str] = "upper"
        config_class = UpperConfig

    class UpperRunner(TorchRunner):
        """Another runtime."""
'''


@pytest.mark.model
def test_a_third_party_adds_a_format(tmp_path, monkeypatch):
    (tmp_path / "upper_backend.py").write_text(textwrap.dedent(THIRD_PARTY))
    monkeypatch.syspath_prepend(tmp_path)
    where = {"config": "upper_backend:UpperConfig", "exporter": "upper_backend:UpperExporter"}
    register_backend("upper", **where, runner="upper_backend:UpperRunner")
    try:
        with pytest.raises(ConfigError, match="registered already"):
            register_backend("upper", **where, runner="upper_backend:UpperRunner")
        assert "upper_backend" not in sys.modules, "nothing is imported before its use"
        config = AutoExportConfig.from_dict({"export_format": "upper", "loud": False})
        model = torch.nn.Linear(3, 2).eval()
        exported = AutoExporter.from_config(config).export(model, {"input": torch.rand(2, 3)}, config)
        assert exported.export_format == "upper"
        assert type(exported.runner).__name__ == "UpperRunner"
        assert exported.verify().verified
    finally:
        auto.unregister_backend("upper")
    with pytest.raises(UsageError):
        AutoExporter.from_format("upper")


@pytest.mark.parametrize("path", ["no_colon", "a:b:c"])
def test_a_format_needs_dotted_strings(path):
    with pytest.raises(ConfigError, match="module:Name"):
        register_backend("thing", config=path, exporter=path, runner=path)


def test_a_backend_outside_its_range_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(DynamoExporter, "requires", ("torch>=99",))
    with pytest.raises(MissingBackendError, match="torch>=99 is needed") as caught:
        DynamoExporter().export(torch.nn.Linear(2, 2).eval(), {"input": torch.rand(1, 2)})
    assert "pip install 'transporters[torch]'" in caught.value.advice


def test_another_exporters_configuration_is_refused():
    class Other:
        pass

    with pytest.raises(ConfigError, match="takes a DynamoConfig, not a Other"):
        DynamoExporter().export(torch.nn.Linear(2, 2).eval(), {}, Other())
