"""The settings of a study, and the learning rate, weights and data order of each trial.

Everything about trial k (its learning rate, its weights, the order of its data) follows from (study seed, k) alone.
"""

import hashlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS, Clockwork, RecurrentLayer, layer_class
from mistrnn.layers.names import check_options, single_bias
from mistrnn.tasks import Task, task_class
from mistrnn.training.model import Model

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "halving", "halving-in-12ths")
INITIALIZATIONS = ("normal", "uniform", "groups")
KEPT = ("best", "last")
EARLY_STOPS = ("asha",)
UNIFORM = 0.1
PRECISIONS = {"high": torch.float32, "fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""The dtype of the parameters. With "high", a GPU's products may read 16 bits of them, as torch's own setting of that name
allows; with "bf16" all products are shortened by autocast."""

LOWEST_EXPONENT, HIGHEST_EXPONENT = -4.0, 1.0
"""Learning rates are 10^U(-4, 1)."""


WITH_FORGET_GATE = ("lstm", "peephole_lstm")
OWN_OPTIONS = {"delays": ("mist", "narx"), "periods": ("clockwork",)}
"""Arguments that only some layers have."""


@dataclass(frozen=True)
class Study:
    """Trials of one layer on one task; the defaults are the paper's protocol."""

    task: str
    layer: str
    hidden: int
    trials: int = 50
    steps: int | None = None
    """Optimisation steps; the task's own number if left out."""
    seed: int = 0
    task_settings: dict[str, Any] = field(default_factory=dict)
    layer_options: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    """One learning rate for all trials instead of random ones."""
    batch_size: int = 100
    optimizer: str = "sgd"
    schedule: str = "constant"
    weight_decay: float = 0.0
    momentum: float = 0.9
    """Momentum of sgd."""
    initialization: str = "normal"
    """Distribution of the initial weights: N(0, 1/H), or uniform in ±0.1. With "groups", the weights within a Clockwork group
    are N(0, 1/units of the group), as in a simple RNN of that size, and the other weights are as in "normal"."""
    forget_bias: float | None = None
    """Initial bias of the forget gate of lstm and peephole_lstm; 1 if left out."""
    readout_dropout: float = 0.0
    """Dropout probability of the readout's input, at every step, in training."""
    keep: str = "best"
    """The parameters to test: those of the best validation, or the last."""
    precision: str = "high"
    truncate: int | None = None
    """Number of steps of truncated backpropagation through time; the state carries over."""
    checkpoint_segments: int | None = None
    """Number of segments for activation checkpointing: only the states between segments are kept, and the backward pass
    recomputes each segment. Gradients are exact, and memory is that of one segment."""
    validate_every: int | None = None
    """Optimisation steps between validations; the task's own number if left out."""
    gradients_every: int | None = None
    """Optimisation steps between measurements of gradient norms (and before the first and after the last); none if left
    out."""
    early_stop: str | None = None
    """The rule that stops hopeless trials early; none if left out, as in the paper."""

    word: ClassVar[str] = "study"
    """Its name in messages about its folder."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, before anything is written."""
        kind = task_class(self.task)
        for name in ("task_settings", "layer_options"):
            if not isinstance(getattr(self, name), dict):
                raise UsageError(f"expected {name} to be a table of settings, got {getattr(self, name)!r}.")
        if self.layer not in LAYERS:
            raise UsageError(f"expected a layer among {', '.join(LAYERS)}, got {self.layer!r}.")
        if self.steps is None:
            object.__setattr__(self, "steps", kind.default_steps)
        if self.validate_every is None:
            object.__setattr__(self, "validate_every", kind.validation_interval)
        for name in ("hidden", "trials", "steps", "batch_size", "validate_every"):
            self._at_least_one(name)
        for name in ("truncate", "checkpoint_segments", "gradients_every"):
            if getattr(self, name) is not None:
                self._at_least_one(name)
        if self.truncate is not None and self.checkpoint_segments is not None:
            raise UsageError(
                "expected either truncate or checkpoint_segments, because one cuts gradients to save memory and the other "
                f"keeps them whole, got truncate={self.truncate} and checkpoint_segments={self.checkpoint_segments}."
            )
        if type(self.seed) is not int or not 0 <= self.seed < 2**31:
            raise UsageError(f"expected seed to be a whole number between 0 and 2^31 - 1, got {self.seed!r}.")
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("precision", tuple(PRECISIONS)),
            ("initialization", INITIALIZATIONS),
            ("keep", KEPT),
        ):
            if getattr(self, name) not in known:
                raise UsageError(f"expected {name} among {', '.join(known)}, got {getattr(self, name)!r}.")
        if self.early_stop is not None and self.early_stop not in EARLY_STOPS:
            raise UsageError(f"expected early_stop among {', '.join(EARLY_STOPS)} or none, got {self.early_stop!r}.")
        for name in ("learning_rate", "weight_decay", "momentum", "readout_dropout", "forget_bias"):
            value = getattr(self, name)
            if value is None and name in ("learning_rate", "forget_bias"):
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise UsageError(f"expected {name} to be a number, got {value!r}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"expected learning_rate > 0, got {self.learning_rate}.")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"expected weight_decay >= 0, got {self.weight_decay}.")
        for name in ("momentum", "readout_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"expected 0 <= {name} < 1, got {getattr(self, name)}.")
        if self.forget_bias is not None and self.layer not in WITH_FORGET_GATE:
            raise UsageError(
                f"{self.layer}: expected no forget_bias, because only {' and '.join(WITH_FORGET_GATE)} have it."
            )
        if self.initialization == "groups" and self.layer != "clockwork":
            raise UsageError(f"{self.layer}: expected no initialization='groups', because only clockwork has groups.")
        for option, owners in OWN_OPTIONS.items():
            if option in self.layer_options and self.layer not in owners:
                raise UsageError(f"{self.layer}: expected no {option}, because they belong to {' and '.join(owners)}.")
        if self.layer_options.get("bidirectional") and kind.lengths is not Task.lengths:  # sequences of unequal length
            raise UsageError(f"{self.task}: expected one direction, because the second would read the padding first.")
        pieces = [name for name in ("truncate", "checkpoint_segments") if getattr(self, name) is not None]
        if pieces and self.layer_options.get("bidirectional"):
            raise UsageError(
                f"expected one direction with {pieces[0]}, because the second reads from the end and would begin each piece "
                "without the steps after it."
            )
        for name in ("batch_first", "device", "dtype"):
            if name in self.layer_options:
                raise UsageError(f"expected no {name} among layer_options, because the study sets it.")
        if self.layer_options.get("dropout") and self.layer_options.get("num_layers", 1) == 1:
            raise UsageError("expected num_layers > 1 with dropout, which acts between layers; see readout_dropout.")
        try:
            check_options(layer_class(self.layer), self.layer_options)
            self._layer(1, "meta", torch.float32)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UsageError(str(error)) from error
        for name in ("task_settings", "layer_options"):
            try:
                json.dumps(getattr(self, name), allow_nan=False)
            except (ValueError, TypeError) as error:
                raise UsageError(
                    f"expected {name} that JSON can hold (numbers, words, lists), because a study's folder keeps them, got "
                    f"{getattr(self, name)!r} ({error})."
                ) from error

    def _at_least_one(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"expected {name} to be a whole number >= 1, got {value!r}.")

    @property
    def total_steps(self) -> int:
        """The optimisation steps, with the task's own number filled in."""
        assert self.steps is not None
        return self.steps

    @property
    def validation_interval(self) -> int:
        """The steps between validations, with the task's own number filled in."""
        assert self.validate_every is not None
        return self.validate_every

    def steps_at_once(self, steps: int) -> int:
        """Return how many steps of sequences of that length are computed at once.

        >>> Study(task="copy", layer="mist", hidden=8, checkpoint_segments=3).steps_at_once(100)
        34
        """
        if self.checkpoint_segments is not None:
            return -(-steps // self.checkpoint_segments)
        return min(steps, self.truncate or steps)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return PRECISIONS[self.precision]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        settings: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return settings

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Return the settings that differ, as `name: there, here`."""
        mine = self.as_dict()
        # Studies of earlier versions lack newer settings: they ran with the present defaults.
        other = {f.name: f.default for f in fields(self) if f.default is not MISSING} | other
        names = [f.name for f in fields(self)] + [name for name in other if name not in mine]
        return [
            f"{name}: {other.get(name)!r} there, {mine.get(name)!r} here"
            for name in names
            if other.get(name) != mine.get(name)
        ]

    def learning_rate_of(self, trial: int) -> float:
        """Return the learning rate of a trial."""
        if self.learning_rate is not None:
            return self.learning_rate
        uniform = seed_of(self.seed, trial, "learning rate") / 2**63
        return float(10 ** (LOWEST_EXPONENT + (HIGHEST_EXPONENT - LOWEST_EXPONENT) * uniform))

    def settings_of(self, trial: int) -> dict[str, Any]:
        """Return the settings of one trial that differ between trials, as in its line of trials.jsonl."""
        return {"learning_rate": self.learning_rate_of(trial)}

    def stack_of(self, trial: int) -> int:
        """Return which trials can train as one computation: all of them."""
        return 0

    @property
    def trial_name(self) -> str:
        """A trial in words, for messages."""
        return f"a trial of {self.layer} with {self.hidden} units"

    def model(self, task: Task, device: torch.device | str | None = None) -> Model:
        """Return an untrained model of this study."""
        layer = self._layer(task.input_size, device, self.dtype)
        return Model(layer, task.output_size, every_step=task.every_step, readout_dropout=self.readout_dropout)

    def _layer(self, inputs: int, device: torch.device | str | None, dtype: torch.dtype) -> RecurrentLayer:
        kind = layer_class(self.layer)
        return kind(inputs, self.hidden, **single_bias(kind, self.layer_options), device=device, dtype=dtype)

    def initial_parameters(self, trial: int, task: Task) -> dict[str, Tensor]:
        """Return the parameters that a trial starts from, on the CPU, the same in every precision."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.seed, trial, "weights"))
            layer = self._layer(task.input_size, "cpu", torch.float32)
            model = Model(layer, task.output_size, every_step=task.every_step)
            if isinstance(layer, Clockwork) and self.initialization == "groups":
                layer.scale_groups()
            if self.forget_bias is not None:
                for name, parameter in layer.named_parameters():
                    if name.startswith("bias"):  # rows i, f, g, o
                        parameter.data[self.hidden : 2 * self.hidden] = self.forget_bias
            if self.initialization == "uniform":
                for name, parameter in model.named_parameters():
                    if "weight" in name:  # severed connections stay severed
                        severed = parameter.detach() == 0
                        torch.nn.init.uniform_(parameter, -UNIFORM, UNIFORM)
                        parameter.data.masked_fill_(severed, 0.0)
        return {name: parameter.detach().to(self.dtype) for name, parameter in model.named_parameters()}

    def data_order(self, trial: int, epoch: int, size: int) -> Tensor:
        """Return the order in which a trial goes through the training set in an epoch."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, trial, f"epoch {epoch}"))
        return torch.randperm(size, generator=generator)

    def mask_key(self, trial: int, step: int, draw: int) -> int:
        """Return the key of one of the random masks of a trial at an optimisation step; see `random_masks`."""
        return seed_of(self.seed, trial, f"mask {draw} of step {step}")


def seed_of(seed: int, trial: int, purpose: str) -> int:
    """Return 63 bits that depend on all three."""
    digest = hashlib.sha256(f"{seed}/{trial}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
