"""The product of several inputs with weight_ih on the GPU, in TF32 and in float32.

    python benchmarks/inputs.py

The result sets NARROW in kernels/cuda/matmul_precision.py. Batches of 100 sequences of 70 steps, as in the copy problem with a
delay of 50; 50 trials, or 10 of 512 units.
"""

import torch
from gpu import milliseconds

WEIGHTS = {"LSTM 100": (50, 400), "MIST 141": (50, 290), "RNN 203": (50, 203), "LSTM 512": (10, 2048)}
"""Trials and rows of weight_ih."""
INPUTS = (2, 6, 13, 16, 32, 64)


def main() -> None:
    """Print the table."""
    print("| | " + " | ".join(f"{count} inputs" for count in INPUTS) + " |")
    print("| --- |" + " --- |" * len(INPUTS))
    for name, (trials, rows) in WEIGHTS.items():
        cells = []
        for inputs in INPUTS:
            x = torch.randn(trials, 7_000, inputs, device="cuda")
            weight = torch.randn(trials, rows, inputs, device="cuda")
            times = []
            for precision in ("high", "highest"):
                torch.set_float32_matmul_precision(precision)
                times.append(milliseconds(lambda x=x, weight=weight: torch.bmm(x, weight.mT), in_a_row=10))
            cells.append("{:.2f}, {:.2f}".format(*times))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
