"""What each observation and action of an environment is called, so that unlike bodies can share weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cameraready.methods.mes_ret.gym_task import make

if TYPE_CHECKING:
    import mujoco

# Classic control has no model that names anything.
CLASSIC = {
    "CartPole-v1": (
        ["root/x/pos", "root/x/vel", "hinge/pos", "hinge/vel"],
        ["root/x/force-", "root/x/force+"],
    ),
    "Pendulum-v1": (["hinge/cos", "hinge/sin", "hinge/vel"], ["hinge/force"]),
    "Acrobot-v1": (
        ["hinge/cos", "hinge/sin", "hinge2/cos", "hinge2/sin", "hinge/vel", "hinge2/vel"],
        ["hinge2/force-", "hinge2/force0", "hinge2/force+"],
    ),
}
AXES = {2: ("x", "y", "z"), 3: ("roll", "pitch", "yaw")}  # mjJNT_SLIDE, mjJNT_HINGE
FREE = ("x", "y", "z", "qw", "qx", "qy", "qz"), ("x", "y", "z", "roll", "pitch", "yaw")


def labels_for(env_id: str) -> tuple[list[str | None], list[str | None]]:
    """Labels of the observations and of the actions.

    For MuJoCo environments (Hopper, Walker2d, HalfCheetah, Ant, Swimmer, InvertedPendulum, InvertedDoublePendulum,
    Reacher and others whose observations are positions and velocities) they come from the joints, bodies and actuators
    of the model. A joint of the trunk is called by what it moves ("root/x", "root/pitch"), a joint of a side
    "thigh.left". Observations that are none of these get None, which is shared with no other body.

    Raises
    ------
    ValueError : an environment that is neither MuJoCo nor classic control.
    ImportError : gymnasium or mujoco is missing.

    Examples
    --------
    >>> labels_for("InvertedPendulum-v5")
    (['root/x/pos', 'hinge/pos', 'root/x/vel', 'hinge/vel'], ['root/x/force'])
    """
    if env_id in CLASSIC:
        obs, act = CLASSIC[env_id]
        return list(obs), list(act)
    env = make(env_id)
    try:
        model = getattr(env.unwrapped, "model", None)
        if model is None:
            raise ValueError(f"{env_id} has no MuJoCo model to read labels from; write them: PolicySpace(obs, act)")
        obs = _observations(env, model)
        act = [f"{_joint(model, int(model.actuator_trnid[i, 0]))}/force" for i in range(model.nu)]
        size = env.observation_space.shape[0]
        if len(obs) > size:
            raise ValueError(f"{env_id} has {size} observations, its model names {len(obs)}; write labels by hand")
        return obs + [None] * (size - len(obs)), act
    finally:
        env.close()


def _observations(env: Any, model: mujoco.MjModel) -> list[str | None]:
    positions, velocities = _coordinates(model)
    name = env.spec.name
    if name == "InvertedDoublePendulum":  # cart, sin and cos of both angles, velocities, constraint force
        cart, *angles = [each.removesuffix("/pos") for each in positions]
        turned = [f"{angle}/{part}" for part in ("sin", "cos") for angle in angles]
        return [f"{cart}/pos", *turned, *velocities, f"{cart}/constraint"]
    if name == "Reacher":  # cos and sin of the arm's angles, target, the arm's velocities, fingertip to target
        arm = [each.removesuffix("/pos") for each in positions[:2]]
        turned = [f"{angle}/{part}" for part in ("cos", "sin") for angle in arm]
        return [*turned, *positions[2:], *velocities[:2], "fingertip/x/distance", "fingertip/y/distance"]
    parts = getattr(env.unwrapped, "observation_structure", {})
    labels = positions[parts.get("skipped_qpos", 0) :][: parts.get("qpos", 0)] + velocities[: parts.get("qvel", 0)]
    if parts.get("cfrc_ext") and len(parts) == 4:  # contact forces on every body but the world come right after
        bodies = [model.body(b).name or str(b) for b in range(1, model.nbody)]
        labels += [f"body/{body}/contact{k}" for body in bodies for k in range(6)]
    return labels


def _coordinates(model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """Names of all qpos and qvel."""
    positions, velocities = [], []
    for j in range(model.njnt):
        joint = _joint(model, j)
        if model.jnt_type[j] == 0:  # mjJNT_FREE
            positions += [f"root/{axis}/pos" for axis in FREE[0]]
            velocities += [f"root/{axis}/vel" for axis in FREE[1]]
        else:
            positions.append(f"{joint}/pos")
            velocities.append(f"{joint}/vel")
    return positions, velocities


def _joint(model: mujoco.MjModel, j: int) -> str:
    kind, body = int(model.jnt_type[j]), int(model.jnt_bodyid[j])
    trunk = model.body_parentid[body] == 0
    if trunk and kind in AXES:
        axis = AXES[kind][int(abs(model.jnt_axis[j]).argmax())]
        owner = model.body(body).name
        return f"{owner if owner == 'target' else 'root'}/{axis}"
    words = [word for word in model.joint(j).name.split("_") if word not in ("joint", "rot")]
    side = [word for word in words if word in ("left", "right")]
    return ".".join(["_".join(word for word in words if word not in side), *side])
