"""The one answer given outside the theory's regime."""


class NotCovered(ValueError):
    """The question lies outside what the theory says; the message gives the reason and no number is returned."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not covered: {reason}")
