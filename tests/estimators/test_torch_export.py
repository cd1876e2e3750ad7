"""Networks of fitted estimators through torch.export give PyTorch's numbers, for any length and batch."""

from itertools import cycle
from typing import Any

import pytest
import torch

from mistrnn.kernels.cell import is_registered
from mistrnn.layers import LAYERS
from tests.estimators.test_export import KINDS, TOLERANCE, Example, inputs

FUSED = [
    layer for layer in LAYERS if is_registered(LAYERS[layer].cell)
]  # torch.export unrolls a plain loop for one length


@pytest.mark.parametrize(
    ("example", "with_lengths"),
    [
        (Example("mist", "classifier"), True),
        (Example("lstm", "regressor"), False),
        pytest.param(
            Example("mist", "labeler", {"zoneout": 0.2, "layer_norm": True}, {"bidirectional": True, "num_layers": 2}),
            True,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Example("clockwork", "classifier", {"zoneout": 0.2}, {"bidirectional": True, "num_layers": 2}),
            False,
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(Example(layer, kind), True, marks=pytest.mark.slow)
            for layer, kind in zip(FUSED, cycle(KINDS), strict=False)
        ),
    ],
    ids=str,
)
def test_torch_export_runs_other_lengths_and_batches(example: Example, with_lengths: bool) -> None:
    network = example.fitted().network_
    free = torch.export.Dim.DYNAMIC
    steps, batch = 5, 3
    given: dict[str, Any] = {"lengths": torch.tensor([5, 2, 4])} if with_lengths else {}
    program = torch.export.export(
        network,
        (inputs(steps, batch),),
        given,
        dynamic_shapes={"input": {0: free, 1: free}, **({"lengths": {0: free}} if with_lengths else {})},
    )
    again = program.module()
    for steps, batch in ((5, 3), (1, 1), (40, 1), (17, 6)):
        x = inputs(steps, batch)
        given = {"lengths": torch.randint(1, steps + 1, (batch,))} if with_lengths else {}
        with torch.no_grad():
            found, wanted = again(x, **given)[0], network(x, **given)[0]
        torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
