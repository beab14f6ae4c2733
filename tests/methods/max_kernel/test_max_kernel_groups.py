"""Groups: closed-form orbit distances against enumeration, products, and what is refused."""

import itertools
import math

import pytest
import torch

from cameraready.methods.max_kernel import (
    BlockPermutations,
    CyclicShifts,
    FromOrbit,
    Matrices,
    Permutations,
    PointCloudRotations,
    Rotations,
    SignedPermutations,
    SignFlips,
)

QUARTER_TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
TURNS = [torch.linalg.matrix_power(QUARTER_TURN, k) for k in range(4)]


def cloud(matrices, n_points):
    return Matrices([torch.block_diag(*[matrix] * n_points) for matrix in matrices])


FINITE = {
    "permutations": Permutations(4),
    "sign flips": SignFlips(4),
    "signed permutations": SignedPermutations(3),
    "cyclic shifts, listed": CyclicShifts(5, 2),
    "cyclic shifts, Fourier": CyclicShifts(60, 2),
    "block permutations, listed": BlockPermutations(4, 2),
    "block permutations, assignment": BlockPermutations(6, 2),
    "matrices": Matrices(TURNS),
    "particles and turns": BlockPermutations(3, 2) * cloud(TURNS, 3),
    "many particles and turns": BlockPermutations(6, 2) * cloud(TURNS, 6),
}
INFINITE = {
    "rotations": Rotations(3),
    "cloud rotations": PointCloudRotations(4, 3),
    "cloud rotations and reflections": PointCloudRotations(4, 2, reflections=True),
    "particles and rotations": BlockPermutations(3, 2) * PointCloudRotations(3, 2),
}
ALL = FINITE | INFINITE


def points(n, group, *batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*batch, n, group.dim, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("name", FINITE)
def test_closed_form_orbit_distances_equal_enumeration(name):
    group = FINITE[name]
    X1, X2 = points(6, group, seed=1), points(5, group, 2, seed=2)
    listed = (X1[:, None, None] - group.orbit(X2)[:, None]).square().sum(-1).amin(-1)
    assert (group.sq_orbit_distance(X1, X2) - listed).abs().max() < 1e-10


@pytest.mark.parametrize("name", ALL)
def test_orbit_distance_vanishes_along_an_orbit_and_does_not_depend_on_the_representative(name):
    group = ALL[name]
    X, other = points(4, group, seed=3), points(3, group, seed=4)
    images = group.random_images(X, 5).transpose(0, 1)
    assert group.sq_orbit_distance(images, X).diagonal(dim1=-2, dim2=-1).max() < 1e-24 * 1e6
    assert (group.sq_orbit_distance(images, other) - group.sq_orbit_distance(X, other)).abs().max() < 1e-12


@pytest.mark.parametrize("reflections", [False, True])
def test_cloud_rotations_agree_with_a_fine_grid_of_angles_in_the_plane(reflections):
    group = PointCloudRotations(3, 2, reflections=reflections, center=0.0)
    X1, X2 = points(4, group, seed=5) - 0.5, points(4, group, seed=6) - 0.5
    angles = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    turns = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1).view(-1, 2, 2)
    if reflections:
        turns = torch.cat([turns, turns @ torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))])
    turned = torch.einsum("gab,jmb->gjma", turns, X2.view(4, 3, 2))
    grid = (X1.view(1, 4, 1, 3, 2) - turned[:, None]).square().sum((-1, -2)).amin(0)
    assert torch.allclose(group.sq_orbit_distance(X1, X2), grid, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, group in ALL.items() if group.canonical(points(1, group)) is not None])
