# SPDX-License-Identifier: Apache-2.0
"""Time series: seasonal curves of the past, with the time features that forecasting models want."""

from __future__ import annotations

import math
from typing import Any

import torch

from .request import SampleRequest

#: Length of the past where the config tells none.
DEFAULT_CONTEXT = 32


def history(request: SampleRequest, made: dict[str, Any]) -> dict[str, Any]:
    """``past_values`` ``(batch, time[, channels])`` float, with its mask and features where they have no default.

    The past is as long as the context and the lags that the model looks back by.
    """
    if not request.needs("past_values"):
        return {}
    lags = request.find("lags_sequence", default=())
    length = int(request.find("context_length", default=DEFAULT_CONTEXT)) + max(lags, default=0)
    channels = int(request.find("num_input_channels", "input_size", default=1))
    several = channels > 1 or request.find("num_input_channels") is not None
    values = _curves(request, length, channels)
    found: dict[str, Any] = {"past_values": values if several else values[..., 0]}
    if request.takes("past_time_features"):
        found["past_time_features"] = _calendar(request, length)
        found["past_observed_mask"] = torch.ones_like(found["past_values"])
    if request.needs("past_values_padding"):
        found["past_values_padding"] = torch.zeros(request.batch, length, dtype=torch.int64)
    if request.needs("freq"):
        found["freq"] = torch.zeros(request.batch, 1, dtype=torch.int64)
    ahead = request.find("prediction_length")
    if request.takes("future_values", "future_time_features") and ahead and request.needs("past_time_features"):
        if request.class_name.endswith("Model"):  # there its decoder reads them; a head takes its loss of them
            future = _curves(request, int(ahead), channels)
            found["future_values"] = future if several else future[..., 0]
        found["future_time_features"] = _calendar(request, int(ahead))
    return found


def _curves(request: SampleRequest, length: int, channels: int) -> torch.Tensor:
    """``(batch, length, channels)``: a trend with two seasons on it."""
    time = torch.linspace(0, 1, length).reshape(1, length, 1)
    level, trend, phase = (request.uniform(request.batch, 1, channels) for _ in range(3))
    season = torch.sin(2 * math.pi * (4 * time + phase)) + 0.3 * torch.sin(2 * math.pi * (11 * time + level))
    return 2 + level + trend * time + 0.5 * season


def _calendar(request: SampleRequest, length: int) -> torch.Tensor:
    """``(batch, length, features)``: positions in periods of different lengths, in ±0.5."""
    count = int(request.find("num_time_features", default=0)) or 1
    steps = torch.arange(length).reshape(length, 1)
    periods = torch.arange(count) + 7
    return ((steps % periods) / periods - 0.5).expand(request.batch, length, count).clone()
