"""The paper's figures, shortened: their data, what they say, and that they resume."""

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from mistrnn.layers import count_parameters, match_parameters
from mistrnn.paper import figure1, figure2, figure3
from mistrnn.paper.comparison import run_rows
from mistrnn.paper.estimates import Share
from mistrnn.report import draw_figure2, draw_figure3
from mistrnn.report.figure3 import MOST_POINTS
from mistrnn.tasks import make_task
from mistrnn.training import Recorded, Study, study_task
from mistrnn.training.store import Store
from tests.tasks.idx_files import write_mnist
from tests.training.test_store import ROW


def test_figure1_holds_every_connection_and_a_shortest_path() -> None:
    rows = figure1.rows(tau=21)
    edges = {a.name: [row for row in rows if row["architecture"] == a.name] for a in figure1.ARCHITECTURES}
    count = {
        name: sum(row["what"] == "shortest path" and row["through"] == "hidden state" for row in own)
        for name, own in edges.items()
    }
    assert list(count.values()) == [21, 21, 11, 3]
    assert sorted(-row["from"] for row in edges[figure1.ARCHITECTURES[3].name] if row["what"] == "connection") == [
        1, 2, 4, 8, 16,
    ]  # fmt: skip
    assert {row["through"] for row in edges["LSTM"]} == {"hidden state", "cell"}


def test_figure2_is_the_papers_setup() -> None:
    studies = [figure2.study(row) for row in figure2.PAPER_ROWS]
    assert [(s.layer, s.hidden) for s in studies] == [("rnn", 198), ("lstm", 100), ("clockwork", 256), ("mist", 139)]
    assert all(
        isinstance(s, Study) and s.task == "pmnist" and s.batch_size == 100 and s.optimizer == "sgd" for s in studies
    )
    assert [round(s.learning_rate or 0, 4) for s in studies] == [0.0054, 0.0776, 0.0123, 0.0447]
    assert {(s.steps, s.trials, s.gradients_every) for s in studies} == {(200, 10, 50)}


def test_figure2_draws_narx_and_gru_with_the_parameters_of_the_lstm() -> None:
    budget = count_parameters("lstm", 100, 1, 10)
    found = {row.layer: row.hidden for row in figure2.OTHER_ROWS}
    assert found == {layer: match_parameters(layer, budget, 1, 10) for layer in ("narx", "gru")}


def test_figure2_shortened_measures_draws_and_resumes(tmp_path: Path) -> None:
    task = make_task("pmnist", {"last_pixels": 25}, data=write_mnist(tmp_path / "data", train=120))
    rows = [figure2.Row("rnn", 4, -2.27), figure2.Row("mist", 5, -1.35)]
    steps: list[int] = []
    settings = {"steps": 2, "trials": 2, "rows": rows, "device": "cpu"}

    def run() -> list[figure2.Curve]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figure2, "study", small_study)
            return figure2.run(tmp_path / "out", task, report=lambda p: steps.append(p.step), **settings)  # type: ignore[arg-type]

    curves = run()
    assert [curve.norms.shape for curve in curves] == [(2, 25), (2, 25)]
    assert [list(curve.by_step) for curve in curves] == [[0, 1, 2], [0, 1, 2]]
    assert all(0 <= curve.reach().low <= curve.reach().median <= curve.reach().high < 25 for curve in curves)
    sentence = figure2.sentence(curves, 2)
    assert sentence.startswith(
        "After 2 steps of training, at least 1% of the largest gradient norm still arrives, in the "
    )
    assert f" {curves[0].reach().median:.0f} steps in RNN with 4 units (quartiles " in sentence
    files = draw_figure2(curves, tmp_path / "out", 2)
    assert [path.name for path in files] == ["figure2.svg", "figure2.png", "figure2.csv", "reach.csv"]
    header, *lines = files[2].read_text().splitlines()
    assert header.startswith("tau,rnn_4,rnn_4_low_quartile,rnn_4_high_quartile,mist_5,")
    assert len(lines) == 25
    assert float(lines[3].split(",")[4]) == curves[1].median[3].item()
    assert len(files[3].read_text().splitlines()) == 1 + 2 * 3 * len(figure2.SHARES)
    steps.clear()
    again = run()
    assert steps == []
    assert [c.norms.tolist() for c in again] == [c.norms.tolist() for c in curves]


real_study = figure2.study


def test_figure2_reach_is_median_and_quartiles_over_trials() -> None:
    tau = torch.arange(5)
    norms = torch.stack([torch.where(tau <= last, 1.0, 2**-20) for last in (0, 1, 2, 3, 4)]).double()
    curve = figure2.Curve(figure2.ROWS[0], {0: norms.flip(0)[:1], 7: norms})
    assert curve.reach() == figure2.Spread(median=2.0, low=1.0, high=3.0)
    assert curve.reach(0.01, step=0) == figure2.Spread(4.0, 4.0, 4.0)
    assert curve.median.tolist() == [1.0, 1.0, 1.0, 2**-20, 2**-20]
    assert curve.quartiles[:, 3].tolist() == [2**-20, 1.0]


