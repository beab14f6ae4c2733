"""Molecule encoders: an MLP on Morgan counts, or a graph isomorphism network on atoms and bonds."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cameraready.methods.recog.molecules import N_BITS, Molecules

Encoder = Literal["ecfp", "gin"]


def make_encoder(kind: Encoder, *, width: int, layers: int = 3) -> nn.Module:
    """An encoder of molecules to (n, width); `layers` are the GIN's."""
    if kind == "ecfp":
        return EcfpEncoder(width)
    if kind == "gin":
        return GinEncoder(width, layers)
    raise ValueError(f"encoder={kind!r}; choose 'ecfp' or 'gin'")


class EcfpEncoder(nn.Module):
    """Counts of Morgan environments -> 128 -> width, dropout 0.3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(N_BITS, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, width), nn.LayerNorm(width)
        )

    def inputs(self, molecules: Molecules, rows: NDArray[np.intp], device: torch.device) -> Tensor:
        return torch.from_numpy(molecules.counts[rows].toarray()).to(device)

    def forward(self, counts: Tensor) -> Tensor:
        return self.layers(counts)


class GinEncoder(nn.Module):
    """Graph isomorphism network with bond features (torch_geometric's GINEConv), mean over atoms."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        try:
            from torch_geometric.nn import GINEConv, global_mean_pool
        except ImportError as error:
            raise ImportError('encoder="gin" needs torch_geometric; pip install "cameraready[graph]"') from error
        self.atoms = nn.ModuleList([nn.Embedding(size, width) for size in (119, 9)])
        self.bonds = nn.ModuleList([nn.Embedding(size, width) for size in (22, 6)])
        self.convolutions = nn.ModuleList(
            GINEConv(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)))
            for _ in range(layers)
        )
        # LayerNorm, not the usual batch norm: predictions must not depend on which molecules are together.
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.dropout = nn.Dropout(0.3)
        self.pool = global_mean_pool

    def inputs(self, molecules: Molecules, rows: NDArray[np.intp], device: torch.device) -> Any:
        from torch_geometric.data import Batch

        return Batch.from_data_list([molecules.graphs[row] for row in rows]).to(device)

    def forward(self, graphs: Any) -> Tensor:
        h = sum(table(graphs.x[:, place]) for place, table in enumerate(self.atoms))
        bonds = sum(table(graphs.edge_attr[:, place]) for place, table in enumerate(self.bonds))
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            h = norm(convolution(h, graphs.edge_index, bonds))
            if number < len(self.norms) - 1:
                h = torch.relu(h)
            h = self.dropout(h)
        return self.pool(h, graphs.batch, graphs.num_graphs)
