"""Four processes over gloo give what one process gives."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import fed_dpo_worker
from fed_dpo_clients import log_linear_clients

from cameraready.methods.fed_dpo import FederatedDPO, LogLinearPolicy


@pytest.mark.slow
def test_four_processes_equal_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, fed_dpo_worker.__file__, str(tmp_path)],
            env={**common, "RANK": str(r)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(4)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    for kind in ("fedavg", "scaffold", "dsgd", "tracking"):
        alone = fed_dpo_worker.run(kind, log_linear_clients(4), engine="inprocess")
        table = alone.fit().table
        for rank in range(4):
            there = torch.load(tmp_path / f"{kind}{rank}.pt")
            wanted = fed_dpo_worker.weights(alone)
            wanted = wanted[[rank]] if wanted.ndim == 2 else wanted
            assert torch.allclose(there["weights"], wanted, rtol=0, atol=1e-6), kind
            for name in ("loss", "drift", "zeta2"):
                assert there[name] == pytest.approx(table[name].tolist(), abs=1e-6), (kind, name)


def test_processes_are_asked_for_before_they_are_used():
    with pytest.raises(ValueError, match="init_process_group"):
        FederatedDPO(LogLinearPolicy(3), log_linear_clients(2), local_steps=1, lr=0.1, rounds=1, engine="torch")
    with pytest.raises(ValueError, match="engine='mpi'"):
        FederatedDPO(LogLinearPolicy(3), log_linear_clients(2), local_steps=1, lr=0.1, rounds=1, engine="mpi")
