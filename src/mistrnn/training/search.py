"""A search for settings on the caller's own data: trials of random settings in two stages, each durable like a study.

The race trains every trial for a part of the steps on a part of the cases; half-way the worse half of the trials retires.
The refit trains the settings of the best trials on all cases, with all steps. Their mean is the model.

Everything about trial k (its settings, its weights, its minibatches) follows from (seed, k) alone. Trials of equal shape are
numbered one after the other and train as one computation.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from mistrnn._memory import free_memory
from mistrnn.models import SequenceNetwork, Standardisation
from mistrnn.models.ensemble import Answer
from mistrnn.training.examples import Augmentation, Examples, Frames
from mistrnn.training.fitting import Course, NetworkTrials, Recipe
from mistrnn.training.study import seed_of

MOST_JITTER, MOST_SCALE = 0.1, 0.2
"""Largest noise and scaling that a trial may draw where the first one has less."""
RACE_SHARE = 0.15
"""Share of a fit's steps that the race takes."""
NOMINAL_DROPOUT = 0.1
"""Dropout of the common shape; each trial's masks have a dropout of their own."""
TENSORS_PER_BLOCK = 40
"""Tensors [T, B, W] that a step keeps for each block, measured and rounded up."""
SAFE_SHARE = 0.5
"""Share of the free memory that a stack may be expected to take."""


