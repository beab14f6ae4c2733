"""The callbacks for Lightning and transformers."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cameraready.methods.pdt import PredictiveDifferential
from pdt_regression import X, Y, network, weights


def loop(net, optimizer, epochs, scheduler=None):
    for _ in range(epochs):
        for start in range(0, 32, 8):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(X[start : start + 8]), Y[start : start + 8])
            loss.backward()
            optimizer.observe(loss)
            optimizer.step()
        if scheduler is not None:
            scheduler.step()


@pytest.fixture
def lightning():
    return pytest.importorskip("lightning.pytorch")


def lightning_fit(lightning, folder, epochs, *, resume=None, **settings):
    from cameraready.methods.pdt import PDTCallback

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)]

    callback = PDTCallback(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers and logging
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        )
        module = Regression()
        trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=8), ckpt_path=resume)
        trainer.save_checkpoint(folder / "last.ckpt")
    return weights(module.net), callback.optimizers[0]


def test_lightning_trains_as_the_plain_loop_does(lightning, tmp_path):
    found, optimizer = lightning_fit(lightning, tmp_path, 9)
    net = network()
    expected = PredictiveDifferential(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5), snapshot_every=4)
    loop(net, expected, 9, torch.optim.lr_scheduler.ExponentialLR(expected, 0.97))
    assert expected.last_report.n_jumps >= 2
    assert torch.equal(found, weights(net))
    assert optimizer.horizon == expected.horizon


def test_lightning_resumes_with_its_snapshots(lightning, tmp_path):
    whole, _ = lightning_fit(lightning, tmp_path, 9)
    lightning_fit(lightning, tmp_path, 6)
    resumed, optimizer = lightning_fit(lightning, tmp_path, 9, resume=tmp_path / "last.ckpt")
    assert optimizer.last_report.epoch == 9
    assert torch.equal(whole, resumed)


class Model(nn.Module):
    """Returns its loss, as transformers' models do."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels=None):
        outputs = self.net(x)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


class Accelerated(torch.optim.Optimizer):
    """As accelerate wraps optimizers: forwards, and remembers the step it was made with."""

    def __init__(self, optimizer, device_placement=True, scaler=None):
        self.optimizer, self.scaler, self._step = optimizer, scaler, optimizer.step

    def step(self, closure=None):
        self._step()


def test_the_transformers_callback_wraps_observes_and_unwraps():
    pytest.importorskip("transformers")
    from cameraready.methods.pdt import PDTTrainerCallback

    model = Model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    holder, callback = Accelerated(inner), PDTTrainerCallback()
    state = SimpleNamespace(max_steps=36, num_train_epochs=9, global_step=0)
    callback.on_train_begin(None, state, None, model=model, optimizer=holder)
    for _ in range(9):
        for start in range(0, 32, 8):
            inner.zero_grad()
            model(X[start : start + 8], Y[start : start + 8])["loss"].backward()
            holder.step()
    net = network()
    expected = PredictiveDifferential(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5), snapshot_every=4)
    loop(net, expected, 9)
    assert callback.optimizer.last_report.n_jumps == expected.last_report.n_jumps >= 2
    assert torch.equal(weights(model.net), weights(net))
    callback.on_train_end(None, state, None)
    assert holder.optimizer is inner
    assert not model._forward_hooks


def test_a_transformers_run_resumes_with_its_snapshots(tmp_path):
    pytest.importorskip("transformers")
    from cameraready.methods.pdt import PDTTrainerCallback

    net = network()
    wrapped = PredictiveDifferential(torch.optim.SGD(net.parameters(), lr=0.1), snapshot_every=4)
    loop(net, wrapped, 6)
    (tmp_path / "checkpoint-24").mkdir()
    torch.save(wrapped.state_dict(), tmp_path / "checkpoint-24" / "optimizer.pt")
    model = Model()
    model.net.load_state_dict(net.state_dict())
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    inner.load_state_dict(copy.deepcopy(wrapped.state_dict()))  # what the trainer does itself
    callback = PDTTrainerCallback()
    state = SimpleNamespace(max_steps=36, num_train_epochs=9, global_step=24)
    arguments = SimpleNamespace(resume_from_checkpoint=None, output_dir=str(tmp_path))
    callback.on_train_begin(arguments, state, None, model=model, optimizer=Accelerated(inner))
    assert callback.optimizer.predictor.counters == wrapped.predictor.counters
    loop(net, wrapped, 3)
    loop(model.net, callback.optimizer, 3)
    assert torch.equal(weights(model.net), weights(net))


def test_an_optimizer_that_cannot_be_wrapped_is_refused_with_the_way_out():
    pytest.importorskip("transformers")
    from cameraready.methods.pdt import PDTTrainerCallback

    model, state = Model(), SimpleNamespace(max_steps=36, num_train_epochs=9, global_step=0)
    with pytest.raises(TypeError, match=r"optimizers=\(PredictiveDifferential"):
        PDTTrainerCallback().on_train_begin(
            None, state, None, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        )


@pytest.mark.slow
def test_the_trainer_of_transformers_trains_and_resumes(tmp_path):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from cameraready.methods.pdt import PDTTrainerCallback

    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]

    def fit(epochs, resume=None):
        torch.manual_seed(0)
        callback = PDTTrainerCallback()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=epochs,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            save_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        model = Model()
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback])
        trainer.train(resume_from_checkpoint=resume)
        return weights(model.net), callback.optimizer

    whole, optimizer = fit(9)
    assert optimizer.settings.snapshot_every == 4
    assert optimizer.last_report.n_jumps >= 2
    resumed, again = fit(9, resume=str(tmp_path / "checkpoint-24"))
    assert again.last_report.n_jumps == optimizer.last_report.n_jumps
    assert torch.allclose(whole, resumed, atol=1e-6)
