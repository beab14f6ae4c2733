"""L-GMVAE: a variational autoencoder whose prior is a Gaussian mixture for every label."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from cameraready.methods.lapace.space import FittedSpace

SIGMA_X = 0.05  # standard deviation of the decoder's Gaussian, in units of a column's range
LOG_VARIANCE_Z = (-6.0, 2.0)
LOG_VARIANCE_COMPONENT = (-3.0, 1.0)


class LGMVAE(nn.Module):
    """Label-conditional Gaussian mixture VAE on the encoded rows of a `FittedSpace`.

    Prior p(z|y) = sum_k pi_yk N(z; m_yk, diag exp l_yk); encoder q(z|x) = N(mu(x), diag sigma(x)^2), which sees no
    label, so that any query can be encoded; decoder p(x|z): Gaussian for numbers, categorical for one-hot groups.

    Parameters
    ----------
    space : the fitted space (D = ``space.n_encoded``).
    n_classes : number of labels C.
    n_components : components K of each label's mixture, default 3.
    latent_dim : L, default D/2 within [4, 16].
    hidden : widths of the hidden layers of encoder and decoder.
    """

    def __init__(
        self,
        space: FittedSpace,
        n_classes: int,
        *,
        n_components: int = 3,
        latent_dim: int | None = None,
        hidden: tuple[int, ...] = (64, 64),
    ) -> None:
        super().__init__()
        D = space.n_encoded
        self.latent_dim = min(max(D // 2, 4), 16) if latent_dim is None else latent_dim
        self.groups = space.groups
        self.register_buffer("scaled", torch.as_tensor(space.scaled))
        self.encoder = _mlp(D, hidden, 2 * self.latent_dim)
        self.decoder = _mlp(self.latent_dim, hidden[::-1], D)
        shape = (n_classes, n_components, self.latent_dim)
        self.means = nn.Parameter(torch.randn(shape))
        self.log_variances = nn.Parameter(torch.zeros(shape))
        self.logits = nn.Parameter(torch.zeros(shape[:2]))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of q(z|x), each (n, L), of encoded rows x (n, D)."""
        mu, log_variance = self.encoder(x).chunk(2, dim=-1)
        return mu, log_variance.clamp(*LOG_VARIANCE_Z)

    def decode(self, z: Tensor) -> Tensor:
        """Expected encoded rows (..., D): numbers as they come, categories as probabilities."""
        raw = self.decoder(z)
        if not self.groups:
            return raw
        decoded = raw.clone()
        for group in self.groups:
            decoded[..., group] = raw[..., group].softmax(dim=-1)
        return decoded

    def log_weights(self) -> Tensor:
        """log pi, (C, K)."""
        return self.logits.log_softmax(dim=-1)

    def log_prob_components(self, z: Tensor) -> Tensor:
        """log pi_yk + log N(z; m_yk, diag exp l_yk), (n, C, K)."""
        l = self.log_variances.clamp(*LOG_VARIANCE_COMPONENT)  # noqa: E741  (the paper's symbol)
        squared = (z[:, None, None, :] - self.means).square() / l.exp()
        return self.log_weights() - 0.5 * (squared + l + math.log(2 * math.pi)).sum(dim=-1)

    def log_prob_class(self, z: Tensor) -> Tensor:
        """log p(z|y) for every label, (n, C)."""
        return self.log_prob_components(z).logsumexp(dim=-1)

    def distance_to_components(self, z: Tensor, y: int) -> Tensor:
        """Squared Mahalanobis distance to the nearest component of label y, (n,)."""
        l = self.log_variances[y].clamp(*LOG_VARIANCE_COMPONENT)  # noqa: E741
        return ((z[:, None, :] - self.means[y]).square() / l.exp()).sum(dim=-1).amin(dim=-1)

    def reconstruction(self, z: Tensor, x: Tensor) -> Tensor:
        """-log p(x|z) (n,), up to the Gaussians' constant."""
        raw = self.decoder(z)
        loss = (raw[:, self.scaled] - x[:, self.scaled]).square().sum(dim=-1) / (2 * SIGMA_X**2)
        for group in self.groups:
            loss = loss - (x[:, group] * raw[:, group].log_softmax(dim=-1)).sum(dim=-1)
        return loss

    def elbo(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Evidence lower bound (n,) of rows x (n, D) with labels y (n,), from one draw of z."""
        z, log_q = self.draw(x, generator)
        log_p = self.log_prob_class(z).gather(1, y[:, None]).squeeze(1)
        return -self.reconstruction(z, x) - (log_q - log_p)

    def draw(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """One z ~ q(z|x), (n, L), by reparameterisation, and log q(z|x), (n,)."""
        mu, log_variance = self.encode(x)
        noise = torch.randn(mu.shape, generator=generator, dtype=mu.dtype).to(mu.device)
        log_q = -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(dim=-1)
        return mu + noise * (0.5 * log_variance).exp(), log_q

    @torch.no_grad()
    def sample(self, y: int, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """n encoded rows (n, D) of label y: z from its mixture, decoded."""
        k = torch.multinomial(self.log_weights()[y].exp().cpu(), n, replacement=True, generator=generator)
        k = k.to(self.means.device)
        noise = torch.randn(n, self.latent_dim, generator=generator).to(self.means)
        l = self.log_variances[y].clamp(*LOG_VARIANCE_COMPONENT)  # noqa: E741
        return self.decode(self.means[y, k] + noise * (0.5 * l[k]).exp())


def _mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
