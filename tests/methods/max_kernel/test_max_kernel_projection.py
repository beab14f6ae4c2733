"""The projection to positive semi-definite matrices and its gradient."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cameraready.methods.max_kernel.projection import inverse_root, psd_projection


def symmetric(eigenvalues, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = len(eigenvalues)
    Q, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))
    K = Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.T
    return 0.5 * (K + K.T)


@given(st.lists(st.sampled_from([-2.0, -0.5, 0.3, 1.0, 2.0]), min_size=2, max_size=6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_projection_gradient_is_right_also_with_repeated_eigenvalues(eigenvalues, seed):
    K = symmetric(eigenvalues, seed).requires_grad_()
    assert torch.autograd.gradcheck(psd_projection, (K,), atol=1e-6)


def test_gradient_is_finite_where_autograd_through_eigh_is_not():
    K = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)).requires_grad_()
    weight = torch.arange(9.0, dtype=torch.float64).view(3, 3)
    naive, V = torch.linalg.eigh(K)
    (unstable,) = torch.autograd.grad((weight * ((V * naive.clamp_min(0)) @ V.T)).sum(), K)
    (stable,) = torch.autograd.grad((weight * psd_projection(K)).sum(), K)
    assert not torch.isfinite(unstable).all()
    assert torch.isfinite(stable).all()


def test_inverse_root_gradient_is_right_with_repeated_and_clipped_eigenvalues():
    K = symmetric([-1.0, 0.5, 0.5, 2.0, 2.0]).requires_grad_()

    def root(K):
        symmetric_part = 0.5 * (K + K.T)
        eigenvalues, V = torch.linalg.eigh(symmetric_part.detach())
        return inverse_root(symmetric_part, eigenvalues, V, eig_tol=1e-8)

    assert torch.autograd.gradcheck(root, (K,))
    R = root(K.detach())
    assert torch.allclose(R @ psd_projection(K.detach()) @ R, symmetric([0.0, 1.0, 1.0, 1.0, 1.0]))


def test_projection_is_nearer_than_any_of_100_random_psd_matrices():
    K = symmetric([-1.0, -0.2, 0.4, 1.0, 3.0])
    nearest = torch.linalg.matrix_norm(K - psd_projection(K))
    assert torch.allclose(nearest, torch.tensor(1.04, dtype=torch.float64).sqrt())
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        noise = 0.3 * torch.randn(5, 5, dtype=torch.float64, generator=generator)
        competitor = psd_projection(psd_projection(K) + noise + noise.T)
        assert torch.linalg.matrix_norm(K - competitor) > nearest


def test_projection_keeps_a_psd_matrix_and_works_on_batches():
    K = torch.stack([symmetric([0.1, 1.0, 2.0]), symmetric([-1.0, 1.0, 2.0])])
    projected = psd_projection(K)
    assert torch.allclose(projected[0], K[0])
    assert torch.linalg.eigvalsh(projected).min() > -1e-12
