"""MIST and LSTM with equally many parameters learn to repeat what they saw 64 steps ago.

The copy problem: 4 symbols, a long wait, a signal, and the 4 symbols must be repeated. Both train in the same way.
Takes about half a minute on 2 CPU cores; run it with `make demo`.
"""

import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mistrnn import LSTM, MIST, match_parameters

SYMBOLS, COUNT, WAIT = 10, 4, 60
BLANK, GO = SYMBOLS, SYMBOLS + 1
BATCH, UPDATES, LEARNING_RATE = 100, 200, 0.005


def copy_problem(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one-hot inputs [T, B, 12] and the symbols to repeat at the last steps [COUNT, B]."""
    symbols = torch.randint(SYMBOLS, (COUNT, BATCH), generator=generator)
    steps = torch.full((COUNT + WAIT + COUNT, BATCH), BLANK)
    steps[:COUNT] = symbols
    steps[COUNT + WAIT - 1] = GO
    return F.one_hot(steps, SYMBOLS + 2).float(), symbols


class Model(nn.Module):
    """A recurrent layer and a linear readout."""

    def __init__(self, layer: MIST | LSTM) -> None:
        super().__init__()
        self.layer = layer
        self.readout = nn.Linear(layer.output_size, SYMBOLS)

    def forward(self, input: Tensor) -> Tensor:
        """Return the scores of all symbols at the last steps, [COUNT, B, SYMBOLS]."""
        output, _ = self.layer(input)
        scores: Tensor = self.readout(output[-COUNT:])
        return scores


def train(model: Model) -> float:
    """Train the model, print how it goes, and return the share of symbols that it repeats rightly in the end."""
    name = type(model.layer).__name__
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"\n{name}, {model.layer.hidden_size} units, {parameters:,} parameters")
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    start = time.perf_counter()
    for update in range(1, UPDATES + 1):
        input, symbols = copy_problem(generator)
        loss = F.cross_entropy(model(input).flatten(0, 1), symbols.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if update % 40 == 0:
            print(f"  update {update:3}   loss {loss.item():.3f}   {time.perf_counter() - start:4.0f} s")
    with torch.no_grad():
        input, symbols = copy_problem(generator)  # fresh ones
        right: Tensor = model(input).argmax(-1) == symbols
        return float(right.double().mean())


def main() -> None:
    """Train both models and compare them."""
    distance = COUNT + WAIT
    print(f"Repeat {COUNT} symbols after {distance} steps: {UPDATES} updates with {BATCH} new sequences each.")
    torch.manual_seed(0)
    lstm = Model(LSTM(SYMBOLS + 2, 32))
    budget = sum(parameter.numel() for parameter in lstm.parameters())
    mist = Model(MIST(SYMBOLS + 2, match_parameters("mist", budget, SYMBOLS + 2, SYMBOLS)))
    rows = [(type(model.layer).__name__, train(model)) for model in (mist, lstm)]
    print(f"\nSymbols repeated rightly (guessing: {1 / SYMBOLS:.0%}):")
    for name, share in rows:
        print(f"  {name:4}  {share:4.0%}")
    print(
        f"\nMIST reads the states 1, 2, 4, ... 128 steps back: {distance} steps are one direct connection. LSTM has to"
        f"\nhand the symbols on {distance} times. Distances between the delays take a few connections and more updates."
    )


if __name__ == "__main__":
    main()
