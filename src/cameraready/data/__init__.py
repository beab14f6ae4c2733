"""The one door to data: packaged sets, generators, canonical downloads and users' own files.

>>> from cameraready import data
>>> data.load("digits").shape
(1797, 64)
>>> table = data.load("wine")
>>> table.X.shape, table.y.name
((178, 13), 'target')

`load(name)` reads a named set, `open(path, kind=...)` a user's file, `catalogue()` lists every name. Importing this
package loads none of numpy, pandas, scikit-learn or torch: each loader imports what it reads with.
"""

from cameraready.data import (  # noqa: F401  (importing a topic registers its sets)
    generators,
    graphs,
    images,
    interactions,
    models,
    molecules,
    problems,
    responses,
    tables,
    text,
    vectors,
)
from cameraready.data.containers import Graph, Interactions, LabelledImages, Table
from cameraready.data.digests import digest
from cameraready.data.files import open
from cameraready.data.missing import MissingData
from cameraready.data.registry import Entry, catalogue, fingerprint, load

__all__ = [
    "Entry",
    "Graph",
    "Interactions",
    "LabelledImages",
    "MissingData",
    "Table",
    "catalogue",
    "digest",
    "fingerprint",
    "load",
    "open",
]
