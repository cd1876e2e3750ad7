"""The table of `mist layers --cost`: operations, memory traffic and time of all layers beside an LSTM."""

from rich.table import Table

from mistrnn.analysis.cost import milliseconds, step_cost
from mistrnn.cli._app import console
from mistrnn.layers import LAYERS, RecurrentLayer, count_parameters, match_parameters

COMPARED_WITH = "lstm"


def print_costs(hidden: int, input_size: int, output_size: int, *, steps: int, batch: int) -> None:
    """Print the cost of a step of every layer: with the units of an LSTM, and with its parameters."""
    budget = count_parameters(COMPARED_WITH, hidden, input_size, output_size)
    same_units = {name: _round_up(hidden, kind) for name, kind in LAYERS.items()}
    same_parameters = {name: match_parameters(name, budget, input_size, output_size) for name in LAYERS}
    same_parameters[COMPARED_WITH] = hidden
    for title, sizes in (
        (f"The units of LSTM {hidden}", same_units),
        (f"At most its {budget:,} parameters, with a readout of {output_size} outputs", same_parameters),
    ):
        print(f"\n{title}:")
        console.print(_table(sizes, input_size, steps, batch))
    print(
        "\nOne step of one sequence, forward: multiply-adds of the matrix products (Clockwork in brackets: those of groups that"
        "\ntick, without severed weights), other element operations, float32 memory. Weights are read once for a whole batch."
        f"\nTimes: {steps} steps, batch {batch}, this CPU; medians, with the ratio to the LSTM in the same table."
    )


def _round_up(hidden: int, kind: type[RecurrentLayer]) -> int:
    step = kind.hidden_size_step()
    return -(-hidden // step) * step


def _table(sizes: dict[str, int], input_size: int, steps: int, batch: int) -> Table:
    layers = {name: LAYERS[name](input_size, hidden) for name, hidden in sizes.items()}
    times = milliseconds(layers, steps=steps, batch=batch)
    theirs = times[COMPARED_WITH]
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for name in ("multiply-adds", "other", "weights KiB", "state KiB", "forward ms", "with backward ms"):
        table.add_column(name, justify="right")
    for name, layer in layers.items():
        cost = step_cost(layer)
        effective = (
            f" ({cost.effective_multiply_adds:,.0f})" if cost.effective_multiply_adds < cost.multiply_adds else ""
        )
        table.add_row(
            f"{type(layer).__name__} {layer.hidden_size}",
            f"{cost.multiply_adds:,}{effective}",
            f"{cost.elementwise:,}",
            f"{cost.weight_bytes / 1024:,.1f}",
            f"{cost.state_bytes / 1024:,.1f}",
            *(f"{own:.1f} {own / other:.2f}x" for own, other in zip(times[name], theirs, strict=True)),
        )
    return table
