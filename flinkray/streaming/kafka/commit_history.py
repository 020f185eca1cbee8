"""History of the committables committed under one transactional id. Kafka stores it as text."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.streaming.errors import StreamError

MOST_RUNS = 16
"""Number of writers in the history. Its text stays far below Kafka's limit of 4096 bytes."""


@dataclass(frozen=True)
class CommittedRun:
    """Numbers of a writer's committed committables: all up to *up_to*, and those in *beyond*."""

    up_to: int = 0
    beyond: frozenset[int] = frozenset()

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.up_to or sequence in self.beyond

    def plus(self, sequence: int) -> CommittedRun:
        """Return the run with the committable *sequence* added."""
        beyond, up_to = {*self.beyond, sequence}, self.up_to
        while up_to + 1 in beyond:
            up_to += 1
        return CommittedRun(up_to, frozenset(number for number in beyond if number > up_to))


@dataclass(frozen=True)
class CommitHistory:
    """Says which committables were committed, for each writer.
    The writer of the latest commit is last in *runs*. A writer numbers its committables from 1.
    Each number is committed once, mostly in order. After a change of parallelism, two committers
    may have committables of one writer."""

    runs: dict[str, CommittedRun] = field(default_factory=dict)

    def has(self, run: str, sequence: int) -> bool:
        """Return whether the committable *sequence* of the writer *run* was committed."""
        return sequence in self.runs.get(run, CommittedRun())

    def plus(self, run: str, sequence: int) -> CommitHistory:
        """Return the history with the committable *sequence* of the writer *run* added."""
        others = {name: of for name, of in self.runs.items() if name != run}
        for name in list(others)[: max(0, len(others) + 1 - MOST_RUNS)]:
            del others[name]
        return CommitHistory({**others, run: self.runs.get(run, CommittedRun()).plus(sequence)})

    def text(self) -> str:
        """Return the history in the form in which it is stored."""
        return " ".join(
            f"{name}:{'+'.join(map(str, (of.up_to, *sorted(of.beyond))))}"
            for name, of in self.runs.items()
        )

    @staticmethod
    def parse(text: str) -> CommitHistory:
        """Parse a stored history. Raises StreamError if the text is no history."""
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
