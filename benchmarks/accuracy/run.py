"""Compare the default estimators with rivals: `python benchmarks/accuracy/run.py --data DIR`, then table.py.

Every run is one line of results/accuracy/runs.jsonl. Runs that are there are not repeated. Jobs are ordered by seed: all sets
and methods with seed 0 come first. A job that fails is recorded with its reason. Ctrl-C loses only the jobs in progress.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results" / "accuracy" / "runs.jsonl"
CUE_SEEDS, SEEDS = 20, 5
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before torch and numba are imported, here and in the workers

import numpy as np  # noqa: E402
import torch  # noqa: E402
from data import PREPARED, SETS, NotAvailableError, loaded, prepare, summary  # noqa: E402
from methods import METHODS, Budget  # noqa: E402


class Job(NamedTuple):
    """One training run."""

    method: str
    set: str
    seed: int


@dataclass(frozen=True)
class Row:
    """The record of one run; accuracy is None if it failed, and error says why."""

    method: str
    set: str
    seed: int
    accuracy: float | None = None
    seconds: float | None = None
    test_seconds: float | None = None
    parameters: int | None = None
    epochs: int | None = None
    minibatches: int | None = None
    error: str | None = None
    device: str = "cpu"


def run(job: Job, folder: Path | None, budget: Budget) -> Row:
    """Train and test once."""
    torch.set_num_threads(1)
    try:
        parts, one = loaded(job.set, folder), SETS[job.set]
        model = METHODS[job.method].make(one, parts.train, job.seed, budget)
        if hasattr(model, "warm_up"):
            model.warm_up(parts.train.x, parts.train.y)
        grouped = METHODS[job.method].ours and parts.train.groups is not None
        extra = {"groups": parts.train.groups} if grouped else {}
        start = time.perf_counter()
        model.fit(parts.train.x, parts.train.y, **extra)
        fitted = time.perf_counter()
        accuracy = accuracy_of(model.predict(parts.test.x), parts.test.y, frames=one.frames)
        tested = time.perf_counter()
    except NotAvailableError as error:
        return Row(*job, error=str(error))
    except Exception as error:  # a method that does not run is part of the result
        reason = str(error).strip().split("\n")[0][:200]
        return Row(*job, error=f"{type(error).__name__}: {reason}")
    count = model.parameter_count() if hasattr(model, "parameter_count") else None
    return Row(
        *job,
        accuracy=accuracy,
        seconds=round(fitted - start, 3),
        test_seconds=round(tested - fitted, 3),
        parameters=count,
        epochs=getattr(model, "n_epochs_", None),
        minibatches=getattr(model, "minibatches", None),
        device=budget.device if METHODS[job.method].ours else "cpu",
    )


def accuracy_of(found: Any, wanted: Any, *, frames: bool) -> float:
    """Return the accuracy; steps without a label do not count."""
    if frames:
        found, wanted = np.concatenate([np.asarray(one, dtype=object) for one in found]), np.concatenate(wanted)
        there = np.array([label is not None for label in wanted])
        found, wanted = found[there], wanted[there]
    return float(np.mean(np.asarray(found) == np.asarray(wanted)))


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Return all jobs in order: by seed, then set, then method."""
    jobs = []
    for seed in options.seeds if options.seeds is not None else range(max(CUE_SEEDS, SEEDS)):
        for one in map(SETS.__getitem__, options.sets):
            for name in options.methods:
                method = METHODS[name]
                most = one.rival_seeds
                if method.ours and options.seeds is not None:
                    most = seed + 1
                elif method.ours:
                    most = CUE_SEEDS if name.startswith("mist") and one.kind == "cue" else SEEDS
                if seed < most and method.applies_to(one):
                    jobs.append(Job(name, one.name, seed))
    return jobs


