from typing import Any, Literal, Protocol

Level = Literal["captured", "replicated", "committed", "durable"]

LEVELS: tuple[Level, ...]

def outcome_text(outcome: str) -> str: ...

class _Levels(Protocol):
    """The calls of its session that a ticket needs."""

    def counts(self) -> dict[str, Any]: ...
    def wait(self, step: int, level: Level, deadline: float = 60.0) -> None: ...

class Future:
    def __init__(self, session: _Levels, step: int, outcome: str, level: Level) -> None: ...
    def result(self, timeout: float = 60.0) -> None: ...
    def done(self) -> bool: ...

class Ticket:
    step: int
    outcome: str
    exposed_seconds: float
    captured: Future
    replicated: Future
    committed: Future
    durable: Future
    def __init__(
        self, session: _Levels, step: int, outcome: str, exposed_seconds: float
    ) -> None: ...
    def __bool__(self) -> bool: ...