def test_canonical_representatives_are_invariant(name):
    group = ALL[name]
    X = points(4, group, seed=7)
    images = group.random_images(X, 4)
    assert torch.allclose(group.canonical(images), group.canonical(X).unsqueeze(1), atol=1e-9)
    if group.canonical_is_isometric:
        straight = torch.cdist(group.canonical(X), group.canonical(X)).square()
        assert torch.allclose(group.sq_orbit_distance(X, X), straight, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_orbit_distance_gradient_agrees_with_finite_differences(name):
    group = ALL[name]
    if group.dim > 20:
        pytest.skip("the same code as for short signals")
    X1, X2 = (points(2, group, seed=seed).requires_grad_() for seed in (8, 9))
    assert torch.autograd.gradcheck(group.sq_orbit_distance, (X1, X2))


def test_enumeration_in_small_chunks_gives_the_same_distances():
    group = FINITE["block permutations, listed"]
    X1, X2 = points(7, group, seed=1), points(9, group, seed=2)
    once = group.sq_orbit_distance(X1, X2)
    assert torch.equal(group.sq_orbit_distance(X1, X2, chunk_bytes=24 * 8 * 8 * 2), once)


def test_the_orbit_starts_with_the_point_itself_and_has_as_many_images_as_the_order():
    for group in FINITE.values():
        X = points(3, group)
        assert group.orbit(X).shape == (3, group.order, group.dim)
        assert torch.allclose(group.orbit(X)[:, 0], X)


def test_a_group_of_matrices_must_be_complete():
    with pytest.raises(ValueError, match="identity"):
        Matrices(TURNS[1:])
    with pytest.raises(ValueError, match="closed under multiplication"):
        Matrices(TURNS[:2])


def test_an_orbit_callable_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"must be \(5, 2, 3\)"):
        FromOrbit(lambda X: X.unsqueeze(-2), 2, dim=3)


def test_an_orbit_callable_without_the_identity_is_refused():
    with pytest.raises(ValueError, match="include the identity"):
        FromOrbit(lambda X: torch.stack([X.flip(-1), 1 - X], dim=-2), 2, dim=3)


def test_an_orbit_callable_may_be_nonlinear():
    group = FromOrbit(lambda X: torch.stack([X.flip(-1), X], dim=-2), 2, dim=3)
    assert group.orthogonal
    assert torch.equal(group.orbit(points(1, group))[:, 0], points(1, group))
    swirl = FromOrbit(lambda X: torch.stack([X, torch.stack([X[..., 1] ** 3, X[..., 0].pow(1 / 3)], -1)], -2), 2, dim=2)
    assert not swirl.orthogonal


def test_factors_that_do_not_commute_have_no_product():
    with pytest.raises(ValueError, match="do not commute"):
        SignFlips(3) * Permutations(3)


def test_two_infinite_factors_have_no_product():
    with pytest.raises(ValueError, match="infinite"):
        Rotations(4) * PointCloudRotations(2, 2)


def test_factors_about_different_points_have_no_product():
    with pytest.raises(ValueError, match="center"):
        SignFlips(2, center=0.0) * SignFlips(2)


def test_a_group_that_leaves_the_box_is_refused_with_generator_and_coordinate():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"swap of coordinates 0 and 1 .* coordinate 0"):
        Permutations(2).check_bounds(bounds)
    with pytest.raises(ValueError, match=r"reflection of coordinate 1"):
        SignFlips(2).check_bounds(bounds)
    SignFlips(2, center=[0.5, 1.0]).check_bounds(bounds)


def test_an_orbit_too_large_to_list_names_the_closed_forms():
    with pytest.raises(ValueError, match="closed-form"):
        Permutations(12).orbit(points(1, Permutations(12)))
    with pytest.raises(ValueError, match="chunk_bytes"):
        FINITE["matrices"].sq_orbit_distance(
            points(1, FINITE["matrices"]), points(1, FINITE["matrices"]), chunk_bytes=8
        )


def test_integer_points_and_wrong_dimensions_are_refused():
    with pytest.raises(TypeError, match=r"X.double\(\)"):
        Permutations(2).orbit(torch.ones(1, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="needs"):
        Permutations(2).orbit(torch.ones(1, 3))
    with pytest.raises(ValueError, match="center"):
        Permutations(3, center=[0.0, 1.0])


def test_block_permutations_relabel_whole_particles():
    group = BlockPermutations(3, 2)
    x = torch.arange(6.0).double().unsqueeze(0)
    blocks = [tuple(image.tolist()) for image in group.orbit(x)[0]]
    pairs = [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)]
    assert set(blocks) == {sum(order, ()) for order in itertools.permutations(pairs)}
