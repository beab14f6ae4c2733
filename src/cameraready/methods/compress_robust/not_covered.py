"""The one answer given where the theory has none."""


class NotCovered(ValueError):
    """What was asked cannot be certified for this model; the message gives the reason and no number is returned."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not covered: {reason}")
        self.reason = reason
