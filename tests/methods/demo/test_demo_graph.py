from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

from cameraready.data import Graph
from cameraready.methods.demo.distance import KNNRatio
from cameraready.methods.demo.graph import Operator, mean_weights, read_graph, symmetric_weights
from cameraready.methods.demo.mixup import personalised_pagerank
from cameraready.methods.demo.network import Network, View
from cameraready.methods.demo.sampling import sample_neighbours


def random_data(n=40, edges=120, d=6, seed=0, **more):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, d)).astype(np.float32))
    return Data(x=x, edge_index=torch.from_numpy(rng.integers(0, n, size=(2, edges))), **more)


def test_loops_and_repeats_are_dropped_and_edges_work_both_ways():
    data = Data(x=torch.zeros(4, 1), edge_index=torch.tensor([[0, 0, 1, 2], [1, 1, 0, 2]]))
    graph = read_graph(data)
    assert graph.adjacency.toarray().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    weighted = Data(
        x=torch.zeros(2, 1), edge_index=torch.tensor([[0, 0], [1, 1]]), edge_weight=torch.tensor([2.0, 3.0])
    )
    assert read_graph(weighted).adjacency.toarray().tolist() == [[0, 3], [3, 0]]
    assert read_graph(weighted, undirected=False).adjacency.toarray().tolist() == [[0, 0], [3, 0]]


def test_a_graph_of_the_data_package_gives_the_same_as_pyg():
    data = random_data()
    graph = read_graph(data)
    ours = Graph(sp.csr_matrix(graph.adjacency), sp.csr_matrix(graph.x), np.zeros(40, dtype=np.int64))
    assert read_graph(ours).same_as(graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.full((40, 6), torch.nan)}, "not finite.* in 40 nodes"),
        ({"x": torch.full((40, 6), 1e20)}, "not below 1e\\+15"),
        ({"x": torch.zeros(40)}, r"x has shape \(40,\)"),
        ({"edge_index": torch.tensor([[0], [40]])}, "0 to 40, but x has the nodes 0 to 39"),
        ({"edge_index": torch.zeros(3, 2, dtype=torch.long)}, r"edge_index has shape \(3, 2\)"),
        ({"edge_weight": torch.full((120,), -1.0)}, "negative or non-finite"),
        ({"edge_weight": torch.ones(3)}, "3 values for 120 edges"),
    ],
)
def test_a_broken_graph_is_refused(change, message):
    data = random_data()
    for name, value in change.items():
        data[name] = value
    with pytest.raises(ValueError, match=message):
        read_graph(data)


def test_what_is_no_graph_is_refused():
    with pytest.raises(TypeError, match="torch_geometric Data"):
        read_graph(np.zeros((3, 2)))
    with pytest.raises(TypeError, match="x has type"):
        read_graph(SimpleNamespace(x=np.array([["a"], ["b"]]), edge_index=np.zeros((2, 0), dtype=int)))


def test_the_layers_are_those_of_pyg():
    data = random_data()
    graph = read_graph(data)
    coo = graph.adjacency.tocoo()
    index = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
    net = Network(6, hidden=8).eval()
    operator = Operator(mean_weights(graph.adjacency))
    ours = net.encode(View(data.x, operator @ data.x, operator))
    x = data.x
    for own, neighbours in zip(net.own, net.neighbours, strict=True):
        conv = SAGEConv(*reversed(own.weight.shape), aggr="mean")
        conv.lin_l.load_state_dict(neighbours.state_dict())
        conv.lin_r.load_state_dict(own.state_dict())
        x = torch.relu(conv(x, index))
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-5)

    gcn = Network(6, hidden=8, own_features=False).eval()
    operator = Operator(symmetric_weights(graph.adjacency))
    ours, x = gcn.encode(View(data.x, operator @ data.x, operator)), data.x
    for layer in gcn.neighbours:
        conv = GCNConv(*reversed(layer.weight.shape))
        conv.lin.weight, conv.bias = layer.weight, layer.bias
        x = torch.relu(conv(x, index))
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-5)


def test_the_backward_pass_of_a_product_is_that_of_the_dense_one():
    matrix = sp.csr_array(np.random.default_rng(0).random((3, 5)).astype(np.float32))
    x = torch.randn(5, 2, requires_grad=True)
    (Operator(matrix) @ x).square().sum().backward()
    other = x.detach().clone().requires_grad_()
    (torch.from_numpy(matrix.toarray()) @ other).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_sampled_neighbours_are_distinct_real_and_uniform():
    """A hub of degree 20, five of which are drawn 1,000 times: each is drawn with chance 1/4; 5 sigma is 0.068."""
    star = np.zeros((21, 21), dtype=np.float32)
    star[0, 1:] = star[1:, 0] = np.arange(1, 21)
    adjacency, rng = sp.csr_array(star), np.random.default_rng(0)
    count = np.zeros(21)
    for _ in range(1000):
        sources, weights = sample_neighbours(adjacency, np.array([0, 3]), fanout=5, rng=rng)
        assert weights.shape == (2, len(sources))
        assert np.diff(weights.indptr).tolist() == [5, 1]
        drawn = sources[weights[[0]].indices]
        assert len(set(drawn.tolist())) == 5
        assert np.array_equal(np.sort(weights[[0]].data), np.sort(drawn))  # the weight of edge (0, j) is j
        count[drawn] += 1
    assert np.abs(count[1:] / 1000 - 0.25).max() < 0.068


def test_all_neighbours_give_the_rows_of_the_whole_matrix():
    graph = read_graph(random_data())
    nodes = np.array([7, 3, 30])
    sources, weights = sample_neighbours(graph.adjacency, nodes, fanout=None, rng=np.random.default_rng(0))
    whole = np.zeros((3, 40), dtype=np.float32)
    whole[:, sources] = weights.toarray()
    assert np.array_equal(sources[:3], nodes)
    assert np.array_equal(whole, graph.adjacency.toarray()[nodes])


def test_pagerank_of_the_whole_graph_solves_its_equation():
    a_sym = symmetric_weights(read_graph(random_data()).adjacency)
    pi = personalised_pagerank(a_sym)
    np.testing.assert_allclose(pi, 0.2 * np.eye(40) + 0.8 * a_sym @ pi, atol=1e-6)


def test_no_node_is_compared_with_itself():
    x = torch.tensor([[0.0], [1.0], [2.0], [10.0], [12.0]])
    ratio = KNNRatio.from_labels(x, torch.tensor([0, 1, 2]), torch.tensor([3, 4]), rng=np.random.default_rng(0))
    found = ratio.score(x, transductive=True)
    # As many for all as a reference has others of its kind: two normals, one anomaly.
    assert found[[0, 3]].tolist() == [(1 + 2) / 2 - 10 / 2, (8 + 9) / 2 - 2 / 2]
    assert ratio.score(x, transductive=False)[0].item() == (0 + 1 + 2) / 3 - 11 / 2
