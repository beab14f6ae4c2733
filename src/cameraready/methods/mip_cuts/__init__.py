"""Learned cut selection for SCIP that also decides when separation starts and ends."""

import importlib
from typing import Any

# Each name's module is imported when it is first used: pyscipopt, gymnasium and torch are not needed to look around.
_HOMES = {
    "Budget": "control",
    "SelectorReport": "control",
    "CutSelectionEnv": "environment",
    "ExpertData": "recorder",
    "Policy": "policy",
    "RLCutSelector": "selector",
    "SolveRecord": "solving",
    "attach": "selector",
    "cauctions": "instances",
    "facility": "instances",
    "fetch_miplib": "instances",
    "indset": "instances",
    "lotsizing": "instances",
    "read_miplib": "instances",
    "record_expert": "recorder",
    "setcover": "instances",
    "solve": "solving",
    "train_gail": "imitation",
    "train_rl": "curriculum",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyscipopt", "gymnasium"):
            raise
        raise ImportError(f"{name} needs {error.name}; run: pip install 'cameraready[mip]'") from error
