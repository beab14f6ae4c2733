"""The one answer given outside the theory's regime."""


class NotCovered(ValueError):
    """The question lies outside what the theory says; the message gives the reason and no number is returned."""

    def __str__(self) -> str:
        return f"not covered: {self.args[0]}"
