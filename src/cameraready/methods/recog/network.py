"""The network on the context graph: relations of tasks, gated context edges, and a readout that starts from evidence.

Shapes: B episodes, S support molecules, Q queries, A auxiliary tasks, E context edges (a query and a task in which its
label is known), T the like of the support, d the width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cameraready.methods.recog.episodes import Episodes

EDGE = 16  # width of the embedding of a label
TEMPERATURE = 0.5  # of the Concrete distribution
FORGET = 0.1  # rate of the running mean and spread of the messages
TINY = 1e-6


class Output(NamedTuple):
    """What the network says.

    logits (B, Q); kl, the compression term, a number; gates (B, Q, A), 0 where no label is known; base (B, Q), the
    logits without what is learned beyond evidence and vote.
    """

    logits: Tensor
    kl: Tensor
    gates: Tensor
    base: Tensor


class Conditioned(NamedTuple):
    """What the support says: relations R (B, A, d), evidence LLR (B, A, 2), target u (B, d), support h (B, S, d)."""

    relations: Tensor
    evidence: Tensor
    target: Tensor
    support: Tensor


class ReCoGNetwork(nn.Module):
    """Logits of queries from an encoder, cross-task relations and a bottleneck on the context edges.

    Parameters
    ----------
    encoder : module from its own inputs to (M, width)
    width : d
    relations : without, a task is the mean of its edges to the support (a plain molecule-task graph), and every known
        label counts alike.
    bottleneck : without, every context edge counts fully.
    """

    def __init__(self, encoder: nn.Module, *, width: int, relations: bool = True, bottleneck: bool = True) -> None:
        super().__init__()
        self.encoder = encoder
        self.has_relations, self.has_bottleneck = relations, bottleneck
        self.label = nn.Parameter(torch.randn(2, EDGE))
        self.triplet = _mlp((2 * EDGE if relations else EDGE) + width, width)
        if relations:
            self.attention = nn.Sequential(nn.Tanh(), nn.Linear(width, 1, bias=False))
            self.joint = nn.Linear(6, width, bias=False)  # no bias: no common label, no relation
            self.propagate = nn.Linear(width, width, bias=False)
        self.target = _mlp(width + EDGE, width)
        self.message = _mlp(width + EDGE, width)
        self.readout = _mlp(3 * width, width, 1)
        # The readout starts at the evidence and a vote of similar molecules; what is learned adds to them.
        self.rho = nn.Parameter(torch.tensor(0.0))
        self.strength = nn.Parameter(torch.tensor(float(torch.tensor(5.0).expm1().log())))  # kappa = softplus = 5
        self.vote = nn.Parameter(torch.tensor(0.5))
        self.sharpness = nn.Parameter(torch.tensor([10.0, 0.0]))  # of Tanimoto, and of the cosine of h
        # Gates start at 1/2, so that c g = 1.
        self.evidence_weight = nn.Parameter(torch.tensor(2.0 if bottleneck else 1.0))
        if bottleneck:
            self.gate = _mlp(3 * width + EDGE, width, 1)
            nn.init.zeros_(self.gate[-1].weight)
            nn.init.zeros_(self.gate[-1].bias)
            self.register_buffer("message_mean", torch.zeros(width))

    def weigh(self) -> dict[str, Tensor]:
        """Copies of the few numbers that weigh the parts of the readout, to be fitted apart from the network."""
        names = ("rho", "strength", "vote", "sharpness", "evidence_weight")
        return {name: getattr(self, name).detach().clone().requires_grad_() for name in names}

    def forward(self, episodes: Episodes, *, open_rate: float = 0.5) -> Output:
        """`open_rate` is r, the share of edges that the compression term takes for normal."""
        h = self.encoder(episodes.inputs)
        context = self.condition(episodes, h[episodes.support])
        return self.score(episodes, context, h[episodes.query], open_rate=open_rate)

    def condition(self, episodes: Episodes, h: Tensor) -> Conditioned:
        """All that depends on the support alone; ``h`` (B, S, d) are its molecules."""
        y, exists, labels = episodes.support_y, episodes.support_is, episodes.support_context
        known = (labels >= 0) & exists[..., None]
        of_target = self.label[y.long()]
        u = self.target(torch.cat([h, of_target], dim=-1))
        u = (u * exists[..., None]).sum(dim=1) / exists.sum(dim=1, keepdim=True)
        b, s, p = known.nonzero(as_tuple=True)  # T edges between a molecule of the support and an auxiliary task
        parts = [self.label[labels[b, s, p].long()], h[b, s]]
        n_episodes, _, n_tasks = labels.shape
        row = b * n_tasks + p

        def pool(edges: Tensor) -> Tensor:
            """Sums of edges (T, d) by episode and task, (B, A, d)."""
            total = edges.new_zeros(n_episodes * n_tasks, edges.shape[-1]).index_add(0, row, edges)
            return total.view(n_episodes, n_tasks, -1)

        if not self.has_relations:
            relations = pool(self.triplet(torch.cat(parts, dim=-1))) / known.sum(dim=1).clamp(min=1)[..., None]
            return Conditioned(relations, relations.new_tensor([-1.0, 1.0]).expand(*relations.shape[:2], 2), u, h)
        # e_mtp, and R_tp = sum_m softmax_m(att(e_mtp)) e_mtp + W s_tp
        triplets = self.triplet(torch.cat([of_target[b, s], *parts], dim=-1))
        score = self.attention(triplets).squeeze(-1)
        weight = _masked_softmax(score.new_zeros(labels.shape).index_put((b, s, p), score), known, dim=1)[b, s, p]
        counts = _pair_counts(y, labels, known)
        relations = pool(weight[:, None] * triplets) + self.joint(_joint_statistics(counts))
        relations = relations + F.relu(self.propagate(episodes.phi @ relations))
        return Conditioned(relations, self._evidence(counts, episodes.prior), u, h)

    def _evidence(self, counts: Tensor, prior: Tensor) -> Tensor:
        """Log likelihood ratios (B, A, 2) of label 0 and 1: theta^a = (k_a + kappa prior^a) / (n_a + kappa)."""
        kappa = F.softplus(self.strength)
        theta = (counts[..., 1] + kappa * prior) / (counts.sum(dim=-1) + kappa)  # (B, A, a)
        theta = theta.clamp(TINY, 1 - TINY)
        present = theta[..., 1].log() - theta[..., 0].log()
        absent = torch.log1p(-theta[..., 1]) - torch.log1p(-theta[..., 0])
        return torch.stack([absent, present], dim=-1)

    def score(self, episodes: Episodes, context: Conditioned, h: Tensor, *, open_rate: float = 0.5) -> Output:
        """Queries ``h`` (B, Q, d), given the support."""
        labels = episodes.query_context
        n_episodes, n_queries, _ = labels.shape
        b, q, p = (labels >= 0).nonzero(as_tuple=True)
        y = labels[b, q, p].long()
        # A message is of a task and a label, and so is most of a gate's input: computed once, not for each edge.
        relations = context.relations[:, :, None].expand(-1, -1, 2, -1)  # (B, A, 2, d)
        of_label = self.label.expand(*relations.shape[:3], -1)
        message = self.message(torch.cat([relations, of_label], dim=-1))[b, p, y]
        gate, kl = message.new_ones(len(b)), message.new_zeros(())
        if self.has_bottleneck:
            targets = context.target[:, None, None].expand_as(relations)
            weight = self.gate[0].weight  # of MLP[R_tp, u_t, E(y_qp), h_q]
            of_task, of_molecule = weight.split([weight.shape[1] - h.shape[-1], h.shape[-1]], dim=1)
            hidden = F.linear(torch.cat([relations, targets, of_label], dim=-1), of_task, self.gate[0].bias)[b, p, y]
            hidden = hidden + F.linear(h, of_molecule)[b, q]
            gate, message, kl = self._bottleneck(self.gate[2](self.gate[1](hidden)).squeeze(-1), message, open_rate)
        row, n_rows = b * n_queries + q, n_episodes * n_queries
        n_known = message.new_zeros(n_rows).index_add(0, row, torch.ones_like(gate))
        support = message.new_zeros(n_rows).index_add(0, row, gate * context.evidence[b, p, y])
        mean = message.new_zeros(n_rows, message.shape[-1]).index_add(0, row, message) / n_known.clamp(min=1)[:, None]
        target = context.target[:, None].expand(-1, n_queries, -1)
        learned = self.readout(torch.cat([h, target, mean.view(n_episodes, n_queries, -1)], dim=-1)).squeeze(-1)
        logits = self.evidence_weight * (support / n_known.clamp(min=1).sqrt()).view(n_episodes, n_queries)
        base = logits + self.vote * self._similarity(episodes, context, h)
        gates = gate.new_zeros(labels.shape).index_put((b, q, p), gate)
        return Output(base + self.rho * learned, kl, gates, base)

    def _bottleneck(self, logit: Tensor, message: Tensor, open_rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Gate (E,), the message with noise in the place of what is shut out, and the compression term."""
        if not self.training or len(logit) == 0:
            gate = torch.sigmoid(logit)
            return gate, gate[:, None] * message + (1 - gate)[:, None] * self.message_mean, message.new_zeros(())
        uniform = torch.rand_like(logit).clamp(TINY, 1 - TINY)
        gate = torch.sigmoid((logit + uniform.log() - torch.log1p(-uniform)) / TEMPERATURE)
        mean, spread = message.detach().mean(dim=0), message.detach().std(dim=0, correction=0) + TINY
        self.message_mean = self.message_mean.lerp(mean, FORGET)  # a new tensor: MAML still needs the old one
        noise = mean + spread * torch.randn_like(message)
        noisy = gate[:, None] * message + (1 - gate)[:, None] * noise
        # KL(Bern(sigmoid a) || Bern(r))
        opens, shuts = F.logsigmoid(logit), F.logsigmoid(-logit)
        rate = torch.tensor(open_rate, device=logit.device)
        bernoulli = opens.exp() * (opens - rate.log()) + shuts.exp() * (shuts - torch.log1p(-rate))
        # KL(N(g m + (1-g) mu, (1-g)^2 sigma^2) || N(mu, sigma^2)), a mean over dimensions
        shut = (1 - gate).clamp(min=TINY)
        distance = (((message - mean) / spread) ** 2).mean(dim=-1)
        gaussian = -shut.log() + 0.5 * (shut**2 - 1) + 0.5 * gate**2 * distance
        return gate, noisy, (bernoulli + 0.5 * gaussian).mean()

    def _similarity(self, episodes: Episodes, context: Conditioned, h: Tensor) -> Tensor:
        """Vote of the support in [-1, 1], (B, Q): sum_s (2 y_s - 1) k(q, s), k a softmax over the support."""
        cosine = F.normalize(h, dim=-1) @ F.normalize(context.support, dim=-1).transpose(1, 2)
        logits = self.sharpness[0] * episodes.tanimoto + self.sharpness[1] * cosine
        kernel = _masked_softmax(logits, episodes.support_is[:, None].expand_as(logits), dim=-1)
        return (kernel * (2 * episodes.support_y - 1)[:, None]).sum(dim=-1)


