import numpy as np
import pytest
import torch

from cameraready.methods.mes_ret import GymTask, ManyTaskES, PolicySpace, TaskSpec, align, labels_for
from cameraready.methods.mes_ret.policy import forward

SIZES = {
    "Hopper-v5": (11, 3), "Walker2d-v5": (17, 6), "HalfCheetah-v5": (17, 6), "Ant-v5": (105, 8), "Swimmer-v5": (8, 2),
    "InvertedPendulum-v5": (4, 1), "InvertedDoublePendulum-v5": (9, 1), "Reacher-v5": (10, 2), "CartPole-v1": (4, 2),
    "Pendulum-v1": (3, 1), "Acrobot-v1": (6, 3),
}  # fmt: skip


def test_a_vector_becomes_the_network_and_the_batch_computes_the_same():
    space = PolicySpace(["a", "b", "c"], ["x", "y"], hidden=5)
    vectors = np.random.default_rng(0).standard_normal((4, space.n_params))
    obs = np.random.default_rng(1).standard_normal((4, 3))
    batched = forward(space.blocks(vectors), obs)
    for vector, each, out in zip(vectors, obs, batched, strict=True):
        assert space.policy(vector)(torch.as_tensor(each)).detach().numpy() == pytest.approx(out, rel=1e-12)
    assert space.blocks(vectors)["b1"].tolist() == vectors[:, :5].tolist()  # the core comes first


def test_alignment_goes_there_and_back_and_the_mask_says_who_owns_what():
    spaces = [
        PolicySpace(["pole/pos", None], ["force"], hidden=3),
        PolicySpace(["cart/pos", "pole/pos"], ["force", None], hidden=3),
        PolicySpace([None], ["torque"], hidden=2),
    ]
    layout = align(spaces)
    for t, space in enumerate(spaces):
        there = layout.to_global[t]
        assert layout.to_local[t][there].tolist() == list(range(space.n_params))
        assert layout.mask[t].sum() == space.n_params
        assert (layout.to_local[t][~layout.mask[t]] == -1).all()
    # Column 0 of the first body's W1 and column 1 of the second's are the same slots; so is the action's row.
    first, second = (dict(zip(spaces[t].slots, layout.to_global[t], strict=True)) for t in (0, 1))
    for unit in range(3):
        assert first["W1", "pole/pos", unit] == second["W1", "pole/pos", unit]
        assert first["W3", "force", unit] == second["W3", "force", unit]
    # The core of 3 + 9 + 3, the pole's column, the force's row and its bias; unlabelled dimensions are shared by none.
    assert (layout.mask[0] & layout.mask[1]).sum() == 15 + 3 + 3 + 1
    assert (layout.mask[0] & layout.mask[2]).sum() == 2 + 4 + 2


def test_repeated_and_missing_labels_are_refused():
    with pytest.raises(ValueError, match="none twice"):
        PolicySpace(["a", "a"], ["x"])
    with pytest.raises(ValueError, match="at least one label"):
        PolicySpace(["a"], [])
    with pytest.raises(ValueError, match="pass a list"):
        PolicySpace("abc", ["x"])
    with pytest.raises(ValueError, match="n_params=37"):
        PolicySpace(["a", "b"], ["x"], hidden=4).policy(np.zeros(36))


@pytest.mark.parametrize("env_id", SIZES)
def test_labels_name_every_dimension(env_id):
    pytest.importorskip("mujoco")
    obs, act = labels_for(env_id)
    assert (len(obs), len(act)) == SIZES[env_id]
    PolicySpace(obs, act)  # no label twice
    assert None not in obs + act


def test_bodies_share_what_they_have_in_common():
    pytest.importorskip("mujoco")
    hopper, walker = (labels_for(name) for name in ("Hopper-v5", "Walker2d-v5"))
    assert set(hopper[0]) < set(walker[0])
    assert set(hopper[1]) < set(walker[1])
    assert "thigh.left/pos" in walker[0]
    cart, inverted = labels_for("CartPole-v1"), labels_for("InvertedPendulum-v5")
    assert set(cart[0]) == set(inverted[0])


def test_an_environment_without_names_asks_for_labels():
    pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match="write them"):
        labels_for("MountainCar-v0")


def test_policies_learn_to_balance():
    pytest.importorskip("gymnasium")
    space = PolicySpace(*labels_for("CartPole-v1"), hidden=4)
    task = GymTask("CartPole-v1", space, rollouts=2, horizon=100, seed=0)
    spec = TaskSpec("cart", np.full(space.n_params, -5.0), 5.0)
    es = ManyTaskES([spec], max_evals=400, bounds=None, noisy=True, seed=0)
    while not es.stop():
        es.tell([(b.task, b.X, task(b.X)) for b in es.ask()])
    # Random weights hold it for about 20 steps.
    assert task.score(es.result[0].x_best, episodes=10) > 60
    assert task.steps > 1000
    task.close()


def test_candidates_start_alike_and_the_same_seed_gives_the_same_returns():
    pytest.importorskip("gymnasium")
    space = PolicySpace(*labels_for("Pendulum-v1"), hidden=3)
    X = np.tile(np.random.default_rng(0).standard_normal(space.n_params), (3, 1))
    returns = [GymTask("Pendulum-v1", space, rollouts=2, horizon=20, seed=5)(X) for _ in range(2)]
    assert np.ptp(returns[0]) == 0
    assert returns[0].tolist() == returns[1].tolist()
    with pytest.raises(ValueError, match="the space labels 3 and 2"):
        GymTask("Pendulum-v1", PolicySpace(["a", "b", "c"], ["x", "y"]))


def test_an_unstable_simulation_does_not_spoil_the_normalisation(monkeypatch):
    pytest.importorskip("gymnasium")
    space = PolicySpace(*labels_for("Pendulum-v1"), hidden=3)
    task = GymTask("Pendulum-v1", space, rollouts=1, horizon=5)
    seen = np.array([[np.nan, 0.0, 0.0], [1.0, 2.0, 3.0]])
    monkeypatch.setattr(task, "_play", lambda X, seeds: (np.full(len(X), np.nan), seen))
    task(np.zeros((1, space.n_params)))
    assert task._mean.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="rollouts=0"):
        GymTask("Pendulum-v1", space, rollouts=0)


def test_mujoco_leaves_no_file_behind(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    labels_for("HalfCheetah-v5")  # its model uses a deprecated attribute, of which MuJoCo warns
    assert not list(tmp_path.iterdir())
