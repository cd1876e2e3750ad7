"""Layers of equal size: the hidden size that meets a parameter budget, as the paper matches its models."""

from typing import Any

from mistrnn.layers import checks
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.names import layer_class


def count_parameters(
    layer: str | type[RecurrentLayer], hidden_size: int, input_size: int, output_size: int, **options: Any
) -> int:
    """Return the number of parameters of a layer and its linear readout together; arguments as in `match_parameters`.

    >>> count_parameters("lstm", 100, input_size=1, output_size=10)
    41810
    """
    kind = _class_of("count_parameters", layer)
    output_size = checks.positive_int("count_parameters", "output_size", output_size)
    model = kind(input_size, hidden_size, **{**options, "device": "meta"})
    return model.parameter_count() + (model.output_size + 1) * output_size


def match_parameters(
    layer: str | type[RecurrentLayer], budget: int, input_size: int, output_size: int, **options: Any
) -> int:
    """Return the largest hidden size whose layer and linear readout together have at most `budget` parameters.

    By this rule, the models that match an LSTM with 100 units have the hidden sizes of the paper's tables 1 and 3.
    Clockwork counts only the weights that it really has, and its hidden size is a multiple of its number of periods.

    Args:
        layer: a layer's class or name.
        budget: the number of parameters to stay within.
        input_size: I, the inputs of the layer.
        output_size: the outputs of the readout, which has a bias.
        options: other arguments of the layer (delays, num_layers, ...).

    >>> budget = count_parameters("lstm", 100, input_size=1, output_size=10)
    >>> [match_parameters(name, budget, input_size=1, output_size=10) for name in ("mist", "rnn", "clockwork")]
    [139, 198, 256]
    """
    kind = _class_of("match_parameters", layer)
    budget = checks.positive_int("match_parameters", "budget", budget)
    step = kind.hidden_size_step(**options)
    smallest = 2 * step if options.get("layer_norm") else step  # a unit alone cannot be normalised

    def count(hidden_size: int) -> int:
        return count_parameters(kind, hidden_size, input_size, output_size, **options)

    if count(smallest) > budget:
        raise ValueError(
            f"match_parameters: expected a budget of at least {count(smallest)} parameters, because that is "
            f"{kind.__name__} with hidden_size={smallest} and its readout, got {budget}."
        )
    fits, exceeds = smallest, 2 * smallest
    while count(exceeds) <= budget:
        fits, exceeds = exceeds, 2 * exceeds
    while exceeds - fits > step:
        middle = fits + (exceeds - fits) // step // 2 * step
        fits, exceeds = (middle, exceeds) if count(middle) <= budget else (fits, middle)
    return fits


def _class_of(caller: str, layer: str | type[RecurrentLayer]) -> type[RecurrentLayer]:
    kind = layer_class(layer) if isinstance(layer, str) else layer
    if not (isinstance(kind, type) and issubclass(kind, RecurrentLayer)):
        raise TypeError(f"{caller}: expected layer to be a class of mistrnn or its name, got {layer!r}.")
    return kind
