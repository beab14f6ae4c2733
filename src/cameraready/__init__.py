"""New machine-learning methods as working software, each with its claims re-tested on your machine."""

__version__ = "0.1.0"