def small_study(row: figure2.Row, **settings: int) -> Study:
    made = real_study(row, **settings)
    return Study(**{**made.as_dict(), "batch_size": 10, "task_settings": {"last_pixels": 25}})


def test_figure3_shows_the_best_curves_of_each_seed_and_counts_all_that_are_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [row for row in figure3.rows([10]) if row.study.layer == "rnn"]
    run_rows(chosen, tmp_path, [0, 1], study_task, trials=3, steps=50, device="cpu")
    assert Recorded(tmp_path / f"{chosen[0].key}-seed-1").row() == chosen[0].name
    errors = [
        trial["val_error"] for seed in (0, 1) for trial in Recorded(tmp_path / f"copy-10-rnn-seed-{seed}").trials()
    ]
    monkeypatch.setattr(figure3, "SOLVED", sorted(errors)[2])
    (shown,) = figure3.best_curves(tmp_path)
    assert (shown.delay, shown.label, shown.once.count, shown.once.trials) == (10, "RNN 203", 2, 6)
    assert shown.at_the_end.count <= shown.once.count
    assert [curve.seed for curve in shown.curves] == [0, 1]
    for curve in shown.curves:
        recorded = Recorded(tmp_path / f"copy-10-rnn-seed-{curve.seed}")
        columns = recorded.curves()
        own = columns["trial"] == recorded.best_trial()
        assert curve.trial == recorded.best_trial()
        assert curve.points == tuple(zip([25, 50], columns["val_error"][own].tolist(), strict=True))
    header, *points = draw_figure3([shown], tmp_path)[2].read_text().splitlines()
    assert header == "delay,layer,hidden,seed,trial,step,val_error"
    first = shown.curves[0]
    assert points[0] == f"10,rnn,203,0,{first.trial},25,{first.points[0][1]}"
    assert len(points) == 4


def test_figure3_tells_trials_that_stay_solved_from_those_that_do_not(tmp_path: Path) -> None:
    study = Study(task="copy", layer="mist", hidden=4, trials=4, steps=50, task_settings={"delay": 10})
    errors = {0: (0.0, 0.0005), 1: (0.0, 0.05), 2: (0.07, 0.06), 3: (0.0002, 0.0)}
    rows = [{**ROW, "trial": trial, "val_error": min(pair), "test_error": min(pair)} for trial, pair in errors.items()]
    rows[3]["status"] = "diverged"
    curves = {trial: [(25, 1.0, first), (50, 1.0, last)] for trial, (first, last) in errors.items()}
    with Store(tmp_path / "copy-10-mist-seed-0", study) as store:
        store.finish(rows, curves, {})
    (shown,) = figure3.best_curves(tmp_path)
    assert (shown.once.count, shown.at_the_end.count, shown.once.trials) == (3, 1, 4)
    svg = draw_figure3([shown], tmp_path)[0].read_text()
    assert "MIST 4: 3 of 4 solved, 1 at the end" in svg
    assert "up to 5 of each row and seed; 50 of the paper's 100,000 steps" in svg
    assert "are cut" not in svg


def test_figure3_draws_long_curves_with_fewer_points_and_their_last_one(tmp_path: Path) -> None:
    control = figure3.rows([50], control=True)[0].study
    peak = 25 * 777
    points = tuple((25 * k, 0.9 if 25 * k == peak else 0.05) for k in range(1, 2 * MOST_POINTS + 3))
    row = figure3.BestCurves(control, (figure3.Curve(0, 7, points),), once=Share.of(0, 50), at_the_end=Share.of(0, 50))
    _, *lines = draw_figure3([row], tmp_path)[2].read_text().splitlines()
    steps = [int(line.split(",")[5]) for line in lines]
    assert MOST_POINTS / 3 < len(steps) <= MOST_POINTS
    assert (steps[0], steps[-1]) == (25, points[-1][0])
    assert peak in steps


def test_figure3_of_three_delays_leaves_the_fourth_panel_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[bool]] = []

    def look(figure: Figure, *_: object) -> list[Path]:
        drawn.append([axes.axison for axes in figure.axes])
        return []

    monkeypatch.setattr("mistrnn.report.figure3.save_figure", look)
    curve = figure3.Curve(0, 1, ((25, 0.05), (50, 0.04)))
    draw_figure3(
        [
            figure3.BestCurves(row.study, (curve,), Share.of(0, 1), Share.of(0, 1))
            for row in figure3.rows([50, 100, 200])[::4]
        ],
        tmp_path,
    )
    assert drawn == [[True, True, True, False]]
