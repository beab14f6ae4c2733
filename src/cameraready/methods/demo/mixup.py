"""Three ways to mix labelled nodes into what unseen anomalies may look like.

"simulate" mixes in the embedding space and labels a mixture by where it comes from; "ppr" is the paper's: nodes fused
by personalised PageRank as a second view of the known anomalies; "vanilla" mixes anomalies with normals.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cameraready.methods.demo.network import Network, Output
from cameraready.methods.demo.sampling import sample_neighbours

WEIGHTS = {"simulate": 0.5, "ppr": 0.1, "vanilla": 0.5, "none": 0.0}
VOID_TARGET = 0.8


def mix_anomalies(anomalies: Tensor, count: int, spread: Tensor) -> Tensor:
    """A-mix: points between three known anomalies (Dirichlet(1, 1, 1)) plus noise of 0.3 times ``spread``."""
    mixed = _mix(anomalies, torch.randint(len(anomalies), (count, 3), device=anomalies.device), concentration=1.0)
    return mixed + 0.3 * spread * torch.randn_like(mixed)


def mix_distant_normals(normals: Tensor, count: int) -> Tensor:
    """N-void: points amid three normals (Dirichlet(5, 5, 5)) that are far from one another.

    Of 4 ``count`` random triples those with the lowest summed cosine are taken: their middle is between communities of
    normal nodes, where no normal node lives.
    """
    triples = torch.randint(len(normals), (4 * count, 3), device=normals.device)
    with torch.no_grad():
        corners = F.normalize(normals, dim=1)[triples]
        cosine = (corners * corners.roll(1, dims=1)).sum(dim=(1, 2))
    return _mix(normals, triples[cosine.argsort()[:count]], concentration=5.0)


def simulate_loss(network: Network, output: Output, target: Tensor, normal_q95: Tensor) -> Tensor:
    """BCE of A-mix samples to 1 and of N-void samples to 0.8.

    Adaptive: an N-void sample that already scores above the running 95th percentile of the normals is dropped, so
    their number shrinks as the boundary closes in. Only the head learns from mixtures: through their corners the
    encoder would learn to move the normals towards what is called anomalous.
    """
    z = output.embedding.detach()
    anomalies, normals = z[target > 0.5], z[target <= 0.5]
    count = max(len(anomalies), 32)
    spread = anomalies.std(dim=0) if len(anomalies) > 1 else z.std(dim=0, correction=0)
    mixed = network.classify(mix_anomalies(anomalies, count, spread)).logit
    void = network.classify(mix_distant_normals(normals, count)).logit
    open_ = (void < normal_q95).to(void.dtype)
    void_loss = F.binary_cross_entropy_with_logits(void, torch.full_like(void, VOID_TARGET), reduction="none")
    return F.binary_cross_entropy_with_logits(mixed, torch.ones_like(mixed)) + (open_ * void_loss).mean()


def vanilla_loss(network: Network, output: Output, target: Tensor) -> Tensor:
    """BCE of mixtures of one anomaly with one normal to the anomaly's share."""
    z = output.embedding
    anomalies, normals = z[target > 0.5], z[target <= 0.5]
    count = max(len(anomalies), 32)
    share = torch.rand(count, 1, device=z.device)
    a, b = (part[torch.randint(len(part), (count,), device=z.device)] for part in (anomalies, normals))
    logit = network.classify(share * a + (1 - share) * b).logit
    return F.binary_cross_entropy_with_logits(logit, share[:, 0])


def personalised_pagerank(weights: sp.csr_array, *, alpha: float = 0.2) -> np.ndarray:
    """Pi = alpha (I - (1 - alpha) A_sym)^-1 as a dense matrix, for A_sym of a small graph or of a part of one.

    On a part, walks that leave it end there.
    """
    system = np.eye(weights.shape[0]) - (1 - alpha) * weights.toarray()
    return alpha * np.linalg.inv(system)


class PageRankMixup(nn.Module):
    """Consistency of the known anomalies' logits with those of PPR-fused features, less a diversity of two maps.

    Parameters
    ----------
    weights : A_sym of the graph
    x : features, shape (n, d)
    """

    def __init__(self, weights: sp.csr_array, x: Tensor, *, hidden: int, rng: np.random.Generator) -> None:
        super().__init__()
        self._weights, self._x, self._rng = weights, x, rng
        self.fuse = nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.maps = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(2)])

    def forward(self, network: Network, output: Output, nodes: Tensor, positions: Tensor) -> Tensor:
        """``nodes`` are the known anomalies' numbers in the graph, ``positions`` their rows in ``output``."""
        chosen = self._rng.permutation(len(nodes))[:25]
        nodes, positions = nodes[chosen], positions[chosen]
        around = nodes.cpu().numpy()
        for fanout in (10, 5):
            around, _ = sample_neighbours(self._weights, around, fanout=fanout, rng=self._rng)
        pagerank = personalised_pagerank(self._weights[around][:, around])[: len(nodes)]
        mix = torch.as_tensor(pagerank, dtype=self._x.dtype, device=self._x.device)
        fused = network.classify(
            network.projector(self.fuse(mix @ self._x[torch.from_numpy(around).to(self._x.device)]))
        )
        consistency = F.mse_loss(fused.logit, output.logit[positions])
        one, two = (F.normalize(layer(output.embedding[positions]), dim=1) for layer in self.maps)
        return consistency - 0.5 * (one - two).square().sum(dim=1).mean()


def _mix(z: Tensor, triples: Tensor, *, concentration: float) -> Tensor:
    gamma = torch.distributions.Dirichlet(torch.full((3,), concentration, device=z.device))
    return (gamma.sample((len(triples),))[:, :, None] * z[triples]).sum(dim=1)
