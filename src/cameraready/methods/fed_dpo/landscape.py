"""What the theory needs to know about the clients' losses: optimum, curvature, heterogeneity, noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cameraready.methods.fed_dpo.local_training import check_counts
from cameraready.methods.fed_dpo.objective import Objective
from cameraready.methods.fed_dpo.preferences import PreferenceClient, client_weights


@dataclass(frozen=True)
class Heterogeneity:
    """How much clients disagree at a point.

    ``zeta2`` : sum p_i ||grad f_i - grad f||^2. ``zeta2_max`` : the largest ||grad f_i - grad f||^2.
    ``sigma2`` : sum p_i E ||minibatch gradient - grad f_i||^2, at the batch size given. ``L`` : the largest smoothness.
    """

    zeta2: float
    zeta2_max: float
    sigma2: float
    L: float
    at: str

    def __str__(self) -> str:
        return (
            f"at {self.at}: zeta^2 {self.zeta2:.3g} (largest client {self.zeta2_max:.3g}), "
            f"sigma^2 {self.sigma2:.3g}, L {self.L:.3g}"
        )


def heterogeneity(
    clients: Sequence[PreferenceClient] | Objective,
    model: nn.Module | None = None,
    *,
    theta: Tensor | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Heterogeneity:
    """Measure heterogeneity: at ``theta``, else at the optimum (log-linear) or at the model as it is (neural).

    Examples
    --------
    >>> from cameraready.methods.fed_dpo import LogLinearPairs, LogLinearPolicy
    >>> same = [PreferenceClient(LogLinearPairs([[1.0], [-0.5]])) for _ in range(2)]
    >>> round(heterogeneity(same, LogLinearPolicy(1)).zeta2, 12)
    0.0
    """
    objective = clients if isinstance(clients, Objective) else Objective(_given(model), clients)
    p = weights_of(objective)
    at = "the point given"
    if theta is None:
        at = "the optimum" if objective.log_linear else "the model's parameters"
        theta = optimum(objective) if objective.log_linear else objective.read()
    kept = objective.read()
    gradients = objective.losses(theta).gradient
    apart = ((gradients - p @ gradients) ** 2).sum(dim=1)
    found = Heterogeneity(
        zeta2=float(p @ apart),
        zeta2_max=float(apart.max()),
        sigma2=0.0 if batch_size is None else float(p @ noise(objective, theta, batch_size=batch_size, seed=seed)),
        L=float(smoothness(objective, theta=theta).max()),
        at=at,
    )
    objective.write(kept)
    return found


def weights_of(objective: Objective) -> Tensor:
    """p_i as a tensor like theta."""
    p = client_weights(objective.sizes, [client.weight for client in objective.clients])
    return torch.tensor(p, dtype=torch.float64).to(objective.theta_ref)


def hessians(objective: Objective, theta: Tensor) -> Tensor:
    """(m, d, d) of log-linear clients: E[l''(h) D D'], where l'' = beta^2 s (1 - s) for the sigmoid loss.

    ``theta`` is one point (d,), or a point a client (m, d).
    """
    curve = objective.share * objective.derivative(_margins(objective, theta), order=2)
    eye = torch.eye(objective.dimension).to(theta)
    return torch.einsum("mn,mni,mnj->mij", curve, objective.D, objective.D) + objective.ridge * eye


def third_derivatives(objective: Objective, theta: Tensor) -> Callable[[np.ndarray], np.ndarray]:
    """v (m, d) to E[l'''(h) (D.v)^2 D] (m, d), of log-linear clients."""
    bend = objective.share * objective.derivative(_margins(objective, theta), order=3)

    def action(v: np.ndarray) -> np.ndarray:
        along = torch.einsum("mnd,md->mn", objective.D, torch.as_tensor(v).to(objective.D))
        return torch.einsum("mn,mnd->md", bend * along**2, objective.D).cpu().numpy()

    return action


def optimum(objective: Objective, *, p: Tensor | None = None, tol: float = 1e-12) -> Tensor:
    """theta*, the minimiser of sum p_i f_i of log-linear clients, by Newton's method with halved steps.

    Raises
    ------
    ValueError : neural policies; pairs that some theta separates, so that no minimiser exists; features that never
        differ. The way out of both is a ridge.
    """
    if not objective.log_linear:
        raise ValueError("only log-linear policies have a computable optimum; train a neural one instead")
    p = weights_of(objective) if p is None else p
    theta = objective.theta_ref.clone()
    eps = torch.finfo(theta.dtype).eps
    tol = max(tol, 10 * eps)
    way = "pass ridge=1e-3 or so"
    for _ in range(100):
        found = objective.losses(theta)
        value, slope = p @ found.loss, p @ found.gradient
        H = torch.einsum("m,mij->ij", p, hessians(objective, theta))
        if torch.linalg.cond(H) > 1e12:
            raise ValueError(f"the losses have no unique minimiser (separable pairs or constant features); {way}")
        step = torch.linalg.solve(H, slope)
        if slope.norm() < tol * (1 + found.gradient.norm()):
            if _reach(objective, step).max() > 0.1:  # of separable pairs: the slope vanishes, but not Newton's step
                break
            return theta
        size = 1.0
        rounding = 50 * eps * (1 + value.abs())
        while p @ objective.losses(theta - size * step).loss > value + rounding and size > 1e-8:
            size /= 2
        theta = theta - size * step
    raise ValueError(f"the losses have no finite minimiser: the pairs look separable; {way}")


def _reach(objective: Objective, step: Tensor) -> Tensor:
    """(m,) the largest change of a pair's logits, beta h, by a step (d,) or (m, d)."""
    step = step.expand(len(objective), -1)
    return (objective.D @ step[:, :, None]).abs().amax(dim=(1, 2)) * objective.beta


def local_optima(objective: Objective, *, iterations: int = 30) -> Tensor:
    """(m, d), every log-linear client's own minimiser, by Newton's method on all of them at once.

    Raises
    ------
    ValueError : some client has none; pass a ridge.
    """
    thetas = objective.theta_ref.repeat(len(objective), 1)
    tol = torch.finfo(thetas.dtype).eps ** 0.5  # of the last step, which squares the error
    for _ in range(iterations):
        step = torch.linalg.solve(hessians(objective, thetas), objective.losses(thetas).gradient[..., None])[..., 0]
        reach = _reach(objective, step)
        # a step of at most 2 in logits keeps Newton's method inside the region where the Hessian says something
        thetas = thetas - step * (2 / reach.clamp(min=2))[:, None]
        if reach.max() < tol:
            return thetas
    bad = (reach >= tol).nonzero()[:, 0].tolist()  # of separable pairs Newton's steps do not shrink
    raise ValueError(f"clients {bad[:5]} have no finite minimiser (separable pairs); pass ridge=1e-3 or so")


def smoothness(objective: Objective, *, theta: Tensor | None = None, iterations: int = 20) -> Tensor:
    """(m,) L_i. Log-linear: beta^2 / 4 lambda_max(E D D') + ridge (sigmoid; 2 lambda_max for ipo), a bound everywhere.

    Neural: the largest |eigenvalue| of the Hessian at ``theta``, by power iteration on differences of gradients.
    """
    if objective.log_linear:
        second = torch.einsum("mn,mni,mnj->mij", objective.share, objective.D, objective.D)
        largest = torch.linalg.eigvalsh(second)[:, -1]
        factor = objective.beta**2 / 4 if objective.kind == "sigmoid" else torch.full_like(objective.beta, 2.0)
        return factor * largest + objective.ridge
    theta = objective.read() if theta is None else theta
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(len(objective), objective.dimension, generator=generator).to(theta)
    width = 1e-3 * (1 + theta.norm())
    L = torch.zeros(len(objective)).to(theta)
    for _ in range(iterations):
        v = v / v.norm(dim=1, keepdim=True).clamp(min=1e-30)
        above, below = (objective.losses(theta + sign * width * v).gradient for sign in (1, -1))
        v = (above - below) / (2 * width)
        L = v.norm(dim=1)
    return L


def noise(objective: Objective, theta: Tensor, *, batch_size: int, seed: int = 0, replicates: int = 8) -> Tensor:
    """(m,) E ||minibatch gradient - grad f_i||^2, for batches without replacement.

    Exact for log-linear policies, from the variance over pairs; else from ``replicates`` batches.
    """
    check_counts(1, batch_size=batch_size)
    if objective.log_linear:
        slopes = objective.derivative(_margins(objective, theta), order=1)
        each = slopes[..., None] * objective.D
        mean = torch.einsum("mn,mnd->md", objective.share, each)
        variance = torch.einsum("mn,mn->m", objective.share, ((each - mean[:, None]) ** 2).sum(dim=2))
        n = torch.tensor(objective.sizes).to(variance)
        return variance / batch_size * ((n - batch_size) / (n - 1).clamp(min=1)).clamp(min=0)
    whole = objective.losses(theta).gradient
    rng = np.random.default_rng(seed)
    found = torch.zeros(len(objective)).to(theta)
    for i, n in enumerate(objective.sizes):
        size = min(batch_size, n)
        for _ in range(replicates):
            rows = torch.from_numpy(rng.choice(n, size, replace=False))[None]
            share = torch.full(rows.shape, 1 / size).to(theta)
            gradient = objective.losses(theta, which=[i], rows=rows, share=share).gradient[0]
            found[i] += ((gradient - whole[i]) ** 2).sum() / replicates
    return found


def _margins(objective: Objective, theta: Tensor) -> Tensor:
    if not objective.log_linear:
        raise ValueError("second derivatives in closed form are for log-linear policies only")
    shift = theta.expand(len(objective), -1) - objective.theta_ref
    return (objective.D @ shift[:, :, None])[..., 0]


def _given(model: nn.Module | None) -> nn.Module:
    if model is None:
        raise TypeError("give the model whose heterogeneity is asked for")
    return model
