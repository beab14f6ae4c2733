"""Randomly pivoted Cholesky (RPC) of the exponential kernel, batched over heads and bins, in log space.

With keys ``x_l = sqrt(beta) k_l / tau`` the exponential kernel is ``H_ll' = exp(<x_l, x_l'>)``. It is factored in its
Gaussian normalisation ``G_ll' = exp(-|x_l - x_l'|^2 / 2)``, whose entries never overflow, while pivots are drawn from
the residual of the *exponential* kernel, ``d_l exp(2 a_l)`` with the log feature norm ``a_l = |x_l|^2 / 2 + c_l``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# A Gaussian residual below this is rounding noise: sqrt(noise) would be divided by, and exp(2 a_l) times noise would
# be drawn as a pivot.
RESIDUAL_FLOOR = {torch.float32: 2e-6, torch.float64: 1e-14}


@dataclass(frozen=True)
class PivotedCholesky:
    """Partial Cholesky factor of the Gaussian-normalised kernel, one for each of ``m`` problems.

    Attributes
    ----------
    pivots : Tensor (m, r)
        Chosen indices in order. Slots from ``rank`` on are padding.
    used : Tensor (m, r), bool
        Whether the slot holds a real pivot.
    factor : Tensor (m, r, n) or None
        Rows ``f_i`` with ``sum_i f_i f_i^T`` the Nystrom approximation of ``G``; zero rows for unused slots. None where
        pivots of several bins were pooled.
    residual : Tensor (m, n)
        ``d_l = G_ll - sum_i f_il^2``, the part of key ``l``'s unit feature that the pivots do not explain.
    """

    pivots: Tensor
    used: Tensor
    factor: Tensor | None
    residual: Tensor

    @property
    def rank(self) -> Tensor:
        """Pivots really used, (m,)."""
        return self.used.sum(-1)


def pivoted_cholesky(
    points: Tensor,
    log_norm: Tensor,
    *,
    rank: int,
    half_square: Tensor | None = None,
    tol: float | None = None,
    block: int = 16,
    generator: torch.Generator | None = None,
) -> PivotedCholesky:
    """Factor ``m`` exponential kernels by randomly pivoted Cholesky.

    Pivot ``p`` is drawn with probability proportional to ``d_p exp(2 a_p)``, its kernel column ``g`` formed, and
    ``f = (g - F^T F_p) / sqrt(d_p)``, ``d <- d - f^2``. Work goes in rounds (Epperly, Tropp and Webber 2024): ``block``
    pivots are proposed from the current residual, and each is kept with the probability by which its residual has not
    been used up by those kept before it. The law is that of single steps; the cost is that of matrix products.

    Parameters
    ----------
    points : Tensor (m, n, E)
        Recentred keys times ``sqrt(beta) / tau``.
    log_norm : Tensor (m, n)
        ``a_l``; ``-inf`` excludes a key (padding).
    rank : int
        Largest number of pivots.
    half_square : Tensor (m, n), optional
        ``|x_l|^2 / 2`` if it is already known.
    tol : float, optional
        Stop a problem once ``sum_l d_l e^(2 a_l) <= tol^2`` times its value before the first pivot.
    block : int, default 16
        Pivots proposed in one round; 1 is the plain algorithm.
    generator : torch.Generator, optional
        Source of the draws, on the device of ``points``.
    """
    capacity = min(rank, points.shape[1])
    block = max(1, min(block, capacity))
    state = _State(points, log_norm, capacity, half_square, tol, generator, block)
    filled = 0
    while bool((state.count < state.capacity).any()):
        proposal = state.propose(block)
        # Problems whose residual is spent, or below the tolerance, are no longer alive.
        if not bool((state.alive & (state.count < state.capacity)).any()):
            break
        kept, rows = _reject(state, proposal, filled)
        filled = _append(state, proposal, kept, rows, filled)
    if filled == 0:  # NaN or hidden everywhere: one empty slot lets NaN through to the output
        state.factor[:, :1] = 0.0
        filled = 1
    return PivotedCholesky(state.pivots[:, :filled], state.used[:, :filled], state.factor[:, :filled], state.residual)


class _State:
    """Buffers of the recursion; every round works in place on them."""

    def __init__(
        self,
        points: Tensor,
        log_norm: Tensor,
        capacity: int,
        half_square: Tensor | None,
        tol: float | None,
        generator: torch.Generator | None,
        block: int,
    ):
        m, n, _ = points.shape
        if half_square is None:
            half_square = points.square().sum(-1).mul_(0.5)
        self.points, self.capacity, self.generator = points, capacity, generator
        self.floor = RESIDUAL_FLOOR[points.dtype]
        self.double_log_norm = 2 * log_norm
        self.minus_half_square = -half_square
        self.residual = (log_norm > -math.inf).to(points.dtype)
        self.pivots = torch.zeros(m, capacity, dtype=torch.long, device=points.device)
        self.used = torch.zeros(m, capacity, dtype=torch.bool, device=points.device)
        self.factor = points.new_empty(m, capacity, n)
        self.count = torch.zeros(m, dtype=torch.long, device=points.device)
        self.alive = torch.ones(m, dtype=torch.bool, device=points.device)
        # Scratch of the rounds: fresh memory of this size costs more than the arithmetic.
        self.columns, self.rows = points.new_empty(m, block, n), points.new_empty(m, block, n)
        self.scores = points.new_empty(m, n)
        self.log_target = None
        if tol is not None:
            self.log_target = torch.logsumexp(self.double_log_norm, -1) + 2 * math.log(tol)

    def propose(self, size: int) -> Tensor:
        """Indices (m, size) drawn independently from the exponential-kernel residual; updates ``alive``.

        The draw inverts the cumulative sum: one random number where Gumbel-max on ``log d + 2 a`` needs ``n``.
        """
        scores = torch.log(self.residual, out=self.scores).add_(self.double_log_norm)
        top = scores.amax(-1, keepdim=True)
        # A NaN head yields NaN scores: comparisons are then False and the head simply stops.
        self.alive &= top.squeeze(-1) > -math.inf
        scores.sub_(top).exp_()
        cumulative = torch.cumsum(scores, -1)
        total = cumulative[:, -1:]
        if self.log_target is not None:
            self.alive &= total.squeeze(-1).log() + top.squeeze(-1) > self.log_target
        luck = torch.rand(total.shape[0], size, dtype=total.dtype, device=total.device, generator=self.generator)
        index = torch.searchsorted(cumulative, luck.mul_(total), right=True).clamp_(max=scores.shape[-1] - 1)
        # Rounding in the sum can land on a key of probability zero; the most likely one is then a valid choice.
        impossible = torch.gather(self.residual, 1, index) <= 0
        return torch.where(impossible, scores.argmax(-1, keepdim=True), index)


def _reject(state: _State, proposal: Tensor, filled: int) -> tuple[Tensor, Tensor]:
    """Which proposals are kept (m, b), and their rows of the factor (m, b, n), zero for those that are not."""
    m, block = proposal.shape
    chosen = torch.gather(state.points, 1, proposal.unsqueeze(-1).expand(-1, -1, state.points.shape[-1]))
    columns = state.columns
    torch.baddbmm(state.minus_half_square.unsqueeze(1), chosen, state.points.transpose(1, 2), out=columns)
    columns.add_(torch.gather(state.minus_half_square, 1, proposal).unsqueeze(-1)).clamp_(max=0).exp_()
    if filled:
        before = state.factor[:, :filled]
        at_proposal = torch.gather(before, 2, proposal.unsqueeze(1).expand(-1, filled, -1))
        columns.baddbmm_(at_proposal.transpose(1, 2), before, alpha=-1)
    initial = torch.gather(state.residual, 1, proposal)
    luck = torch.rand(m, block, dtype=initial.dtype, device=initial.device, generator=state.generator)
    room = state.capacity - state.count
    kept = torch.zeros(m, block, dtype=torch.bool, device=initial.device)
    spent = torch.zeros_like(kept)
    # Eliminate on the small block and record the row operations; they are then applied to the long rows at once.
    small = torch.gather(columns, 2, proposal.unsqueeze(1).expand(-1, block, -1))
    small = torch.cat([small, torch.eye(block, dtype=small.dtype, device=small.device).expand(m, -1, -1)], 2)
    for i in range(block):
        here = small[:, i, i]
        # The first proposal of a round has its residual unused: only rounding could reject it, and then for ever.
        unused = luck[:, i] * initial[:, i] < here if i else torch.ones_like(state.alive)
        accept = state.alive & (here > state.floor / 2) & unused & (kept.sum(-1) < room)
        kept[:, i] = accept
        # Its own column says that nothing is left, whatever the running residual says: never propose it again.
        spent[:, i] = here <= state.floor / 2
        row = small[:, i].mul_(torch.where(accept, here.clamp_min(state.floor / 2).rsqrt(), 0.0).unsqueeze(-1))
        if i + 1 < block:
            small[:, i + 1 :].baddbmm_(row[:, i + 1 : block].unsqueeze(2), row.unsqueeze(1), alpha=-1)
    # |f_l| <= sqrt(d_l) (Cauchy-Schwarz); where d_l is zero any other value is noise that a later exp would magnify.
    torch.bmm(small[:, :, block:], columns, out=state.rows)
    state.rows.mul_((state.residual > 0).to(columns.dtype).unsqueeze(1))
    state.residual.scatter_(1, proposal, initial.masked_fill(spent, 0.0))
    return kept, state.rows


def _append(state: _State, proposal: Tensor, kept: Tensor, rows: Tensor, filled: int) -> int:
    """Store the kept rows, update the residual, and return the new number of filled rows."""
    slot = state.count.unsqueeze(-1) + kept.cumsum(-1) - 1
    state.count += kept.sum(-1)
    now = int(state.count.max())
    state.factor[:, filled:now] = 0.0
    problem, which = kept.nonzero(as_tuple=True)
    target, pivot = slot[problem, which], proposal[problem, which]
    state.factor[problem, target] = rows[problem, which]
    state.pivots[problem, target] = pivot
    state.used[problem, target] = True
    for i in range(rows.shape[1]):
        state.residual.addcmul_(rows[:, i], rows[:, i], value=-1)
    torch.nn.functional.threshold_(state.residual, state.floor, 0.0)
    state.residual[problem, pivot] = 0.0
    return now
