"""Which committables were committed under one transactional id: kept in Kafka, pure here."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.streaming.errors import StreamError

MOST_RUNS = 16
"""Writers that are remembered; text of them stays far below Kafka's limit of 4096 bytes."""


@dataclass(frozen=True)
class CommittedRun:
    """What one writer has prepared and was committed: all up to a number, and some beyond it."""

    up_to: int = 0
    beyond: frozenset[int] = frozenset()

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.up_to or sequence in self.beyond

    def plus(self, sequence: int) -> CommittedRun:
        """With this one."""
        beyond, up_to = {*self.beyond, sequence}, self.up_to
        while up_to + 1 in beyond:
            up_to += 1
        return CommittedRun(up_to, frozenset(number for number in beyond if number > up_to))


@dataclass(frozen=True)
class CommitHistory:
    """By writer, the latest last.  A writer numbers what it prepares from 1 on, and each number is
    committed once; mostly in order, but after a change of parallelism two committers may have some
    of one writer."""

    runs: dict[str, CommittedRun] = field(default_factory=dict)

    def has(self, run: str, sequence: int) -> bool:
        """Whether it was committed."""
        return sequence in self.runs.get(run, CommittedRun())

    def plus(self, run: str, sequence: int) -> CommitHistory:
        """With this one."""
        others = {name: of for name, of in self.runs.items() if name != run}
        for name in list(others)[: max(0, len(others) + 1 - MOST_RUNS)]:
            del others[name]
        return CommitHistory({**others, run: self.runs.get(run, CommittedRun()).plus(sequence)})

    def text(self) -> str:
        """As it is stored."""
        return " ".join(
            f"{name}:{'+'.join(map(str, (of.up_to, *sorted(of.beyond))))}"
            for name, of in self.runs.items()
        )

    @staticmethod
    def parse(text: str) -> CommitHistory:
        """Raises StreamError: it is something else."""
        runs = {}
        for entry in text.split():
            name, _, numbers = entry.partition(":")
            try:
                up_to, *beyond = map(int, numbers.split("+"))
            except ValueError:
                raise StreamError(
                    f"what is committed there was not written by a Kafka sink: {text!r:.200}; "
                    "another application uses the transactional id prefix as its consumer group"
                ) from None
            runs[name] = CommittedRun(up_to, frozenset(beyond))
        return CommitHistory(runs)
