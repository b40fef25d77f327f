# SPDX-License-Identifier: Apache-2.0
"""Features of as many images as there are come back as eager gives them: a list with one tensor for each."""

from __future__ import annotations

import pytest
import torch

from transporters import AutoExporter
from transporters.inputs.samples import sample_inputs
from transporters.zoo import build


@pytest.mark.model
def test_any_number_of_images() -> None:
    model = build("LlavaModel")
    exported = AutoExporter.from_format("torch").export(model, sample_inputs(model))
    for count in (1, 3):
        given = sample_inputs(model, batch=count, seed=1)
        with torch.no_grad():
            expected = model(**given)
        found = exported(**given)
        assert len(found.image_outputs.pooler_output) == len(expected.image_outputs.pooler_output) == count
        for actual, wanted in zip(found.image_outputs.pooler_output, expected.image_outputs.pooler_output, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-4)
