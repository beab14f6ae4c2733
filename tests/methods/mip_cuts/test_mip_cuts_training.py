import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from cameraready.methods.mip_cuts import (
    CutSelectionEnv,
    Policy,
    cauctions,
    curriculum,
    lotsizing,
    record_expert,
    setcover,
    train_gail,
)
from cameraready.methods.mip_cuts.curriculum import Stage, TrainingScale
from cameraready.methods.mip_cuts.features import FEATURE_VERSION
from cameraready.methods.mip_cuts.imitation import Discriminator, agreement, clone, overlap_and_auc
from cameraready.methods.mip_cuts.network import Batch, PolicyNetwork, Step, log_probabilities
from cameraready.methods.mip_cuts.policy import SHIPPED
from cameraready.methods.mip_cuts.ppo import PPO, PPOSettings, advantages, rollout
from cameraready.methods.mip_cuts.recorder import attach_recorder

# One run of the command in `made_by`; the card says how far another agrees.
SHIPPED_SHA256 = "607ee3cc04094edb93b003eef2c8e861b1ae35b9f6f1c126007208b65a8ee0f8"


@pytest.fixture(autouse=True)
def one_thread():
    """Such small networks are slower on several, and far slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def auctions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auctions")
    paths = [folder / f"{seed}.cip" for seed in range(3)]
    for seed, path in enumerate(paths):
        cauctions(40, 150, seed=seed).writeProblem(str(path), verbose=False, genericnames=True)
    return paths


@pytest.fixture(scope="module")
def expert(auctions):
    return record_expert(auctions)


def random_steps(rng, n=6):
    steps = []
    for i in range(n):
        size = int(rng.integers(1, 9))
        order = rng.permutation(size)[: rng.integers(0, size + 1)]
        cuts, overall = rng.random((size, 24)), rng.random(16)
        steps.append(
            Step(cuts.astype("f4"), overall.astype("f4"), i == 0, order, 0.4, bool(i % 2), rng.random(8) < 0.5)
        )
    return steps


def test_torch_and_numpy_policies_agree():
    policy, rng = Policy.initial(seed=3), np.random.default_rng(0)
    steps = random_steps(rng)
    scores, keep, stop, opening, _ = PolicyNetwork(policy)(Batch.of(steps))
    for i, step in enumerate(steps):
        out = policy.round(step.cuts, step.overall)
        np.testing.assert_allclose(scores[i, : len(step.cuts)].detach(), out.scores, atol=1e-5)
        assert keep.mean[i].item() == pytest.approx(out.keep, abs=1e-5)
        assert stop.probs[i].item() == pytest.approx(out.stop, abs=1e-5)
        np.testing.assert_allclose(opening.probs[i].detach(), policy.opening(step.overall), atol=1e-5)


def test_the_probabilities_of_all_orders_sum_to_one():
    from itertools import permutations

    rng = np.random.default_rng(1)
    cuts, overall = rng.random((4, 24)).astype("f4"), rng.random(16).astype("f4")
    steps = [Step(cuts, overall, False, np.array(order), 0.5, False, np.ones(8)) for order in permutations(range(4), 2)]
    parts, _, _ = log_probabilities(PolicyNetwork(Policy.initial(seed=0)), Batch.of(steps))
    assert parts["order"].exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_gumbel_noise_samples_the_orders_distribution():
    rng = np.random.default_rng(2)
    scores = np.array([0.5, -0.3, 1.0])
    first = np.argmax(scores + rng.gumbel(size=(20_000, 3)), axis=1)
    expected = np.exp(scores) / np.exp(scores).sum()  # three standard errors: false alarm below 1 %
    np.testing.assert_allclose(np.bincount(first) / 20_000, expected, atol=3 * np.sqrt(0.25 / 20_000))


def test_advantages_are_those_of_the_definition():
    settings, rewards, values = PPOSettings(gamma=0.9, gae=0.8), [1.0, 0.0, 2.0], np.array([0.5, 0.2, 0.1])
    deltas = [1 + 0.9 * 0.2 - 0.5, 0 + 0.9 * 0.1 - 0.2, 2 - 0.1]
    expected = [deltas[0] + 0.72 * (deltas[1] + 0.72 * deltas[2]), deltas[1] + 0.72 * deltas[2], deltas[2]]
    np.testing.assert_allclose(advantages(rewards, values, settings), expected)


def test_ppo_learns_which_families_to_open():
    """A bandit: each open family costs one. The chance of opening falls from 0.73."""
    from cameraready.methods.mip_cuts.ppo import Episode

    rng, policy = np.random.default_rng(0), Policy.initial(seed=0)
    torch.manual_seed(0)
    network = PolicyNetwork(policy)
    ppo = PPO(network, PPOSettings(learning_rate=1e-2, minibatch=64))
    nothing = np.zeros(0, dtype=np.int64)
    for _ in range(10):
        episodes, now = [], network.policy()
        for _ in range(32):
            overall = rng.random(16).astype("f4")
            families = rng.random(8) < now.opening(overall)
            step = Step(np.zeros((0, 24), "f4"), overall, True, nothing, 0.5, False, families)
            episodes.append(Episode([step], [-float(families.sum())]))
        ppo.update(episodes, rng=rng)
    assert network.policy().opening(np.full(16, 0.5, "f4")).mean() < 0.2


def test_the_recorder_counts_the_cuts_that_scip_counts():
    for model in (cauctions(60, 250, seed=0), lotsizing(3, 8, seed=0)):
        model.setParam("presolving/maxrestarts", 0)  # a restart sets SCIP's counter to 0
        model.setParam("limits/nodes", 1)
        recorder = attach_recorder(model)
        model.optimize()
        assert recorder.taken + recorder.forced == model.getNCutsApplied() > 10


def test_the_recorder_leaves_the_solve_as_it_was():
    runs = []
    for record in (True, False):
        model = lotsizing(3, 8, seed=0)
        if record:
            attach_recorder(model)
        model.optimize()
        runs.append((model.getNLPIterations(), model.getNTotalNodes(), model.getObjVal()))
    assert runs[0] == runs[1]


def test_expert_data_is_stored_and_read(expert, tmp_path):
    expert.save(tmp_path / "expert.npz")
    again = type(expert).load(tmp_path / "expert.npz")
    np.testing.assert_array_equal(again.cuts, expert.cuts)
    assert len(again) == len(again.rounds()) == len(expert) > 5
    assert 0 < again.taken.mean() < 1
    assert np.abs(again.cuts).max() <= 1


def test_cloning_raises_the_likelihood_of_the_solvers_choice(expert):
    torch.manual_seed(0)
    network = PolicyNetwork(Policy.initial(seed=0))
    before = overlap_and_auc(network.policy(), expert)[1]
    clone(network, expert, rng=np.random.default_rng(0), epochs=10)
    assert overlap_and_auc(network.policy(), expert)[1] > max(before, 0.6)


def test_agreement_of_a_perfect_and_of_a_reversed_ranking():
    taken = np.array([True, False, True, False])
    assert agreement(taken.astype(float), taken) == (1.0, 1.0)
    assert agreement(-taken.astype(float), taken) == (0.0, 0.0)
    assert agreement(np.zeros(4), taken)[1] == 0.5


def test_the_discriminator_learns_a_difference():
    torch.manual_seed(0)
    rng, judge = np.random.default_rng(0), Discriminator()
    real, made = (rng.normal(mean, 1, size=(200, 42)).astype("f4") for mean in (0.5, -0.5))
    for _ in range(40):
        accuracy = judge.update(real, made, rng=rng)
    assert accuracy > 0.9
    assert judge.reward(real).mean() > judge.reward(made).mean()


def test_imitation_follows_its_curve(auctions, expert):
    imitation = train_gail(auctions[:1], expert, episodes=4, batch=2, seed=1)
    assert (len(imitation.overlap), len(imitation.accuracy)) == (3, 2)
    assert 0 <= min(imitation.accuracy) <= max(imitation.accuracy) <= 1
    assert overlap_and_auc(imitation.policy, expert)[0] == pytest.approx(max(imitation.overlap))


def test_the_environment_passes_gymnasiums_checker():
    env = CutSelectionEnv([lotsizing(2, 6, seed=0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on bounds and shapes
        check_env(env, skip_render_check=True)
    env.close()


def test_episodes_repeat_under_the_deterministic_clock():
    with CutSelectionEnv([lotsizing(2, 6, seed=0)]) as env:
        runs = [rollout(env, Policy.initial(seed=0), np.random.default_rng(5)) for _ in range(2)]
    assert runs[0].rewards == runs[1].rewards
    assert len(runs[0].steps) > 1


def test_training_gives_the_same_file_again(tmp_path, monkeypatch):
    makers = (lambda seed: lotsizing(2, 6, seed=seed),)
    tiny = TrainingScale(
        (Stage("first", makers, instances=1, episodes=2), Stage("last", makers, instances=2, episodes=2)),
        expert_instances=2, imitation_episodes=2, time_limit=1.0, settings=PPOSettings(), batch=2,
    )  # fmt: skip
    monkeypatch.setitem(curriculum.SCALES, "tiny", tiny)
    files = [curriculum.train("tiny").policy.save(tmp_path / f"{i}.npz").read_bytes() for i in range(2)]
    assert files[0] == files[1]
    assert (
        Policy.load(tmp_path / "0.npz").made_by == "cameraready run mip_cuts train --scale tiny --episodes 2 --seed 0"
    )


def children():
    mine = os.getpid()
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[1]) == mine:
            found.append((int(stat.parent.name), after_name[0]))
    return found


def test_no_process_is_left_after_fifty_resets():
    before = children()
    env = CutSelectionEnv([lotsizing(2, 4, seed=0)])
    for seed in range(50):
        _, info = env.reset(seed=seed)
        if seed % 10 == 0 and info["phase"] != "end":
            env.step(env.action_space.sample())
    assert len(children()) == len(before) + 1
    env.close()
    assert children() == before


def test_a_crash_truncates_the_episode_and_the_next_one_runs():
    with CutSelectionEnv([lotsizing(2, 6, seed=0)]) as env:
        env.reset(seed=0)
        env._worker[0].kill()
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert (terminated, truncated) == (False, True)
        assert "exit code -9" in info["error"]
        assert env.reset(seed=0)[1]["phase"] == "opening"


def test_an_instance_that_presolving_solves_ends_at_once():
    with CutSelectionEnv([setcover(3, 6, density=0.5, seed=0)]) as env:
        _, info = env.reset(seed=0)
        while info["phase"] != "end":
            *_, info = env.step(env.action_space.sample())
        assert env.step(env.action_space.sample())[2]


def test_wrong_environments_are_refused(tmp_path):
    for wrong, message in (
        ({"instances": []}, "empty"), ({"mode": "leaf"}, "mode"), ({"clock": "sun"}, "clock"),
        ({"time_limit": 0}, "time_limit=0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            CutSelectionEnv(**({"instances": [setcover(10, 20, density=0.2)]} | wrong))
    with pytest.raises(ValueError, match="instance=5"), CutSelectionEnv([setcover(10, 20, density=0.2)]) as env:
        env.reset(options={"instance": 5})
    with pytest.raises(FileNotFoundError, match=r"none\.mps"):
        record_expert([tmp_path / "none.mps"])
    with pytest.raises(FileNotFoundError):
        CutSelectionEnv([tmp_path / "none.mps"])


def test_policies_survive_a_file_and_refuse_what_is_none(tmp_path):
    policy = Policy.initial(seed=0)
    path = policy.save(tmp_path / "p.npz")
    again = Policy.load(path)
    x, g = np.random.default_rng(0).random((7, 24)), np.zeros(16)
    np.testing.assert_array_equal(again.round(x, g).scores, policy.round(x, g).scores)
    assert path.stat().st_size < 100_000
    np.savez(tmp_path / "other.npz", version=FEATURE_VERSION + 1, made_by="", **policy.weights)
    with pytest.raises(ValueError, match=f"version {FEATURE_VERSION + 1}"):
        Policy.load(tmp_path / "other.npz")
    np.savez(tmp_path / "short.npz", version=FEATURE_VERSION, made_by="")
    with pytest.raises(ValueError, match="other layers"):
        Policy.load(tmp_path / "short.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ValueError, match="not a policy file"):
        Policy.load(tmp_path / "text.npz")
    with pytest.raises(ValueError, match=r"neither a file nor a policy of the package \(setcover\)"):
        Policy.load("nowhere")


def test_the_shipped_policy_says_how_it_was_made():
    assert (SHIPPED / "setcover.npz").stat().st_size < 100_000
    assert Policy.load("setcover").made_by == "cameraready run mip_cuts train --scale shipped --episodes 500 --seed 0"
    assert hashlib.sha256((SHIPPED / "setcover.npz").read_bytes()).hexdigest() == SHIPPED_SHA256


def test_names_that_need_a_missing_package_say_so():
    program = (
        "import sys; sys.modules['pyscipopt'] = None\n"
        "import cameraready.methods.mip_cuts as m\n"
        "assert m.Policy\n"
        "try: m.attach\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "cameraready[mip]" in done.stdout


def test_the_shell_solves_a_file_and_refuses_a_wrong_one(tmp_path):
    from typer.testing import CliRunner

    from cameraready.methods.mip_cuts.__main__ import app

    path = tmp_path / "cover.mps"
    setcover(30, 60, density=0.1, seed=0).writeProblem(str(path), verbose=False)
    done = CliRunner().invoke(app, ["solve", str(path), "--selector", "rl", "--time-limit", "20"])
    assert done.exit_code == 0, done.output
    assert "rl: optimal" in done.output
    wrong = CliRunner().invoke(app, ["solve", str(tmp_path / "none.mps")])
    assert wrong.exit_code == 2
    assert "does not exist" in wrong.output


@pytest.mark.slow
def test_the_documented_command_trains_a_policy(tmp_path):
    from typer.testing import CliRunner

    from cameraready.methods.mip_cuts.__main__ import app

    out = tmp_path / "small.npz"
    done = CliRunner().invoke(app, ["train", str(out), "--scale", "small"])
    assert done.exit_code == 0, done.output
    assert Policy.load(out).made_by == "cameraready run mip_cuts train --scale small --episodes 20 --seed 0"
