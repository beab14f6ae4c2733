"""Two processes over gloo: replicated (DDP) and sharded (FSDP) parameters."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from cameraready.methods.pdt import PredictiveDifferential

kind, mode, out = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(32, 6, dtype=torch.float64)
y = torch.sin(x @ torch.randn(6, 2, dtype=torch.float64))
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()
if kind == "ddp":
    net = nn.parallel.DistributedDataParallel(net)
elif kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    net = fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
optimizer = PredictiveDifferential(
    torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5), snapshot_every=4, mode=mode, guard_steps=2
)
horizons = []
for step in range(60):
    batch = torch.randperm(32, generator=torch.Generator().manual_seed(step))[:16]
    mine = batch[8 * rank : 8 * rank + 8] if kind == "ddp" else batch
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x[mine]), y[mine])
    loss.backward()
    # under DDP every rank sees a loss of its own
    optimizer.observe(loss)
    optimizer.step()
    horizons.append((optimizer.horizon, optimizer.interval))
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
report = optimizer.last_report
torch.save(
    {"weights": torch.cat([w.detach().reshape(-1) for w in whole]), "horizons": horizons, "jumps": report.n_jumps},
    f"{out}/{kind}{rank}.pt",
)
dist.destroy_process_group()
"""


def run(folder: Path, kind: str, mode: str, world: int) -> list[dict]:
    script = folder / "worker.py"
    script.write_text(WORKER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), kind, mode, str(folder)],
            env={
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RANK": str(r),
                "WORLD_SIZE": str(world),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{kind}{r}.pt") for r in range(world)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paper", "differential"])
def test_both_ranks_of_a_ddp_run_hold_the_same_weights(tmp_path, mode):
    first, second = run(tmp_path, "ddp", mode, 2)
    assert first["jumps"] >= 3
    assert torch.equal(first["weights"], second["weights"])
    assert first["horizons"] == second["horizons"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paper", "differential"])
def test_sharded_parameters_jump_as_whole_ones(tmp_path, mode):
    first, second = run(tmp_path, "fsdp", mode, 2)
    whole = run(tmp_path, "plain", mode, 1)[0]
    assert first["jumps"] == second["jumps"] == whole["jumps"] >= 3
    assert torch.allclose(first["weights"], whole["weights"], rtol=1e-6, atol=1e-9)
