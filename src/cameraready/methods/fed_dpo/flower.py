"""Federated DPO in Flower: a ClientApp, and a ServerApp whose strategy is this package's server.

Flower is imported when an app is made: it needs its own environment (see the card), as it pins older releases.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from cameraready.methods.fed_dpo.local_training import Report

if TYPE_CHECKING:
    from cameraready.methods.fed_dpo.federated import FederatedDPO

THETA, CONTROL = "theta", "control"
ASK = "query"


def flower_app(run: FederatedDPO, *, strategy: Any = None) -> tuple[Any, Any]:
    """(ClientApp, ServerApp) that carry out ``run`` on Flower's simulation engine.

    Client i is the SuperNode of partition i, so the simulation has as many SuperNodes as ``run`` has clients. A reply
    has the client's parameters and its weight as "num-examples": Flower's own strategies understand it, too.

    Parameters
    ----------
    run : whose remaining rounds are to be run; its ``theta`` and history are filled by the default strategy.
    strategy : another Flower strategy, for instance ``flwr.serverapp.strategy.FedAvg()``; the last arrays that it made
        become ``run.theta``.

    Raises
    ------
    ImportError : Flower is not installed.
    """
    flwr = _flower()
    worker = run.worker
    weights, encode = run.weights, run.server.average.encode
    client = importlib.import_module("flwr.clientapp").ClientApp()
    server = importlib.import_module("flwr.serverapp").ServerApp()

    @client.query()
    def number(message: Any, context: Any) -> Any:
        metrics = flwr.MetricRecord({"client": int(context.node_config["partition-id"])})
        return flwr.Message(content=flwr.RecordDict({"metrics": metrics}), reply_to=message)

    @client.train()
    def train(message: Any, context: Any) -> Any:
        i = int(context.node_config["partition-id"])
        arrays = message.content["arrays"].to_torch_state_dict()
        theta, control = arrays[THETA], arrays.get(CONTROL)
        if control is not None and CONTROL in context.state:
            worker.controls[i] = context.state[CONTROL].to_torch_state_dict()[CONTROL]
        # Flower counts rounds from 1
        number = int(message.content["config"]["server-round"]) - 1 + int(message.content["config"].get("first", 0))
        report = worker.train(theta, round=number, chosen=[i], control=control, encode=encode)
        back = {THETA: theta + report.total[: len(theta)] / weights[i]}
        if control is not None:
            context.state[CONTROL] = flwr.ArrayRecord({CONTROL: worker.controls[i].clone()})
            back[CONTROL] = report.control
        metrics = flwr.MetricRecord({"num-examples": report.weight, "client": i, "moved2": report.moved2})
        content = flwr.RecordDict({"arrays": flwr.ArrayRecord(back), "metrics": metrics})
        return flwr.Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        first = {THETA: run.theta.clone()} | ({} if run.server.control is None else {CONTROL: run.server.control})
        result = (strategy or _strategy(run)).start(
            grid=grid,
            initial_arrays=flwr.ArrayRecord(first),
            train_config=flwr.ConfigRecord({"first": run.round}),
            num_rounds=run.rounds - run.round,
        )
        if strategy is not None:
            run.server.parameter.data.copy_(result.arrays.to_torch_state_dict()[THETA])

    return client, server


def simulate(run: FederatedDPO, *, strategy: Any = None) -> None:
    """Run `flower_app` on Flower's simulation engine, one CPU a client at a time, in this machine."""
    simulation = importlib.import_module("flwr.simulation") if _flower() else None
    client, server = flower_app(run, strategy=strategy)
    resources = {"num_cpus": 1, "num_gpus": 1.0 if torch.cuda.is_available() else 0.0}
    simulation.run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=len(run.weights),
        backend_config={"client_resources": resources},
    )


def _strategy(run: FederatedDPO) -> Any:
    flwr = _flower()
    fedavg = importlib.import_module("flwr.serverapp.strategy").FedAvg

    class FedDPO(fedavg):  # type: ignore[misc, valid-type]
        """`Server` as a Flower strategy: its sampling, weights, exclusions, control variates and optimizer."""

        def __init__(self) -> None:
            super().__init__(fraction_evaluate=1.0)
            self.nodes: dict[int, int] = {}

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
            self.start_time = time.perf_counter()
            if len(self.nodes) < len(run.weights):
                self.nodes = _numbers(grid)
            self.chosen, self.away = run.server.choose(run.round)
            config["server-round"] = server_round
            record = flwr.RecordDict({"arrays": arrays, "config": config})
            present = [i for i in self.chosen if i in self.nodes]
            return self._construct_messages(record, [self.nodes[i] for i in present], flwr.MessageType.TRAIN)

        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
            theta, encode = run.theta, run.server.average.encode
            code = encode(theta)
            report = Report.empty(code, theta, run.worker.recipe)
            seen = set()
            # in the order of clients, so that sums do not depend on who was first
            answers = [reply.content for reply in replies if not reply.has_error()]
            for answer in sorted(answers, key=lambda content: content["metrics"]["client"]):
                metrics, arrays = answer["metrics"], answer["arrays"].to_torch_state_dict()
                seen.add(int(metrics["client"]))
                p = float(metrics["num-examples"])
                if p == 0 or not bool(torch.isfinite(arrays[THETA]).all()):
                    report.excluded.append(int(metrics["client"]))
                    continue
                report.weight += p
                report.moved2 += float(metrics["moved2"])
                report.total += p * (encode(arrays[THETA]) - code)
                if CONTROL in arrays:
                    report.control += arrays[CONTROL]
            dropped = [i for i in self.chosen if i not in seen]
            run.finish_round(report, chosen=self.chosen, away=[*self.away, *dropped], start=self.start_time)
            new = {THETA: run.theta.clone()} | ({} if run.server.control is None else {CONTROL: run.server.control})
            return flwr.ArrayRecord(new), None

        def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
            return []

    def _numbers(grid: Any) -> dict[int, int]:
        """Client number to Flower's node id, asked once of every node."""
        deadline = time.perf_counter() + 60
        while len(nodes := list(grid.get_node_ids())) < len(run.weights) and time.perf_counter() < deadline:
            time.sleep(0.1)
        empty = flwr.RecordDict()
        asked = [flwr.Message(content=empty, message_type=ASK, dst_node_id=node) for node in nodes]
        answers = [answer for answer in grid.send_and_receive(asked) if not answer.has_error()]
        return {int(answer.content["metrics"]["client"]): answer.metadata.src_node_id for answer in answers}

    return FedDPO()


def _flower() -> Any:
    try:
        return importlib.import_module("flwr.app")
    except ImportError as error:
        raise ImportError("engine='flower' needs Flower: pip install 'cameraready[flower]'") from error
