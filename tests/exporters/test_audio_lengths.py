# SPDX-License-Identifier: Apache-2.0
"""What stands in for loops over the lengths of audio equals those loops, at the odd lengths too."""

from __future__ import annotations

import pytest
import torch
from transformers.models.encodec.modeling_encodec import EncodecConv1d

from transporters.exporters.workarounds.model.audio_chunks import pieces
from transporters.exporters.workarounds.model.causal_paddings import padded
from transporters.exporters.workarounds.model.row_statistics import row_statistics


def test_statistics_of_rows_are_those_of_slices():
    states = torch.randn(7, 5, 3)
    lengths = torch.tensor([5, 4, 9, 1, 0, -2, -9])
    mean, deviation = row_statistics(states, lengths)
    for row, length in enumerate(lengths):
        frames = states[row, :length]
        torch.testing.assert_close(mean[row], frames.mean(0), equal_nan=True)
        torch.testing.assert_close(deviation[row], frames.std(0), equal_nan=True)


@pytest.mark.parametrize("mode", ["reflect", "constant", "replicate"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 20])
@pytest.mark.parametrize(
    ("stride", "left", "right"), [(1, 6, 0), (1, 3, 3), (4, 4, 0), (4, 2, 2), (1, 0, 0), (2, 0, 0)]
)
def test_padding_is_that_of_the_model(mode, length, stride, left, right):
    states = torch.randn(2, 3, length)
    more = -length % stride
    expected = EncodecConv1d._pad1d(states, (left, right + more), mode=mode)
    torch.testing.assert_close(padded(states, stride, left, right, mode), expected)


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_pieces_are_those_of_a_split(size):
    lengths = [9, 1, 0, 8, 3]
    expected = [len(piece) for length in lengths if length for piece in torch.arange(length).split(size)]
    assert pieces(torch.tensor(lengths), size).tolist() == expected
