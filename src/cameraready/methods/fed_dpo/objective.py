"""The clients' DPO losses as functions of one flat vector: the trainable parameters of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cameraready.methods.fed_dpo.loss import Kind, check_loss, pair_losses, sequence_logps
from cameraready.methods.fed_dpo.preferences import LogLinearPairs, LogLinearPolicy, PreferenceClient, TokenPairs

Trainable = str | Callable[[str, nn.Parameter], bool]


@dataclass(frozen=True)
class Losses:
    """Of m clients at m points: mean loss (m,), gradient (m, d), and means over pairs, each (m,).

    ``chosen`` and ``rejected`` are log pi - log pi_ref of the answers; not a number for log-linear policies, which know
    only their difference, the margin.
    """

    loss: Tensor
    gradient: Tensor
    accuracy: Tensor
    margin: Tensor
    chosen: Tensor
    rejected: Tensor


class Objective:
    """The losses f_i(theta) of some clients; the reference policy is the model as it is now, and stays so.

    Reference log-probabilities are computed here, once, and never exchanged. The model runs in evaluation mode: no
    dropout, and batch-norm statistics do not move.

    Parameters
    ----------
    model : `LogLinearPolicy`, or a causal language model; theta is written into it.
    clients : all with pairs of one kind.
    trainable : "all", "lora" (peft; a model that has adapters keeps them), or a function of (name, parameter) that says
        which parameters are trained. Tied parameters count once.
    kind, label_smoothing : of `dpo_loss`.
    length_normalized : average log-probabilities over a completion's tokens.
    ridge : adds ridge / 2 ||theta - theta_ref||^2 to every client's loss; bounds theta where pairs are separable.
    micro_batch : pairs a forward pass, for language models.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[PreferenceClient],
        *,
        trainable: Trainable = "all",
        kind: Kind = "sigmoid",
        label_smoothing: float = 0.0,
        length_normalized: bool = False,
        ridge: float = 0.0,
        micro_batch: int = 32,
    ) -> None:
        clients = list(clients)
        if not clients:
            raise ValueError("no clients; give at least one PreferenceClient")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}; a torch.nn.Module is needed")
        for client in clients:
            if not isinstance(client, PreferenceClient):
                raise TypeError(f"clients has a {type(client).__name__}; make each a PreferenceClient")
        if not 0 <= ridge < torch.inf or micro_batch < 1:
            raise ValueError(f"ridge={ridge} must be at least 0 and finite, micro_batch={micro_batch} at least 1")
        check_loss(min(client.beta for client in clients), label_smoothing=label_smoothing, kind=kind)
        self.clients, self.kind, self.label_smoothing, self.ridge = clients, kind, label_smoothing, ridge
        self.length_normalized, self.micro_batch = length_normalized, micro_batch
        if trainable == "lora" and isinstance(model, LogLinearPolicy):
            raise ValueError("trainable='lora' is for language models; leave a log-linear policy at 'all'")
        self.model = _with_lora(model) if trainable == "lora" else model
        self.model.eval()
        self._choose(trainable)
        self.theta_ref = self.read()
        if not bool(torch.isfinite(self.theta_ref).all()):
            raise ValueError("the model has parameters that are not finite; load or initialise it first")
        self.sizes = [len(client.data) for client in clients]
        self.log_linear = isinstance(self.model, LogLinearPolicy)
        form = LogLinearPairs if self.log_linear else TokenPairs
        for i, client in enumerate(clients):
            if not isinstance(client.data, form):
                raise TypeError(
                    f"client {i} has {type(client.data).__name__}; {type(model).__name__} needs {form.__name__}"
                )
        self.beta = torch.tensor([client.beta for client in clients], dtype=torch.float64).to(self.theta_ref)
        if self.log_linear:
            self._stack()
        else:
            with torch.no_grad():
                self._reference = [self._logps(i, torch.arange(n)) for i, n in enumerate(self.sizes)]

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def dimension(self) -> int:
        return len(self.theta_ref)

    def read(self) -> Tensor:
        """The trainable parameters, flat."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters.values()])

    def write(self, theta: Tensor) -> None:
        """Put a flat vector into the model."""
        parts = theta.split([p.numel() for p in self.parameters.values()])
        with torch.no_grad():
            for p, part in zip(self.parameters.values(), parts, strict=True):
                p.copy_(part.view_as(p))

    def losses(
        self,
        thetas: Tensor,
        *,
        which: Sequence[int] | None = None,
        rows: Tensor | None = None,
        share: Tensor | None = None,
        gradient: bool = True,
    ) -> Losses:
        """Client ``which[j]``'s loss and gradient at ``thetas[j]``.

        Parameters
        ----------
        thetas : shape (m, d), or (d,) for one point that all share.
        which : m clients; None for all.
        rows, share : shape (m, batch): the pairs to use and their weights, which sum to 1 (0 fills short batches);
            None for all pairs.
        """
        which = range(len(self)) if which is None else which
        if thetas.shape[-1] != self.dimension:
            raise ValueError(f"theta has {thetas.shape[-1]} entries, the model has {self.dimension} trainable ones")
        thetas = thetas.expand(len(which), -1)
        if self.log_linear:
            return self._log_linear_losses(thetas, which, rows, share, gradient_only=False)
        found = [
            self._token_losses(thetas[j], i, None if rows is None else rows[j][share[j] > 0], gradient)
            for j, i in enumerate(which)
        ]
        return Losses(*(torch.stack(column) for column in zip(*found, strict=True)))

    def gradients(
        self,
        thetas: Tensor,
        *,
        which: Sequence[int] | None = None,
        rows: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Tensor:
        """The gradients (m, d) of `losses`, without what training does not need."""
        if not self.log_linear:
            return self.losses(thetas, which=which, rows=rows, share=share).gradient
        which = range(len(self)) if which is None else which
        thetas = thetas.expand(len(which), -1)
        return self._log_linear_losses(thetas, which, rows, share, gradient_only=True)

    def evaluate(self, theta: Tensor) -> Any:
        """A DataFrame of each client's loss, accuracy (margin above 0) and log-ratios on all its pairs."""
        import pandas as pd

        found = self.losses(theta, gradient=False)
        names = ("loss", "accuracy", "margin", "chosen", "rejected")
        return pd.DataFrame({"pairs": self.sizes, **{name: getattr(found, name).cpu().numpy() for name in names}})

    def _choose(self, trainable: Trainable) -> None:
        if not (callable(trainable) or trainable in ("all", "lora")):
            raise ValueError(f"trainable={trainable!r}; choose 'all', 'lora' or a function of (name, parameter)")
        named = dict(self.model.named_parameters())
        if callable(trainable):
            for name, p in named.items():
                p.requires_grad_(bool(trainable(name, p)))
        elif trainable == "all":
            self.model.requires_grad_(True)
        self.parameters = {name: p for name, p in named.items() if p.requires_grad}
        if not self.parameters:
            raise ValueError("no parameter is trainable; check `trainable`")

    def _stack(self) -> None:
        """All clients' D in one array (m, largest, d), filled up with zero rows."""
        different = {client.data.D.shape[1] for client in self.clients} - {self.dimension}
        if different:
            raise ValueError(f"clients have {sorted(different)} features, the policy has {self.dimension}")
        self.D = torch.nn.utils.rnn.pad_sequence([client.data.D for client in self.clients], batch_first=True)
        self.D = self.D.to(self.theta_ref)
        self._by_feature = self.D.transpose(1, 2).contiguous()  # a product with theta is five times faster so
        sizes = torch.tensor(self.sizes, dtype=torch.float64)[:, None]
        self.share = ((torch.arange(self.D.shape[1]) < sizes) / sizes).to(self.D)

    def derivative(self, margin: Tensor, *, order: int, which: Sequence[int] | slice = slice(None)) -> Tensor:
        """First to third derivative of a pair's loss by its margin h, shape (m, pairs)."""
        beta = self.beta[which, None]
        if self.kind == "ipo":
            return (2 * (margin - 1 / (2 * beta)), torch.full_like(margin, 2.0), torch.zeros_like(margin))[order - 1]
        s = torch.sigmoid(beta * margin)
        if order == 1:
            return beta * (s - (1 - self.label_smoothing))
        return beta**2 * s * (1 - s) if order == 2 else beta**3 * s * (1 - s) * (1 - 2 * s)

    def _log_linear_losses(
        self, thetas: Tensor, which: Sequence[int], rows: Tensor | None, share: Tensor | None, *, gradient_only: bool
    ) -> Losses | Tensor:
        # grad f_i = E[l'(h) D]; with beta the sigmoid loss's is -beta E[s(-beta h) D]
        at = torch.as_tensor(list(which))
        if rows is not None and share is not None:
            D, share = self.D[at[:, None], rows], share.to(self.D)
            by_feature = D.transpose(1, 2)
        elif list(which) == list(range(len(self))):
            D, by_feature, share = self.D, self._by_feature, self.share
        else:
            D, by_feature, share = self.D[at], self._by_feature[at], self.share[at]
        shift = thetas - self.theta_ref
        margin = (shift[:, None] @ by_feature)[:, 0]
        slopes = self.derivative(margin, order=1, which=at)
        gradient = ((share * slopes)[:, None] @ D)[:, 0] + self.ridge * shift
        if gradient_only:
            return gradient
        beta = self.beta[at, None]
        losses = pair_losses(margin, beta=beta, label_smoothing=self.label_smoothing, kind=self.kind)
        unknown = torch.full_like(thetas[:, 0], torch.nan)
        return Losses(
            (share * losses).sum(dim=1) + self.ridge / 2 * (shift**2).sum(dim=1),
            gradient,
            (share * (margin > 0)).sum(dim=1),
            (share * margin).sum(dim=1),
            unknown,
            unknown,
        )

    def _logps(self, client: int, rows: Tensor) -> Tensor:
        """(2, rows): log-probabilities of chosen and rejected, under the model as it is."""
        data = self.clients[client].data
        device = self.theta_ref.device
        found = []
        for part in rows.split(self.micro_batch):
            length = int(data.mask[:, part].sum(dim=-1).max())  # no padding that these rows do not need
            ids, mask, completion = (
                x[:, part, :length].flatten(0, 1).to(device) for x in (data.input_ids, data.mask, data.completion)
            )
            logps = sequence_logps(self.model, ids, mask, completion, length_normalized=self.length_normalized)
            found.append(logps.unflatten(0, (2, -1)))
        return torch.cat(found, dim=1)

    def _token_losses(self, theta: Tensor, client: int, rows: Tensor | None, gradient: bool) -> tuple[Tensor, ...]:
        self.write(theta)
        rows = torch.arange(self.sizes[client]) if rows is None else rows
        shift = theta - self.theta_ref
        total = self.ridge / 2 * (shift**2).sum()
        slope = self.ridge * shift
        ratios = []
        for part in rows.split(self.micro_batch):
            with torch.set_grad_enabled(gradient):
                ratio = self._logps(client, part) - self._reference[client][:, part]
                loss = pair_losses(
                    ratio[0] - ratio[1],
                    beta=self.clients[client].beta,
                    label_smoothing=self.label_smoothing,
                    kind=self.kind,
                ).sum() / len(rows)
            if gradient:
                parts = torch.autograd.grad(loss, list(self.parameters.values()))
                slope = slope + torch.cat([g.reshape(-1) for g in parts])
            total = total + loss.detach()
            ratios.append(ratio.detach())
        chosen, rejected = torch.cat(ratios, dim=1)
        margin = chosen - rejected
        return total, slope, (margin > 0).to(margin).mean(), margin.mean(), chosen.mean(), rejected.mean()


def _with_lora(model: nn.Module) -> nn.Module:
    try:
        import peft
    except ImportError as error:
        raise ImportError("trainable='lora' needs peft: pip install 'cameraready[llm]'") from error
    return model if isinstance(model, peft.PeftModel) else peft.get_peft_model(model, peft.LoraConfig())
