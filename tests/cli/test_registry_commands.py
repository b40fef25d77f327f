# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from transporters.exporters import registry
from transporters.exporters.exporter_dynamo import DynamoExporter


@pytest.fixture
def workaround() -> Iterator[str]:
    @registry.register_patch("dynamo", "math.floor", why="the [floor] is wet", issue="unreported", needed="torch>=2")
    def _patch_floor_for_a_test(original):
        """Mop up."""
        return original

    name = "dynamo:_patch_floor_for_a_test"
    yield name
    registry.unregister(name)


def test_workarounds_are_listed(command, workaround):
    outcome = command("workarounds", "list")
    assert outcome.code == 0
    assert workaround in outcome.out
    assert "The [floor] is wet." in outcome.out
    found = command("workarounds", "list", "--json").document["workarounds"]
    assert next(row for row in found if row["id"] == workaround) == {
        "id": workaround,
        "backend": "dynamo",
        "kind": "patch",
        "targets": ["math.floor"],
        "why": "the [floor] is wet",
        "issue": "unreported",
        "needed": "torch>=2",
        "doc": "Mop up.",
    }


def test_the_list_can_be_narrowed_to_a_backend(command, workaround):
    here = command("workarounds", "list", "--backend", "dynamo", "--json").document["workarounds"]
    elsewhere = command("workarounds", "list", "--backend", "onnx", "--json").document["workarounds"]
    assert workaround in [row["id"] for row in here]
    assert workaround not in [row["id"] for row in elsewhere]


def test_one_workaround_is_explained(command, workaround):
    outcome = command("workarounds", "show", workaround)
    assert outcome.code == 0
    for words in ("patch", "math.floor", "The [floor] is wet.", "unreported", "torch>=2", "Mop up."):
        assert words in outcome.out
    assert command("workarounds", "show", workaround, "--json").document["id"] == workaround


def test_an_unknown_workaround_gets_the_nearest_name(command, workaround):
    outcome = command("workarounds", "show", workaround.replace("floor", "flor"))
    assert outcome.code == 2
    assert workaround in outcome.err


def test_stages_are_shown_in_order(command):
    rows = command("stages", "torch", "--json").document["stages"]
    assert tuple(row["name"] for row in rows) == DynamoExporter.stages
    assert all(row["does"] for row in rows)
    shown = command("stages", "torch").out
    assert [shown.index(name) for name in DynamoExporter.stages] == sorted(
        shown.index(n) for n in DynamoExporter.stages
    )


def test_an_unknown_format_is_wrong_use(command):
    outcome = command("stages", "tensorrt")
    assert outcome.code == 2
    assert "tensorrt" in outcome.err
    assert "torch" in outcome.err
