"""Problems to solve: integer programmes and puzzles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cameraready.data.archive import archive_file
from cameraready.data.download import Remote, locate
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import pandas as pd

_HIGHS = "https://raw.githubusercontent.com/ERGO-Code/HiGHS/73cac48c5340d775a477087198611862559be250/check/instances/"
_SCIP = "https://raw.githubusercontent.com/scipopt/scip/890a3f0906a55b795ac27a33bf953099e1a16553/check/instances/MIP/"

_MODELS = {
    "bell5": (_HIGHS, "d4846d7ea889d482e32842832e599ca6d0dc04fd8ea3ea58f49a52b436859dd5"),
    "blend2": (_SCIP, "48c009606d5e949baa8e5e060c8b0cafd3eb96f9d615d98fff0d626d5b6e503f"),
    "dcmulti": (_HIGHS, "a9552af8f0fd228851352ba60b62a64639f8ffd4a01f217afc095eaac4c29a75"),
    "egout": (_HIGHS, "351ed046eb56e07662b3c2dba35800f5d2cee3fac18c1bd7fbc8dea4a0dcd8db"),
    "enigma": (_SCIP, "67ad9acae8e488fd72205b1a6b84e8f5b00cfde386c89ca9430e24d8d9667bda"),
    "flugpl": (_HIGHS, "ed4b1fcb07d26b513027721d61344c2c4371cb506bf66098df328047c183b0c0"),
    "gesa2": (_HIGHS, "fe43df9f95b79fbceae3b4c5f8a152e9498facf5adf750f6255fe4c693af02c3"),
    "gt2": (_HIGHS, "7dfdce934f95ced966a14e9eaad34023bbe966dc295589a33ac0676d810707dd"),
    "lseu": (_HIGHS, "00416576ed4adac15b62b1982cb7be9d7dcb2d6505067dd8396183ff1eac3dab"),
    "misc03": (_SCIP, "caba4f42b1827e41cdd62c6548435cc786b9f9092f984f170cab8df939a84acb"),
    "p0548": (_HIGHS, "81fa3fb1e071cac0b72649c38196c18bca7ff6d7f2f6639776dcb0daf6bcab15"),
    "rgn": (_HIGHS, "b5dcb0e7587a8c676af20c845c805657202828b344848759caa72d1aa70a50ef"),
    "sp150x300d": (_HIGHS, "339aa4411ef126df72dc66718090fc6915debdc44d732a0f0be903310e52cf4a"),
}


@dataset(
    "mip:NAME",
    "optimisation",
    returns="pathlib.Path of an .mps file (highspy's readModel, pyscipopt's readProblem)",
    size="13 models, 4 to 240 kB",
    licence="free for research (MIPLIB)",
    source="MIPLIB, from HiGHS and SCIP",
    found="download",
    get=_HIGHS,
    members=tuple(_MODELS),
)
def mip(name: str) -> Path:
    """Small mixed-integer programmes of MIPLIB that solve in seconds."""
    home, checksum = _MODELS[name]
    return locate(Remote(f"mip/{name}.mps", f"{home}{name}.mps", checksum))


@dataset(
    "sudoku",
    "puzzles",
    returns="DataFrame (25000, 2): level 1 to 9, puzzle of 81 digits, 0 = blank",
    size="25,000 puzzles, 22 to 58 clues",
    licence="MIT",
    source="kaidoku",
    found="archive",
    package="kaidoku",
    get="pip install --no-deps kaidoku==1.0.1",
)
def sudoku() -> pd.DataFrame:
    """Distinct 9 x 9 Sudokus, graded 1 (easy) to 9."""
    import pandas as pd

    path = archive_file("kaidoku", "1.0.1", "kaidoku/data/sudoku.txt")
    return pd.read_csv(path, sep=r"\s+", header=None, usecols=[0, 1], names=["level", "puzzle"], dtype={1: str})
