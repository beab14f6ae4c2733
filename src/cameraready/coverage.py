"""The one answer that a method gives outside its theory's regime."""


class NotCovered(ValueError):
    """The question lies outside what the theory says: the reason stands where a number would.

    Functions raise it, or put it where a report's other values are numbers. As a value it is false, prints and formats
    as its text, and no arithmetic works on it.

    Examples
    --------
    >>> print(NotCovered("no learning rate was given"))
    not covered: no learning rate was given
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"not covered: {self.reason}"

    def __format__(self, spec: str) -> str:
        return str(self)
