"""A search from its settings to its networks: the race, the choice of the best trials, the refit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mistrnn.errors import UsageError
from mistrnn.models import SequenceNetwork
from mistrnn.models.standardisation import standardisation_buffers
from mistrnn.training.embedded import Embedded, Engine
from mistrnn.training.ledger import Interrupted, Ledger, Progress, Watch
from mistrnn.training.processes import process_count
from mistrnn.training.search import Search, SearchData
from mistrnn.training.store import Store

RACE, REFIT = "race", "refit"


@dataclass(frozen=True)
class Follow:
    """How the caller follows a search.

    Args:
        report: called with the stage and its progress after every step; on a cluster, when a worker has answered.
        say: called with a line for the log now and then.
        stop: asked as often; if true, the stage is saved and `Interrupted` raised.
        checkpoint_seconds: how often running trials are saved.
    """

    report: Callable[[str, Progress], None] = lambda stage, progress: None
    say: Callable[[str], None] = lambda line: None
    stop: Callable[[], bool] = lambda: False
    checkpoint_seconds: float = 60.0


@dataclass(frozen=True)
class Tuned:
    """The result of a search."""

    networks: list[SequenceNetwork]
    """Those of the best trials, best first, trained on all cases."""
    trials: list[dict[str, Any]]
    """A dict for each trial of the race: its settings, status, validation error, and whether it was chosen."""
    losses: list[list[tuple[int, float]]]
    """The learning curve of each network: step, mean training loss since the point before."""


def tune(
    race: tuple[Search, SearchData],
    refit: tuple[Search, SearchData],
    n_best: int,
    folder: Path,
    *,
    device: str = "auto",
    engine: Engine | None = None,
    follow: Follow | None = None,
) -> Tuned:
    """Search, and return the networks of the best trials; the same call on the same folder resumes to the same bits.

    Args:
        race: the settings and cases of the race.
        refit: those of the refit, with the same trials.
        n_best: how many trials of the race are refitted.
        folder: where both stages are kept.
        device: cpu, cuda or auto.
        engine: where to compute: in this process if None, or `mistrnn.training.RayEngine`.
        follow: how to follow it.
    """
    if process_count() > 1:
        raise UsageError(
            "expected one process for a search, because its trials share no minibatches; leave out torchrun."
        )
    engine, follow = engine or Embedded(), follow or Follow()
    engine.check(device)
    rows = _run(*race, folder / RACE, range(race[0].trials), device, engine, follow)
    ranked = race[0].ranked(rows)
    if not ranked:
        raise UsageError("all trials of the search diverged: try a lower learning_rate.")
    search, data = refit
    chosen = ranked[:n_best]
    _run(search, data, folder / REFIT, sorted(chosen), device, engine, follow)
    networks, losses = _networks(search, data, folder / REFIT, chosen)
    if not networks:
        raise UsageError("all trials that the search chose diverged on all cases: try a lower learning_rate.")
    trials = [{**row, "chosen": row["trial"] in chosen} for row in rows]
    return Tuned(networks, trials, losses)


def _run(
    search: Search,
    data: SearchData,
    folder: Path,
    wanted: Sequence[int],
    device: str,
    engine: Engine,
    follow: Follow,
) -> list[dict[str, Any]]:
    """Run the missing trials of a stage, and return all its trials."""

    def report(progress: Progress) -> None:
        follow.report(search.stage, progress)

    with Store(folder, search, data.data_identity) as store:
        watch = Watch(report, follow.say, follow.stop, follow.checkpoint_seconds, None)
        ledger = Ledger(search, store, wanted, watch)
        if ledger.waiting and follow.stop():
            raise Interrupted
        engine.run(ledger, data, device=device, data=None, group_size=None)
        rows = store.trials()
    crashed = [row for row in rows if row["status"] == "crashed"]
    if crashed:
        raise UsageError(f"trial {crashed[0]['trial']} of the search failed: {crashed[0]['error']}")
    return rows


def _networks(
    search: Search, data: SearchData, folder: Path, chosen: Sequence[int]
) -> tuple[list[SequenceNetwork], list[list[tuple[int, float]]]]:
    """Return the networks of refitted trials and their learning curves, without those that diverged."""
    with Store(folder, search, data.data_identity) as store:
        status = {row["trial"]: row["status"] for row in store.trials()}
        columns = store.curves()
        networks, losses = [], []
        for trial in chosen:
            if status[trial] != "ok":
                continue
            recipe = search.recipe_of(trial)
            with torch.random.fork_rng(devices=[]):
                network = data.network(search.shapes[search.shape_of(trial)])
            network.load_state_dict({**standardisation_buffers(network), **store.tensors_of(trial)})
            network.set_dropout(recipe.dropout)
            network.initialization = recipe.initialization or network.initialization
            networks.append(network.eval())
            own = columns["trial"] == trial
            losses.append(list(zip(columns["step"][own].tolist(), columns["train_loss"][own].tolist(), strict=True)))
    return networks, losses