@dataclass(frozen=True)
class Search:
    """One stage of a search; it takes the place of a `Study`.

    Args:
        trials: how many there are in the race.
        stage: "race" or "refit".
        steps: optimisation steps of this stage.
        validate_every: steps between validations.
        batch_size: cases in a minibatch.
        seed: all that is random follows from it.
        recipe: the settings of trial 0, around which those of the others are drawn.
        shapes: arguments of `SequenceNetwork` by shape; the first half of the trials has the first shape.
        loss: the meaning of the network's scores.
        piece_length: the longest piece of a case that is trained on, where each step has a target.
    """

    trials: int
    stage: Literal["race", "refit"]
    steps: int
    validate_every: int
    batch_size: int
    seed: int
    recipe: Recipe
    shapes: Sequence[dict[str, Any]]
    loss: Answer = "classes"
    piece_length: int | None = None

    word: ClassVar[str] = "search"
    """Its name in messages about its folder."""

    @property
    def early_stop(self) -> str | None:
        """How hopeless trials are given up."""
        return "halving" if self.stage == "race" else None

    @property
    def total_steps(self) -> int:
        """The optimisation steps."""
        return self.steps

    @property
    def validation_interval(self) -> int:
        """The steps between validations."""
        return self.validate_every

    @property
    def trial_name(self) -> str:
        """A trial in words, for messages."""
        return "a trial of the search"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        found: dict[str, Any] = json.loads(json.dumps({"search": asdict(self)}))
        return found

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "Search":
        """Return the search that `as_dict` described."""
        own = dict(settings["search"])
        recipe = dict(own.pop("recipe"))
        return cls(**own, recipe=Recipe(**{**recipe, "augmentation": Augmentation(**recipe["augmentation"])}))

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Return the settings that differ, as `name: there, here`."""
        mine, theirs = _flat(self.as_dict()["search"]), _flat(other.get("search", {}))
        names = dict.fromkeys([*mine, *theirs])
        return [
            f"{name}: {theirs.get(name)!r} there, {mine.get(name)!r} here"
            for name in names
            if theirs.get(name) != mine.get(name)
        ]

    def shape_of(self, trial: int) -> int:
        """Return which of the shapes a trial has: the first half of the trials the first, the rest the others in turn.

        >>> search = Search(8, "race", 1, 1, 1, 0, Recipe(), [{}, {"num_layers": 1}, {"num_layers": 3}])
        >>> [search.shape_of(trial) for trial in range(8)]
        [0, 0, 0, 0, 1, 1, 2, 2]
        """
        first = self.trials - self.trials // 2 if len(self.shapes) > 1 else self.trials
        if trial < first:
            return 0
        return 1 + (trial - first) * (len(self.shapes) - 1) // (self.trials - first)

    stack_of = shape_of

    def recipe_of(self, trial: int) -> Recipe:
        """Return the settings of a trial's training."""
        if trial == 0:
            return self.recipe
        random = np.random.RandomState(seed_of(self.seed, trial, "settings") % 2**32)
        own = self.recipe
        return Recipe(
            learning_rate=own.learning_rate * 10 ** random.uniform(-0.4, 0.4),
            weight_decay=own.weight_decay * 10 ** random.uniform(-1.0, 1.0),
            dropout=random.uniform(0.0, max(0.3, own.dropout)),
            label_smoothing=own.label_smoothing,
            augmentation=_near(own.augmentation, random),
            initialization="normal" if random.rand() < 0.25 else own.initialization,
        )

    def settings_of(self, trial: int) -> dict[str, Any]:
        """Return the settings of a trial, as its line in trials.jsonl has them."""
        recipe = self.recipe_of(trial)
        return {
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            "dropout": recipe.dropout,
            **{name: value for name, value in vars(recipe.augmentation).items() if value},
            "initialization": recipe.initialization,
            **self.shapes[self.shape_of(trial)],
        }

    def learning_rate_of(self, trial: int) -> float:
        """Return the learning rate of a trial."""
        return self.recipe_of(trial).learning_rate

    def start(self, data: "SearchData", trials: Sequence[int], device: torch.device) -> NetworkTrials:
        """Return a stack of trials of equal shape before their first step."""
        shape = self.shapes[self.shape_of(trials[0])]
        course = Course(
            steps=self.steps,
            batch_size=self.batch_size,
            validate_every=self.validate_every,
            loss=self.loss,
            piece_length=self.piece_length,
            seed=self.seed,
            keep="last",
        )
        train_on, validate_on = data.frames(device)
        recipes = [self.recipe_of(trial) for trial in trials]
        return NetworkTrials(partial(data.network, shape), trials, recipes, course, train_on, validate_on, device)

    def trials_that_fit(self, data: "SearchData", device: torch.device, share: float = 1.0) -> int:
        """Return how many trials can be expected to train at once in a share of the device's free memory; at least one."""
        longest = max(len(case) for case in data.train_on.cases)
        frames = min(longest, self.piece_length or longest) * self.batch_size
        most = 0
        for shape in self.shapes:
            with torch.random.fork_rng(devices=[]):
                network = data.network(shape)
            most = max(most, 4 * frames * network.hidden_size * network.num_layers * TENSORS_PER_BLOCK)
        return max(1, int(SAFE_SHARE * share * free_memory(device) / most))

    def ranked(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        """Return the trials that did not diverge, best first: those that ran to the end before those that retired."""
        known = [row for row in rows if row["val_error"] is not None and row["status"] in ("ok", "stopped")]
        return [row["trial"] for row in sorted(known, key=lambda row: (row["status"] != "ok", row["val_error"]))]


@dataclass(eq=False)
class SearchData:
    """The cases of one stage of a search; it takes the place of a `Task`.

    Args:
        train_on: cases to train on.
        validate_on: cases to compare trials by; None in a refit.
        standardisation: of the inputs.
        arguments: of `SequenceNetwork`, those that all shapes share.
    """

    train_on: Examples
    validate_on: Examples | None
    standardisation: Standardisation
    arguments: dict[str, Any]
    data_identity: str = field(init=False)
    needs_data: ClassVar[bool] = True
    """The cases are sent to workers: they have no files to read."""

    def __post_init__(self) -> None:
        """Compute the digest that tells these cases from others."""
        digest = hashlib.sha256()
        for examples in (self.train_on, self.validate_on):
            if examples is None:
                continue
            digest.update(f"{len(examples.cases)}".encode())
            for case, target, weight in zip(examples.cases, examples.targets, examples.weights, strict=True):
                digest.update(f"{case.shape}".encode())
                digest.update(np.ascontiguousarray(case).tobytes())
                digest.update(target.numpy().tobytes())
                digest.update(weight.numpy().tobytes())
        mean, scale, arcsinh = self.standardisation
        for tensor in (mean, scale, *(() if arcsinh is None else (arcsinh.center, arcsinh.knee))):
            digest.update(tensor.numpy().tobytes())
        named = {name: getattr(value, "__qualname__", value) for name, value in self.arguments.items()}
        digest.update(json.dumps(named, sort_keys=True, default=str).encode())
        self.data_identity = digest.hexdigest()
        self._frames: tuple[Frames, Frames | None] | None = None

    def to(self, device: torch.device | str) -> "SearchData":
        """Put the cases on a device."""
        place = torch.device(device)
        held = None if self.validate_on is None else Frames(self.validate_on, self.standardisation, place)
        self._frames = Frames(self.train_on, self.standardisation, place), held
        return self

    def frames(self, device: torch.device) -> tuple[Frames, Frames | None]:
        """Return the cases to train on and to validate on."""
        if self._frames is None:
            self.to(device)
        assert self._frames is not None
        return self._frames

    def network(self, shape: dict[str, Any]) -> SequenceNetwork:
        """Return an untrained network of a shape."""
        layer_options = {**self.arguments.get("layer_options", {}), **shape.get("layer_options", {})}
        given = {**self.arguments, **shape, "layer_options": layer_options, "dropout": NOMINAL_DROPOUT}
        network = SequenceNetwork(**given)
        network.standardisation = self.standardisation
        return network


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a search with those of its recipe, each by its name.

    >>> _flat({"seed": 0, "recipe": {"dropout": 0.1, "augmentation": {"jitter": 0.2}}})
    {'seed': 0, 'dropout': 0.1, 'augmentation.jitter': 0.2}
    """
    found = dict(settings)
    found |= found.pop("recipe", {})
    augmentation = found.pop("augmentation", {})
    return found | {f"augmentation.{name}": value for name, value in augmentation.items()}


def _near(own: Augmentation, random: np.random.RandomState) -> Augmentation:
    """Draw an augmentation: that of the first trial weaker or stronger, half of the time with noise and scaling as well.

    None if the first trial has none.
    """
    strength, jitter, scale = (
        random.uniform(0.0, 1.5),
        random.uniform(0.0, MOST_JITTER),
        random.uniform(0.0, MOST_SCALE),
    )
    sensor = random.rand() < 0.5
    if own == Augmentation.off():
        return own
    drawn = own.scaled(strength)
    return replace(drawn, jitter=max(drawn.jitter, jitter), scale=max(drawn.scale, scale)) if sensor else drawn
