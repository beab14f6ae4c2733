"""Molecules from SMILES: parsed by RDKit once, kept as canonical SMILES with their Morgan fingerprints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

N_BITS = 2048
RADIUS = 2
MAX_COUNT = 4


@dataclass(frozen=True)
class Molecules:
    """Molecules that RDKit can read, with what it could not.

    Attributes
    ----------
    smiles : tuple of str
        Canonical SMILES of the n molecules that were read.
    counts : CSR array (n, 2048) of float32
        Morgan fingerprints of radius 2: counts of each environment, capped at 4.
    rows : int array (n,)
        Place of each molecule among the SMILES that were given.
    rejected : tuple of (int, str)
        Place and text of what is not a molecule.
    """

    smiles: tuple[str, ...]
    counts: sparse.csr_array
    rows: NDArray[np.intp]
    rejected: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_smiles(cls, smiles: Sequence[Any], *, largest_fragment: bool = False) -> Molecules:
        """Read SMILES; what RDKit refuses, and empty text, goes to `rejected`.

        Parameters
        ----------
        smiles : sequence of str
        largest_fragment : keep only the largest part of salts and mixtures.

        Raises
        ------
        TypeError : one string instead of a list of them.

        Examples
        --------
        >>> read = Molecules.from_smiles(["OCC", "no molecule", "c1ccccc1"])
        >>> read.smiles, read.rejected
        (('CCO', 'c1ccccc1'), ((1, 'no molecule'),))
        """
        if isinstance(smiles, str):
            raise TypeError(f"smiles={smiles!r} is one string; pass a list of SMILES")
        Chem, fingerprints = _rdkit()
        generator = fingerprints.GetMorganGenerator(radius=RADIUS, fpSize=N_BITS)
        names, rows, rejected = [], [], []
        columns: list[int] = []
        values: list[int] = []
        ends = [0]
        for row, text in enumerate(smiles):
            molecule = _parse(Chem, text, largest_fragment)
            if molecule is None:
                rejected.append((row, str(text)))
                continue
            names.append(Chem.MolToSmiles(molecule))
            rows.append(row)
            found = generator.GetCountFingerprint(molecule).GetNonzeroElements()
            columns.extend(found)
            values.extend(found.values())
            ends.append(len(columns))
        data = np.minimum(np.array(values, dtype=np.float32), MAX_COUNT)
        counts = sparse.csr_array(
            (data, np.array(columns, dtype=np.int32), np.array(ends, dtype=np.int32)), shape=(len(names), N_BITS)
        )
        counts.sort_indices()
        return cls(tuple(names), counts, np.array(rows, dtype=np.intp), tuple(rejected))

    def __len__(self) -> int:
        return len(self.smiles)

    def take(self, rows: NDArray[np.integer]) -> Molecules:
        """The molecules at these places, numbered anew."""
        rows = np.asarray(rows)
        chosen = tuple(self.smiles[row] for row in rows)
        return Molecules(chosen, self.counts[rows], np.arange(len(rows), dtype=np.intp))

    @cached_property
    def bits(self) -> sparse.csr_array:
        """Which environments are there, (n, 2048) of 0 and 1."""
        bits = self.counts.copy()
        bits.data = np.ones_like(bits.data)
        return bits

    @cached_property
    def scaffolds(self) -> tuple[str, ...]:
        """Bemis-Murcko scaffolds; a molecule without rings is a scaffold of its own."""
        from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

        return tuple(MurckoScaffoldSmiles(name) or name for name in self.smiles)

    @cached_property
    def graphs(self) -> tuple[Any, ...]:
        """torch_geometric graphs: atoms as (atomic number, chirality), bonds as (type, stereo)."""
        from torch_geometric.utils import from_smiles

        graphs = []
        for name in self.smiles:
            graph = from_smiles(name)
            graph.x, graph.edge_attr = graph.x[:, :2], graph.edge_attr[:, :2]
            graphs.append(graph)
        return tuple(graphs)


def tanimoto(left: Molecules, right: Molecules) -> NDArray[np.float32]:
    """Shared environments over all environments of two molecules, (len(left), len(right)) in [0, 1].

    Examples
    --------
    >>> ethanol = Molecules.from_smiles(["CCO"])
    >>> tanimoto(ethanol, Molecules.from_smiles(["OCC", "c1ccccc1"])).tolist()
    [[1.0, 0.0]]
    """
    return bit_tanimoto(left.bits, right.bits)


def bit_tanimoto(left: sparse.csr_array, right: sparse.csr_array) -> NDArray[np.float32]:
    """`tanimoto` of rows of bits."""
    shared = (left @ right.T).toarray()
    either = np.diff(left.indptr)[:, None] + np.diff(right.indptr)[None, :] - shared
    return np.asarray(shared / np.maximum(either, 1), dtype=np.float32)


def _rdkit() -> tuple[Any, Any]:
    try:
        from rdkit import Chem
        from rdkit.Chem import rdFingerprintGenerator
    except ImportError as error:
        raise ImportError('molecules are read by RDKit; pip install "cameraready[molecules]"') from error
    return Chem, rdFingerprintGenerator


def _parse(Chem: Any, text: Any, largest_fragment: bool) -> Any:
    """The molecule, or None."""
    if not isinstance(text, str) or not text.strip():
        return None
    from rdkit import rdBase

    with rdBase.BlockLogs():  # what cannot be read is reported by us, with its row
        molecule = Chem.MolFromSmiles(text.strip())
        if molecule is not None and largest_fragment and "." in text:
            parts = Chem.GetMolFrags(molecule, asMols=True)
            molecule = max(parts, key=lambda part: part.GetNumHeavyAtoms())
    return None if molecule is None or molecule.GetNumAtoms() == 0 else molecule
