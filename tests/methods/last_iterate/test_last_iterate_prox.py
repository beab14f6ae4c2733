"""The penalty: its proximal maps against a conic solver and against optimality conditions."""

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

from cameraready.methods.last_iterate import EdgePenalty, read_graph
from cameraready.methods.last_iterate.blocks import matchings, single_edges

cp = pytest.importorskip("cvxpy")


def conic_prox(penalty, W, step):
    """Clarabel's solution of the same problem."""
    V = cp.Variable(W.shape)
    rows = cp.norm(penalty.graph.incidence() @ V, penalty.p, axis=1)
    objective = 0.5 * cp.sum_squares(V - W) + step * cp.sum(cp.multiply(penalty.strengths, rows))
    cp.Problem(cp.Minimize(objective)).solve(solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    return V.value


def assert_optimal(penalty, W, V, step):
    """W - V is the edge's dual y at one end and -y at the other; y is feasible, and supports the norm at V."""
    u, v = penalty.graph.edges[0]
    y, bound, difference = W[u] - V[u], step * penalty.strengths[0], V[u] - V[v]
    size = max(1.0, np.abs(W).max())
    np.testing.assert_allclose(V[v] - W[v], y, atol=1e-14 * size)
    dual_norm = np.linalg.norm(y) if penalty.p == 2 else np.abs(y).max()
    norm = np.linalg.norm(difference) if penalty.p == 2 else np.abs(difference).sum()
    assert dual_norm <= bound + 1e-14 * size
    assert bound * norm - y @ difference <= 1e-13 * size * max(bound, size)


@pytest.mark.parametrize("p", [1, 2])
def test_prox_of_an_edge_is_optimal_in_200_random_cases(p):
    rng = np.random.default_rng(p)
    for _ in range(100):
        penalty = EdgePenalty([(0, 1, rng.exponential())], lam=rng.exponential(), p=p)
        W = rng.normal(size=(2, rng.integers(1, 6))) * 10 ** rng.uniform(-2, 2)
        step = 10 ** rng.uniform(-2, 1)
        assert_optimal(penalty, W, penalty.prox_edge(W, 0, step), step)


@pytest.mark.parametrize("p", [1, 2])
def test_prox_of_an_edge_is_that_of_a_conic_solver(p):
    rng = np.random.default_rng(p)
    for _ in range(8):
        penalty = EdgePenalty([(0, 1, rng.exponential())], lam=rng.exponential(), p=p)
        W = rng.normal(size=(2, 3))
        np.testing.assert_allclose(penalty.prox_edge(W, 0, 0.7), conic_prox(penalty, W, 0.7), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_prox_of_an_edge_is_that_of_a_conic_solver_in_200_cases(p):
    rng = np.random.default_rng(10 + p)
    worst = []
    for _ in range(100):
        penalty = EdgePenalty([(0, 1)], lam=rng.exponential(), p=p)
        W = rng.normal(size=(2, rng.integers(1, 6)))
        ours, theirs = penalty.prox_edge(W, 0, 1.0), conic_prox(penalty, W, 1.0)

        def value(V, penalty=penalty, W=W):
            return 0.5 * ((V - W) ** 2).sum() + penalty.value(V)

        assert value(ours) <= value(theirs) + 1e-12
        worst.append(np.abs(ours - theirs).max())
    assert np.median(worst) < 1e-8
    assert max(worst) < 1e-5  # where the edge just fuses the conic solver has fewer digits


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("lam", [0.01, 0.3, 20.0])
def test_prox_of_the_whole_penalty_is_that_of_a_conic_solver(p, lam):
    rng = np.random.default_rng(0)
    graph = nx.gnm_random_graph(9, 14, seed=1)
    penalty = EdgePenalty(graph, lam, p)
    W = rng.normal(size=(9, 3))
    ours, theirs = penalty.prox_full(W, 0.5), conic_prox(penalty, W, 0.5)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)

    def value(V):
        return 0.5 * ((V - W) ** 2).sum() + 0.5 * penalty.value(V)

    assert value(ours) <= value(theirs) + 1e-10
    # The prox of a huge penalty is the mean over each component.
    if lam == 20.0 and nx.is_connected(graph):
        np.testing.assert_allclose(ours, np.tile(W.mean(axis=0), (9, 1)), atol=1e-7)


def test_every_way_to_write_a_graph_means_the_same():
    edges = np.array([[0, 1], [1, 2], [3, 1]])
    adjacency = np.zeros((4, 4))
    adjacency[edges[:, 0], edges[:, 1]] = 2.0
    graph = nx.Graph()
    graph.add_nodes_from(range(4))
    graph.add_weighted_edges_from([(*e, 2.0) for e in edges.tolist()])
    both_ways = np.vstack([edges, edges[:, ::-1]])
    wanted = read_graph(np.column_stack([edges, [2.0, 2.0, 2.0]]))
    ways = [adjacency, sparse.csr_matrix(adjacency + adjacency.T), graph, np.column_stack([both_ways, np.full(6, 2.0)])]
    for found in map(read_graph, ways):
        np.testing.assert_array_equal(found.edges, wanted.edges)
        np.testing.assert_array_equal(found.weights, wanted.weights)
        assert found.nodes == wanted.nodes == (0, 1, 2, 3)
    triangle = read_graph(np.array([[0.0, 1, 2], [1, 0, 0], [2, 0, 0]]))  # not the edges (0, 1, 2), (1, 0, 0), ...
    np.testing.assert_array_equal(triangle.edges, [[0, 1], [0, 2]])
    np.testing.assert_array_equal(triangle.weights, [1.0, 2.0])


def test_bad_graphs_are_refused_by_name():
    with pytest.raises(ValueError, match=r"weight -1\.0"):
        read_graph([(0, 1, -1.0), (1, 2, 1.0)])
    with pytest.raises(ValueError, match="weight nan"):
        read_graph([(0, 1, float("nan")), (1, 2, 1.0)])
    with pytest.raises(ValueError, match="square"):
        read_graph(sparse.csr_matrix(np.ones((2, 3))))
    with pytest.raises(ValueError, match="no node"):
        read_graph(nx.Graph())
    with pytest.raises(ValueError, match="lam=-1"):
        EdgePenalty([(0, 1)], lam=-1)
    with pytest.raises(ValueError, match="p=3"):
        EdgePenalty([(0, 1)], p=3)
    with pytest.warns(UserWarning, match="1 self-loops"):
        assert len(read_graph([(0, 0), (0, 1)]).edges) == 1
    with pytest.raises(ValueError, match="labels that are not nodes"):
        read_graph([("a", "b")]).positions(["a", "c"])
    with pytest.raises(ValueError, match=r"shape \(3, 1\)"):
        EdgePenalty([(0, 1)]).value(np.ones((3, 1)))


def test_blocks_share_no_task_and_their_probabilities_are_exact():
    edges = read_graph(nx.gnm_random_graph(12, 30, seed=0)).edges
    blocks = matchings(edges, 12, np.random.default_rng(0))
    counts = np.zeros(30)
    for b in range(blocks.number):
        chosen = blocks.edges[blocks.start[b] : blocks.start[b + 1]]
        assert len(np.unique(edges[chosen])) == 2 * len(chosen)
        counts[chosen] += 1
    assert (counts > 0).all()
    np.testing.assert_allclose(blocks.inclusion, counts / blocks.number)
    star = matchings(np.array([[0, k] for k in range(1, 100)]), 100, np.random.default_rng(0))
    np.testing.assert_allclose(star.inclusion, 1 / 99)
    np.testing.assert_allclose(single_edges(np.array([1.0, 3.0]), by_strength=True).inclusion, [0.25, 0.75])
