"""All workers of a study, and the loop that gives them groups and listens to them."""

import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.training.cluster.worker import Desk, Failure, Post, versions
from mistrnn.training.ledger import Assignment, Interrupted, Ledger
from mistrnn.training.run import Results, Standing

POLL_SECONDS = 0.5
"""How often the loop looks up while all are busy."""

PATIENCE_SECONDS = 30.0
"""A line is said when nothing has been heard for so long."""

LOSSES_ALLOWED = 3
"""Workers that may die over one group, or before they have begun: then something is wrong with more than a worker."""


@dataclass(eq=False)
class Member:
    """A worker as it is seen from here."""

    actor: Any
    doing: str = ""
    group: Assignment | None = None
    desk: Desk | None = None


class Crew:
    """Keeps a number of workers busy until the ledger is done."""

    def __init__(
        self,
        ray: ModuleType,
        ledger: Ledger,
        worker_class: Any,
        post: Post,
        parts: Any,
        group_size: int,
        begun_group_size: int | None = None,
    ) -> None:
        self._ray, self._ledger = ray, ledger
        self._worker_class, self._post, self._parts = worker_class, post, parts
        self._group_size, self._begun_group_size = group_size, begun_group_size
        self._busy: dict[Any, Member] = {}
        """By the answer that is waited for."""
        self._idle: list[Member] = []
        self._lost_before_work = 0
        self._heard = time.monotonic()

    def work(self, workers: int) -> None:
        """Let so many workers train all that waits."""
        try:
            for _ in range(workers):
                self._hire()
            while self._ledger.unfinished:
                if self._ledger.watch.stop():
                    self._save_all()
                    raise Interrupted
                while self._idle and self._ledger.waiting:
                    self._give_group(self._idle.pop())
                self._listen()
        finally:
            for member in (*self._busy.values(), *self._idle):
                self._ray.kill(member.actor)

    def _hire(self) -> None:
        self._ask(Member(self._worker_class.remote(self._post)), "settle", versions(), self._parts)

    def _ask(self, member: Member, what: str, *arguments: Any) -> None:
        member.doing = what
        self._busy[getattr(member.actor, what).remote(*arguments)] = member

    def _give_group(self, member: Member) -> None:
        assert member.desk is not None
        fits = member.desk.fits
        begun_limit = fits if self._begun_group_size is None else min(fits, self._begun_group_size)
        member.group, checkpoint = self._ledger.take(min(self._group_size, fits), begun_limit)
        self._ask(member, "begin", member.group.trials, checkpoint)

    def _listen(self) -> None:
        """Wait for an answer, though not long, and give its worker the next task."""
        ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=POLL_SECONDS)
        if not ready and time.monotonic() - self._heard > PATIENCE_SECONDS:
            self._ledger.watch.say("waiting for the cluster: " + self._what_all_do())
        if ready or time.monotonic() - self._heard > PATIENCE_SECONDS:
            self._heard = time.monotonic()
        for answer in ready:
            member = self._busy.pop(answer)
            try:
                self._heard_from(member, self._ray.get(answer))
            except self._ray.exceptions.RayTaskError as error:  # our own code failed: no other worker would do better
                raise UsageError(f"a worker failed at {member.doing!r}: {_last_line(error)}") from error
            except self._ray.exceptions.RayError as error:  # the worker, its node or what it sent is gone
                self._lost(member, error)

    def _heard_from(self, member: Member, answer: Any) -> None:
        if isinstance(answer, Failure):
            self._failed(member, answer)
        elif isinstance(answer, Desk):
            member.desk, self._lost_before_work = answer, 0
            self._rest(member)
        elif isinstance(answer, Standing):
            assert member.group is not None
            self._ledger.advanced(member.group, answer)
            if answer.done:
                self._ask(member, "results")
            else:
                self._ask(member, "advance", member.group.hopeless, self._ledger.wants_checkpoint(member.group))
        else:
            assert isinstance(answer, Results)
            assert member.group is not None
            self._ledger.finished(member.group, answer)
            self._rest(member)

    def _rest(self, member: Member) -> None:
        member.group = None
        self._idle.append(member)

    def _failed(self, member: Member, failure: Failure) -> None:
        if failure.kind == "setup":
            self._ray.kill(member.actor)
            others = (*self._busy.values(), *self._idle)
            if not any(other.desk or other.doing == "settle" for other in others):
                raise UsageError(failure.text)
            self._ledger.watch.say(f"going on without a worker: {failure.text}")
            return
        assert member.group is not None
        assert member.desk is not None
        group, count = member.group, len(member.group.trials)
        if failure.kind == "computation":
            self._ledger.crashed(group, failure.text, member.desk.device)
        elif count == 1:
            raise UsageError(f"one trial does not fit into the memory of {member.desk.host}: {failure.text}")
        else:
            self._too_large(member)
        self._rest(member)

    def _too_large(self, member: Member) -> None:
        """Let the trials of a group that did not fit into memory wait for smaller ones."""
        assert member.group is not None
        assert member.desk is not None
        count = len(member.group.trials)
        self._group_size = self._begun_group_size = min(self._group_size, count // 2)
        self._ledger.watch.say(
            f"{count} trials did not fit into the memory of {member.desk.host}: going on with groups of {self._group_size}"
        )
        self._ledger.split(member.group)

    def _lost(self, member: Member, error: Exception) -> None:
        """Replace a worker that died; its group goes to the next free worker."""
        if member.group is None or member.desk is None:
            self._lost_before_work += 1
            if self._lost_before_work >= LOSSES_ALLOWED:
                raise UsageError(
                    f"workers cannot start: {_last_line(error)}. Every node needs the same mistrnn, torch and Python."
                ) from error
        elif isinstance(error, self._ray.exceptions.OutOfMemoryError) and len(member.group.trials) > 1:
            self._too_large(member)
        elif member.group.losses + 1 >= LOSSES_ALLOWED:
            self._ledger.crashed(member.group, f"{LOSSES_ALLOWED} workers died over it", member.desk.device)
        else:
            self._ledger.watch.say(
                f"a worker on {member.desk.host} died; {member.group} will be taken up by another, from the last checkpoint"
            )
            self._ledger.lost(member.group)
        self._hire()

    def _save_all(self) -> None:
        """Wait for what all are doing, and save it."""
        for answer, member in self._busy.items():
            if member.group is None:
                continue
            try:
                found = self._ray.get(answer)
                if isinstance(found, Results):
                    self._ledger.finished(member.group, found)
                elif isinstance(found, Standing):
                    self._ledger.advanced(member.group, found)
                    self._ledger.save(member.group, self._ray.get(member.actor.checkpoint.remote()))
            except self._ray.exceptions.RayError:
                continue  # its last checkpoint stands

    def _what_all_do(self) -> str:
        doing = [member.doing for member in self._busy.values()]
        words = {"settle": "to start", "begin": "to begin", "advance": "in training", "results": "in the test"}
        return ", ".join(f"{doing.count(what)} workers {word}" for what, word in words.items() if what in doing)


def _last_line(error: Exception) -> str:
    """Return what an error of Ray says in the end, below the traceback of another machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
