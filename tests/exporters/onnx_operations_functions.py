# SPDX-License-Identifier: Apache-2.0
"""Functions of one value, activations, and special functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from onnx_operations import Make, case, real


def between(low: float, high: float, *shape: int) -> Make:
    """Evenly spread values."""
    return lambda: torch.rand(shape) * (high - low) + low


@case(x=between(-0.95, 0.95, 3, 4))
def special_functions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds = torch.erfinv(x), torch.erf(x), torch.erfc(x), torch.special.expit(x), torch.logit(x.abs() / 2 + 0.1)
    return *kinds, torch.special.log1p(x), torch.expm1(x), torch.sinc(x), torch.special.ndtr(x)


@case(x=between(0.2, 5, 3, 4))
def gammas(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.lgamma(x), torch.digamma(x), torch.special.xlogy(x, x), torch.special.entr(x)


@case(x=real(3, 4))
def trigonometry(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    tame, y = x.tanh(), x.flip(0) + 0.1
    arcs = tame.asin(), tame.acos(), x.atan(), torch.atan2(x, y), tame.atanh(), x.asinh(), (x.abs() + 1).acosh()
    return *arcs, x.sin(), x.cos(), tame.tan(), x.sinh(), x.cosh(), torch.hypot(x, y), torch.deg2rad(x)


@case(x=between(0.1, 4, 3, 4), y=real(3, 4))
def powers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kinds = x**y, x**0.5, y**2, 2.0**y, x.rsqrt(), x.sqrt(), x.reciprocal(), x.log(), x.log2(), x.log10(), y.exp2()
    return *kinds, torch.logaddexp(x, y), torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=2), torch.addcdiv(y, y, x)


@case(x=between(-8, 8, 3, 40))
def activations(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    soft = F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x), F.softplus(x), F.elu(x), F.selu(x), F.celu(x)
    hard = F.relu6(x), F.hardswish(x), F.hardsigmoid(x), F.hardtanh(x), F.leaky_relu(x), F.threshold(x, 0.5, 2.0)
    return *soft, *hard, F.softsign(x), F.logsigmoid(x), F.glu(x), F.softshrink(x), F.hardshrink(x), F.tanhshrink(x)


@case(x=real(3, 4))
def comparisons(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.flip(0)
    signs = torch.sign(x), torch.copysign(x, y), torch.heaviside(x, y), torch.signbit(x)
    return *signs, torch.isclose(x, x + 1e-9), x.clamp(-0.5, 0.5), x.clamp(y)


@case(x=real(3, 4))
def losses(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    kinds = F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y), F.kl_div(x, y.exp())
    return *kinds, F.cross_entropy(x, x.argmax(1)), F.binary_cross_entropy_with_logits(x, y.sigmoid())


@case(x=real(2, 3, 3))
def determinants(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.linalg.det(x), torch.trace(x[0])


@case(x=real(3, 4))
def functional_dropout_is_off(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.dropout(x, 0.5, training=False), torch.nn.Dropout(0.5).eval()(x), F.softmax(x, 1), F.normalize(x, p=1.0)
