"""Restored: what a restore answers."""


class Restored:
    """What a restore brought: the step, its source, and the items that were made anew."""

    step: int
    timeline: int
    source: str  # "own_memory", "peer_memory" or "storage".
    source_name: str
    reason: str  # Why this step, and not a newer one.
    bytes: int
    seconds: float
    world_size: int  # The number of ranks that saved it.
    items: dict

    def __init__(self, answer, values):
        self.step = answer["step"]
        self.timeline = answer["timeline"]
        self.source = answer["source"]
        self.source_name = answer["source_name"]
        self.reason = answer["reason"]
        self.bytes = answer["bytes"]
        self.seconds = answer["seconds"]
        self.world_size = answer["world_size"]
        self.items = values

    def __repr__(self):
        return f"Restored(step={self.step}, from {self.source_name})"
