"""Cepstral coefficients against a library of the field."""

import numpy as np
import pytest
import python_speech_features

from mistrnn.tasks._mfcc import mfcc


@pytest.mark.parametrize(("rate", "samples"), [(16_000, 16_000), (16_000, 401), (8_000, 5_000)])
def test_coefficients_equal_those_of_a_library(rate: int, samples: int) -> None:
    signal = 1000 * np.random.RandomState(0).randn(samples) + 2000 * np.sin(np.arange(samples) * 0.05)
    width, step = round(0.025 * rate), round(0.01 * rate)
    expected = python_speech_features.mfcc(
        signal, rate, numcep=13, nfilt=26, nfft=1 << (width - 1).bit_length(), lowfreq=85, preemph=0.97, ceplifter=22,
        appendEnergy=True, winfunc=np.hamming,
    )  # fmt: skip
    found = mfcc(signal, rate)
    assert len(found) == 1 + (samples - width) // step  # the library pads a last frame with zeros
    np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-9, atol=1e-9)


def test_silence_is_finite_and_a_moment_has_no_frame() -> None:
    assert np.isfinite(mfcc(np.zeros(1_000), 16_000)).all()
    assert mfcc(np.zeros(399), 16_000).shape == (0, 13)
