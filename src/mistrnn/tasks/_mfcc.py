"""Mel frequency cepstral coefficients, as speech recognition has long used them (Davis & Mermelstein 1980).

(1)  x_t - 0.97 x_{t-1}                                   pre-emphasis
(2)  frames of 25 ms every 10 ms, times a Hamming window
(3)  power spectrum |FFT|^2 / n
(4)  log of 26 triangular bands, equally wide on the mel scale m(f) = 2595 log10(1 + f / 700)
(5)  discrete cosine transform (orthonormal), coefficients 0 to 12, lifted by 1 + 11 sin(pi n / 22)
(6)  coefficient 0 is replaced by the log of the frame's energy, the sum of (3)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW, STEP = 0.025, 0.010
"""Seconds."""
BANDS, COEFFICIENTS, LIFTER, EMPHASIS = 26, 13, 22, 0.97
TINY = np.finfo(np.float64).eps


def mfcc(signal: NDArray[Any], rate: int, lowest: float = 85.0) -> NDArray[np.float64]:  # [frames, 13]
    """Return the log energy and 12 cepstral coefficients of every frame that lies wholly in the signal.

    >>> mfcc(np.sin(np.arange(16_000)), 16_000).shape
    (98, 13)
    """
    width, step = round(WINDOW * rate), round(STEP * rate)
    values = np.asarray(signal, dtype=np.float64)
    if len(values) < width:
        return np.zeros((0, COEFFICIENTS))
    emphasised = np.append(values[0], values[1:] - EMPHASIS * values[:-1])  # (1)
    frames = np.lib.stride_tricks.sliding_window_view(emphasised, width)[::step] * np.hamming(width)  # (2)
    points = 1 << (width - 1).bit_length()
    power = np.abs(np.fft.rfft(frames, points)) ** 2 / points  # (3)
    bands = np.log(np.maximum(power @ _bands(points, rate, lowest).T, TINY))  # (4)
    order = np.arange(COEFFICIENTS)
    cosines = np.cos(np.pi / BANDS * (np.arange(BANDS) + 0.5) * order[:, None]) * np.sqrt(2 / BANDS)
    cosines[0] /= np.sqrt(2)
    cepstra: NDArray[np.float64] = (bands @ cosines.T) * (1 + LIFTER / 2 * np.sin(np.pi * order / LIFTER))  # (5)
    cepstra[:, 0] = np.log(np.maximum(power.sum(1), TINY))  # (6)
    return cepstra


def _bands(points: int, rate: int, lowest: float) -> NDArray[np.float64]:  # [26, points / 2 + 1]
    """Return the weights of the bands: triangles between neighbouring centres, at the bins below them."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (lowest, rate / 2))
    edges = np.floor((points + 1) * 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1) / rate)
    bins = np.arange(points // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.maximum(edges[1:-1, None] - edges[:-2, None], 1)
    falling = (edges[2:, None] - bins) / np.maximum(edges[2:, None] - edges[1:-1, None], 1)
    inside = np.where(bins < edges[1:-1, None], rising, falling)
    found: NDArray[np.float64] = np.where((bins >= edges[:-2, None]) & (bins < edges[2:, None]), inside, 0.0)
    return found
