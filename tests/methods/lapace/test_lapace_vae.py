import math

import numpy as np
import pytest
import torch
from torch import distributions as D

from cameraready.methods.lapace import LGMVAE, TabularSpace, Training
from cameraready.methods.lapace.training import loss, seed_components, train


@pytest.fixture
def vae(people):
    torch.manual_seed(0)
    vae = LGMVAE(TabularSpace.infer(people).fit(people), 2)
    torch.nn.init.uniform_(vae.log_variances, -1.0, 1.0)
    torch.nn.init.normal_(vae.logits)
    return vae


def rows_of(people):
    space = TabularSpace.infer(people).fit(people)
    x = torch.as_tensor(space.encode(people), dtype=torch.float32)
    return x, torch.as_tensor((people["income"] > 45).to_numpy().astype(int))


def test_the_prior_is_torchs_mixture_of_gaussians(vae):
    z = torch.randn(7, vae.latent_dim)
    for y in range(2):
        components = D.Independent(D.Normal(vae.means[y], (0.5 * vae.log_variances[y]).exp()), 1)
        mixture = D.MixtureSameFamily(D.Categorical(logits=vae.logits[y]), components)
        torch.testing.assert_close(vae.log_prob_class(z)[:, y], mixture.log_prob(z))


def test_the_mean_elbo_is_reconstruction_minus_divergence_by_torch(vae, people):
    x, y = rows_of(people)
    generator = torch.Generator().manual_seed(0)
    found = vae.elbo(x, y, generator=generator)
    noise = torch.randn(len(x), vae.latent_dim, generator=torch.Generator().manual_seed(0))
    mu, log_variance = vae.encode(x)
    q = D.Independent(D.Normal(mu, (0.5 * log_variance).exp()), 1)
    z = mu + noise * (0.5 * log_variance).exp()
    expected = -vae.reconstruction(z, x) - q.log_prob(z) + vae.log_prob_class(z).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_reconstruction_is_gaussian_for_numbers_and_cross_entropy_for_categories(vae, people):
    x, _ = rows_of(people)
    z = torch.randn(len(x), vae.latent_dim)
    raw = vae.decoder(z)
    gaussian = -D.Normal(raw[:, vae.scaled], 0.05).log_prob(x[:, vae.scaled]).sum(1)
    gaussian = gaussian - len(vae.scaled) * (math.log(0.05) + 0.5 * math.log(2 * math.pi))
    categorical = sum(
        torch.nn.functional.cross_entropy(raw[:, g], x[:, g].argmax(1), reduction="none") for g in vae.groups
    )
    torch.testing.assert_close(vae.reconstruction(z, x), gaussian + categorical)


def test_decoded_categories_are_probabilities(vae):
    decoded = vae.decode(torch.randn(3, 4, vae.latent_dim))
    for group in vae.groups:
        torch.testing.assert_close(decoded[..., group].sum(-1), torch.ones(3, 4))


def test_the_latent_width_is_half_the_encoded_one_within_limits(people):
    space = TabularSpace.infer(people).fit(people)
    assert LGMVAE(space, 2).latent_dim == max(space.n_encoded // 2, 4)
    assert LGMVAE(space, 2, latent_dim=3).sample(1, 5).shape == (5, space.n_encoded)


def test_usage_and_class_terms_add_their_weights(vae, people):
    x, y = rows_of(people)

    def value(**weights):
        settings = Training(**{"usage_weight": 0.0, "class_weight": 0.0, **weights})
        return loss(vae, x, y, beta=1.0, settings=settings, generator=torch.Generator().manual_seed(3)).item()

    z, _ = vae.draw(x, torch.Generator().manual_seed(3))
    entropy = torch.nn.functional.cross_entropy(vae.log_prob_class(z), y).item()
    assert value() == pytest.approx(-vae.elbo(x, y, generator=torch.Generator().manual_seed(3)).mean().item(), rel=1e-5)
    assert value(class_weight=5.0) - value() == pytest.approx(5 * entropy, rel=1e-3)
    assert -2 * math.log(3) - 1e-3 <= value(usage_weight=2.0) - value() <= 0  # minus an entropy of three components


def test_seeding_puts_every_component_on_rows_of_its_own_label(vae, people):
    x, y = rows_of(people)
    seed_components(vae, x, y, seed=0)
    mu = vae.encode(x)[0]
    for label in range(2):
        nearest = torch.cdist(mu[y == label], vae.means[label]).argmin(1)
        for k in range(3):
            torch.testing.assert_close(vae.means[label, k], mu[y == label][nearest == k].mean(0), rtol=1e-3, atol=1e-3)


def test_training_improves_the_bound_and_repeats_by_seed(people):
    x, y = rows_of(people)
    bounds, weights = [], []
    for _ in range(2):
        torch.manual_seed(0)
        vae = LGMVAE(TabularSpace.infer(people).fit(people), 2)
        before = vae.elbo(x, y, generator=torch.Generator().manual_seed(0)).mean().item()
        train(vae, x, y, settings=Training(epochs=15), seed=0)
        bounds.append(vae.elbo(x, y, generator=torch.Generator().manual_seed(0)).mean().item())
        weights.append(vae.means.detach().numpy().copy())
    assert bounds[0] > before + 100
    np.testing.assert_array_equal(*weights)


def test_epochs_follow_the_number_of_rows():
    assert [Training().epochs_for(n) for n in (100, 1500, 100_000)] == [200, 40, 40]
    assert Training(epochs=7).epochs_for(100) == 7
