from libckpt.session import Level, Session

LEVELS: tuple[Level, ...]

def said(outcome: str) -> str: ...

class Future:
    def __init__(self, session: Session, step: int, outcome: str, level: Level) -> None: ...
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
        self, session: Session, step: int, outcome: str, exposed_seconds: float
    ) -> None: ...
    def __bool__(self) -> bool: ...
