# SPDX-License-Identifier: Apache-2.0
"""Complex numbers and Fourier transforms."""

from __future__ import annotations

import torch
from onnx_operations import Make, case, real


def faint(*shape: int) -> Make:
    """Small values: the rounding errors of a transform are those of its largest results, not of each result."""
    return lambda: torch.randn(shape) / 128


@case(x=real(2, 5, 3, 8))
def rotary_product(x: torch.Tensor) -> torch.Tensor:
    angles = torch.arange(x.shape[1])[:, None] * torch.arange(x.shape[3] // 2) * 0.1
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn[:, None]).flatten(3).type_as(x)


@case(x=real(3, 4))
def complex_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.complex(x, x.flip(0))
    return z.real, z.imag, z.abs(), z.angle(), torch.view_as_real(z.conj().resolve_conj()), torch.view_as_real(-z)


@case(x=real(3, 4, 2))
def complex_arithmetic(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = torch.view_as_complex(x), torch.view_as_complex(x.flip(1))
    made = a + b, a - b, a * b, a / b, a * 2.0, a * a.conj()
    return tuple(torch.view_as_real(z.resolve_conj()) for z in made)


@case(x=real(3, 4, 2), y=real(4, 2, 2))
def complex_movement(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = torch.view_as_complex(x), torch.view_as_complex(y)
    views = a[:, 1:], a[0], a[:, -1], a[:, None].expand(-1, 2, -1), a.T, a.reshape(-1), a.unsqueeze(-1)
    made = torch.cat((a, a), 1), a.sum(1), torch.stack((a, a)), a @ b
    return tuple(torch.view_as_real(z.contiguous()) for z in (*views, *made))


@case(x=faint(3, 9))
def rfft(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.fft.rfft(x), torch.fft.rfft(x, norm="ortho"), torch.fft.rfft(x, dim=0, norm="forward")
    return *(torch.view_as_real(z) for z in made), made[0].abs()


@case(x=faint(3, 9))
def irfft(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.fft.rfft(x)
    n = x.shape[1]
    return torch.fft.irfft(z, n=n), torch.fft.irfft(z), torch.fft.irfft(z, n=n, norm="ortho")


@case(x=faint(3, 8))
def fft(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.complex(x, x.flip(0))
    made = torch.fft.fft(z), torch.fft.ifft(z), torch.fft.fft(z, norm="ortho"), torch.fft.fft(z, dim=0)
    return tuple(torch.view_as_real(w) for w in (*made, torch.fft.fft(x)))


@case(x=faint(2, 6, 5))
def fft2(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.fft.fft2(x), torch.fft.rfft2(x), torch.fft.fftn(x, dim=(0, 1)), torch.fft.fft(torch.fft.fft(x), dim=1)
    return *(torch.view_as_real(w) for w in made), torch.fft.irfft2(made[1], s=x.shape[-2:]), made[0].real


@case(x=faint(2, 12))
def fft_convolution(x: torch.Tensor) -> torch.Tensor:
    n = 2 * x.shape[1]
    return torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(x.flip(1), n=n), n=n)[:, : x.shape[1]]


@case(x=real(2, 40))
def stft(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    window = torch.hann_window(16)
    z = torch.stft(x, 16, 4, window=window, return_complex=True)
    return z.abs(), torch.view_as_real(z), torch.stft(x, 8, 2, center=False, return_complex=True, normalized=True).abs()


@case(x=real(2, 40))
def stft_and_back(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(16)
    z = torch.stft(x, 16, 4, window=window, return_complex=True)
    return torch.istft(z, 16, 4, window=window)


@case(x=real(2, 40))
def stft_without_window(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(x, 16, 4, window=torch.ones(16), return_complex=True, onesided=True).abs().pow(2)