def recorded(path: Path) -> dict[Job, dict[str, Any]]:
    """Return the last row of each job."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {Job(row["method"], row["set"], row["seed"]): row for row in rows}


def environment() -> dict[str, Any]:
    """Return the commit, versions and threads that every row carries."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    versions = {}
    for package in ("torch", "aeon", "scikit-learn", "mistrnn"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    changed = "+changes" if git("status", "--porcelain", "src") else ""
    return {"commit": git("rev-parse", "--short", "HEAD") + changed, "versions": versions, "threads": 1}


def write(path: Path, row: Row, where: dict[str, Any]) -> None:
    """Append one line in one write, so that lines of several runners do not mix; a set without files is only reported."""
    record = asdict(row) | where | {"date": time.strftime("%Y-%m-%dT%H:%M:%S")}
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (row.error or "").startswith("not available"):
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
    found = row.error or f"{100 * (row.accuracy or 0):.1f}% in {row.seconds:.1f} s, {row.parameters} weights"
    print(f"{time.strftime('%H:%M:%S')} {row.set} {row.method} seed {row.seed}: {found}", flush=True)


def start_worker() -> None:
    """Leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Pool:
    """Worker processes; replaced when one of them dies."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.executor = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.size, multiprocessing.get_context("spawn"), start_worker)

    def rows(self, jobs: list[Job], deadline: float, folder: Path | None, budget: Budget) -> Iterator[Row]:
        """Run the jobs, and yield each row as it comes; start none after the deadline."""
        waiting, running = list(reversed(jobs)), dict[Future[Row], Job]()
        while waiting or running:
            while waiting and len(running) < self.size and time.monotonic() < deadline:
                job = waiting.pop()
                running[self.executor.submit(run, job, folder, budget)] = job
            if not running:
                print(f"time limit: {len(waiting)} jobs left")
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            broken = False
            for future in done:
                job = running.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    broken = True
                    yield Row(*job, error="worker process died")
            if broken:
                for job in running.values():  # died along with the other
                    yield Row(*job, error="worker process died")
                running.clear()
                self.executor.shutdown(wait=False)
                self.executor = self._new()

    def stop(self) -> None:
        """End the workers at once."""
        for process in list((self.executor._processes or {}).values()):
            process.terminate()
        self.executor.shutdown(wait=False, cancel_futures=True)


def names(known: dict[str, Any], text: str) -> list[str]:
    """Return the names in a list with commas."""
    found = text.split(",")
    unknown = [name for name in found if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown name {unknown[0]!r}; known are {', '.join(known)}")
    return found


def numbers(text: str) -> list[int]:
    """Return the seeds of a text such as 0-4 or 0,2,7."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def arguments() -> argparse.Namespace:
    """Read the command line."""
    rivals = ",".join(name for name, method in METHODS.items() if not method.ours)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = os.environ.get("MISTRNN_DATA")
    parser.add_argument("--data", type=Path, default=place, help="data folder; else MISTRNN_DATA")
    parser.add_argument(
        "--methods", default=",".join(METHODS), help=f"with commas, of {', '.join(METHODS)}; or 'rivals'"
    )
    parser.add_argument("--sets", default=",".join(SETS), help=f"with commas, of {', '.join(SETS)}")
    parser.add_argument(
        "--seeds", type=numbers, help=f"such as 0-4; else 0-{SEEDS - 1}, and 0-{CUE_SEEDS - 1} for mist on cues"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="minutes after which no job is started")
    parser.add_argument("--parameters", type=int, default=Budget.parameters, help="weights of the rivals")
    parser.add_argument("--minibatches", type=int, default=Budget.minibatches, help="training steps of the rivals")
    parser.add_argument("--device", default=Budget.device, help="where our estimators train: cpu or cuda")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="write the sets into DIR/prepared, and stop")
    parser.add_argument("--out", type=Path, default=RUNS)
    parser.add_argument("--retry", action="store_true", help="run failed jobs again")
    parser.add_argument("--again", action="store_true", help="run recorded jobs again; the table takes the last row")
    parser.add_argument("--summary", action="store_true", help="print cases and classes of the sets, and stop")
    options = parser.parse_args()
    try:
        options.methods = names(METHODS, rivals if options.methods == "rivals" else options.methods)
        options.sets = names(SETS, options.sets)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Run all jobs that are missing."""
    options = arguments()
    if options.summary:
        for name in options.sets:
            print(summary(name, options.data), flush=True)
        return 0
    if options.prepare is not None:
        for name in options.sets:
            prepare(name, options.data, options.prepare / PREPARED)
        return 0
    there = recorded(options.out)
    jobs = [
        job
        for job in jobs_of(options)
        if options.again or job not in there or (options.retry and there[job]["accuracy"] is None)
    ]
    print(f"{len(jobs)} jobs", flush=True)
    where, pool = environment(), Pool(options.jobs)
    deadline = time.monotonic() + 60 * options.time_limit
    try:
        for row in pool.rows(
            jobs, deadline, options.data, Budget(options.parameters, options.minibatches, options.device)
        ):
            write(options.out, row, where)
    except KeyboardInterrupt:
        print("stopped: finished runs are kept, the others are run by the same command", file=sys.stderr)
        return 130
    finally:
        pool.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
