"""The error for data that is not on this machine."""


class MissingData(FileNotFoundError):
    """A data set is known but not to be had here; the message says how to get it.

    Raised for an archive that is not installed, and for a download that fails or whose file is damaged.
    """

    def __str__(self) -> str:  # OSError would print its message as a tuple for some argument counts
        return str(self.args[0]) if self.args else ""
