"""The demo: four layers with equally many parameters on a copy problem, a few trials each, under the paper's protocol."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS, count_parameters, match_parameters
from mistrnn.paper.figure3 import SOLVED
from mistrnn.report import Curves, draw_curves
from mistrnn.tasks import make_task
from mistrnn.training import Progress, Recorded, Study, run_study, summarise

DELAY, TRIALS, STEPS, BATCH, LSTM_UNITS = 30, 6, 500, 50, 32


def run_demo(
    folder: Path, *, say: Callable[[str], None], report: Callable[[Progress], None], stop: Callable[[], bool]
) -> tuple[list[dict[str, Any]], Path]:
    """Run the four studies (or what is missing of them) and return a row for each and the path of the picture."""
    task = make_task("copy", {"delay": DELAY})
    budget = count_parameters("lstm", LSTM_UNITS, task.input_size, task.output_size)
    rows, pictures = [], []
    for layer in ("mist", "lstm", "rnn", "clockwork"):
        hidden = match_parameters(layer, budget, task.input_size, task.output_size)
        study = Study(
            task="copy",
            layer=layer,
            hidden=hidden,
            trials=TRIALS,
            steps=STEPS,
            batch_size=BATCH,
            validate_every=50,
            task_settings={"delay": DELAY},
        )
        name = LAYERS[layer].__name__
        say(f"{name}, {hidden} units: {TRIALS} trials with random learning rates, {STEPS} steps")
        trials = run_study(study, folder / layer, device="cpu", task=task, say=say, report=report, stop=stop)
        curves = Recorded(folder / layer).curves()
        summary = summarise(trials)
        if not summary.top:
            raise UsageError(f"no trial of {name} came to a validation; see {folder / layer / 'trials.jsonl'}")
        best = trials[summary.top[0]]
        rows.append(
            {
                "layer": name,
                "units": hidden,
                "parameters": best["parameters"],
                "val_error": best["val_error"],
                "test_error": best["test_error"],
                "learning_rate": best["learning_rate"],
                "solved": sum(row["val_error"] is not None and row["val_error"] < SOLVED for row in trials),
            }
        )
        lines = []
        for trial in range(TRIALS):
            mine = curves["trial"] == trial
            lines.append((curves["step"][mine].tolist(), curves["val_error"][mine].tolist()))
        pictures.append(Curves(f"{name}, {hidden} units", lines, summary.top[0]))
    title = f"Copy {DELAY // 10} symbols after {DELAY} steps, at most {budget:,} parameters each"
    _, png, _ = draw_curves(pictures, folder, "learning-curves", title=title, trivial_error=task.trivial_error)
    return rows, png
