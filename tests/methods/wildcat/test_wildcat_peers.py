"""The peers are what they are called: exact at full size or on the inputs where theory says so."""

import pytest
import torch

from cameraready.methods.wildcat import peers


def seeded():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def smooth():
    query, key, value = (torch.randn(2, 512, 6, generator=torch.Generator().manual_seed(i)) * 0.7 for i in range(3))
    return query, key, torch.tanh(key) + 0.2 * value


def relative_error(got, expected):
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", ["uniform keys", "k-means keys", "Thinformer-style"])
def test_subset_methods_are_exact_when_they_keep_everything(name, smooth):
    got = peers.PEERS[name](*smooth, 0.4, None, 512, seeded())
    assert relative_error(got, peers.exact(*smooth, 0.4)) < 1e-4


@pytest.mark.parametrize("name", list(peers.PEERS))
@pytest.mark.parametrize("biased", [False, True])
def test_every_peer_improves_with_its_size(name, biased, smooth):
    bias = -smooth[1].square().sum(-1) * 0.2 if biased else None
    expected = peers.exact(*smooth, 0.4, bias)

    def error(size):
        runs = [peers.PEERS[name](*smooth, 0.4, bias, size, torch.Generator().manual_seed(s)) for s in range(6)]
        return sum(relative_error(x, expected) for x in runs) / 6

    assert error(128) < 0.6
    assert error(128) < error(8)


def test_cache_peers_keep_the_budget_and_what_they_promise():
    key = torch.randn(1, 2, 100, 8)
    query = torch.randn(1, 4, 100, 8)
    assert peers.streaming_indices(key, 20)[0, 0].tolist() == [0, 1, 2, 3, *range(84, 100)]
    key[0, 1, 10] = query[0, 2:, -32:].mean((0, 1)) * 100
    kept = peers.snapkv_indices(key, query, 40)
    assert kept.shape == (1, 2, 40)
    assert set(range(68, 100)) <= set(kept[0, 1].tolist())
    assert 10 in kept[0, 1].tolist()
    norms = key.norm(dim=-1)
    assert norms.gather(-1, peers.knorm_indices(key, 5)).max() <= norms.sort(-1).values[..., 5].max()
