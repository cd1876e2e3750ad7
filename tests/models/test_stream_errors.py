"""Streams of networks: refusals with their reasons."""

import copy
import pickle

import pytest
import torch

from mistrnn.models import Ensemble
from tests.models.streams import fused, rows, small, without_library


@pytest.mark.parametrize("backend", ["fused", "composed"])
def test_stream_cannot_be_copied_or_pickled(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "composed":
        without_library(monkeypatch)
    network = small()
    for stream in (network.stream(), Ensemble([network]).eval().stream()):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(
                TypeError, match="a running stream cannot be copied or pickled; make another one from its state"
            ):
                duplicate(stream)  # type: ignore[operator]
    if backend == "fused":
        with pytest.raises(TypeError, match="a running stream cannot be copied or pickled"):
            copy.copy(network.stream()._steps._stream)  # type: ignore[union-attr]


def test_stream_of_both_directions_is_refused() -> None:
    network = small(bidirectional=True)
    with pytest.raises(
        ValueError, match="SequenceNetwork: expected bidirectional=False for a stream, because the future"
    ):
        network.stream()
    with pytest.raises(ValueError, match="expected bidirectional=False for a stream"):
        Ensemble([network]).eval().stream()


def test_stream_in_training_is_refused() -> None:
    network = small()
    network.norm.train()
    with pytest.raises(
        ValueError, match=r"SequenceNetwork: expected evaluation mode for a stream.*call network\.eval\(\)"
    ):
        network.stream()


def test_stream_of_no_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="SequenceNetwork: expected batch_size"):
        small().stream(0)


def test_input_that_does_not_fit_is_refused() -> None:
    stream = small().stream(2)
    with pytest.raises(
        ValueError, match=r"SequenceNetwork\.stream: expected input \[2, 3\], one step of 2 sequences.*got \[2, 4\]"
    ):
        stream(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"expected input \[2, 3\].*got list"):
        stream([[0.0] * 3] * 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected input of real numbers, got torch\.complex64"):
        stream(torch.zeros(2, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match="expected input on cpu, because the parameters are there, got meta"):
        stream(torch.zeros(2, 3, device="meta"))


def test_reset_that_does_not_fit_is_refused() -> None:
    stream, row = small().stream(2), rows(1, 2)[0]
    with pytest.raises(TypeError, match=r"SequenceNetwork\.stream: expected reset to be a bool Tensor \[B\]"):
        stream(row, torch.zeros(2))
    with pytest.raises(ValueError, match=r"expected reset \[B\] = \[2\] as the input, got \[3\]"):
        stream(row, torch.zeros(3, dtype=torch.bool))


def test_state_that_does_not_fit_is_refused() -> None:
    network = small()
    state = network.initial_state(2)
    with pytest.raises(
        ValueError, match=r"SequenceNetwork\.stream: expected a state of 7 tensors \(block0_conv, .*got 6"
    ):
        network.stream(2, state[:-1])
    with pytest.raises(ValueError, match=r"expected a state of 7 tensors \(.*got Tensor"):
        network.stream(2, state[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected state's block0_conv \[3, 1, 21\].*got \[3, 2, 21\]"):
        network.stream(1, state)
    with pytest.raises(TypeError, match=r"expected state's count of torch\.int64, got torch\.float32"):
        network.stream(2, (*state[:-3], state[-3].float(), *state[-2:]))
    with pytest.raises(ValueError, match=r"Ensemble\.stream: expected a state of 14 tensors, got 7"):
        Ensemble([network, network]).eval().stream(2, state)


def test_stream_of_an_unavailable_fused_backend_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small()
    for layer in network.recurrent_layers():
        layer.backend = "fused"
    fused(network.stream())
    without_library(monkeypatch)
    with pytest.raises(RuntimeError, match=r"MIST: expected a fused backend.*no compiled code in this test"):
        network.stream()