def _mlp(n_in: int, width: int, n_out: int | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, n_out or width))


def _masked_softmax(logits: Tensor, keep: Tensor, *, dim: int) -> Tensor:
    """Softmax over what is kept; all zero where nothing is."""
    weights = torch.softmax(logits.masked_fill(~keep, torch.finfo(logits.dtype).min), dim=dim)
    return weights * keep


def _pair_counts(y: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """Support molecules with y_t = a and y_p = b, (B, A, a, b)."""
    of_target = torch.stack([1 - y, y], dim=-1)  # (B, S, a)
    of_task = torch.stack([known & (labels == 0), known & (labels == 1)], dim=-1).to(y.dtype)  # (B, S, A, b)
    return torch.einsum("bsa,bspc->bpac", of_target, of_task)


def _joint_statistics(counts: Tensor) -> Tensor:
    """s_tp (B, A, 6): joint frequencies, log odds ratio and number, all 0 where no label is known."""
    smooth = counts + 0.5
    total = counts.sum(dim=(-2, -1))
    frequencies = (smooth / smooth.sum(dim=(-2, -1), keepdim=True)).flatten(-2) - 0.25
    logs: Any = smooth.log()
    odds = logs[..., 1, 1] + logs[..., 0, 0] - logs[..., 1, 0] - logs[..., 0, 1]
    return torch.cat([frequencies, odds[..., None], total[..., None] / 20], dim=-1)
