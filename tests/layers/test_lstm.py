"""LSTM: what is its own (equality with torch.nn.LSTM is in test_torch_twin.py)."""

import torch

from mistrnn import LSTM
from tests.layers.cases import close, seeded, small


def test_forget_bias_starts_at_one_in_every_layer_and_direction() -> None:
    for single_bias in (False, True):
        for key, bias in LSTM(3, 4, 2, bidirectional=True, single_bias=single_bias).named_parameters():
            if key.startswith("bias_hh"):
                assert not bias.any()
            elif key.startswith("bias"):
                assert bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


def test_zoneout_keeps_memory_cells_and_states_apart() -> None:
    """Where both masks keep, nothing changes; where only c is kept, h still follows the candidate's c."""
    layer = small("lstm", zoneout=0.5)
    initial = (torch.randn(1, 400, 6, dtype=torch.float64), torch.randn(1, 400, 6, dtype=torch.float64))
    with seeded(0):
        _, (h, c) = layer(torch.randn(1, 400, 3, dtype=torch.float64), initial)
    h_kept, c_kept = h == initial[0], c == initial[1]
    for both in ((h_kept & c_kept), (h_kept & ~c_kept), (~h_kept & c_kept), (~h_kept & ~c_kept)):
        assert 0.2 < both.double().mean() < 0.3


def test_zoneout_in_evaluation_mixes_h_and_c_with_their_candidates() -> None:
    layer, plain = small("lstm", zoneout=0.25).eval(), small("lstm")
    plain.load_state_dict(layer.state_dict())
    initial = (torch.randn(1, 2, 6, dtype=torch.float64), torch.randn(1, 2, 6, dtype=torch.float64))
    input = torch.randn(1, 2, 3, dtype=torch.float64)
    _, (h, c) = layer(input, initial)
    _, (candidate_h, candidate_c) = plain(input, initial)
    close(h, 0.25 * initial[0] + 0.75 * candidate_h)
    close(c, 0.25 * initial[1] + 0.75 * candidate_c)
