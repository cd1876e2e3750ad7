# %% [markdown]
# # A MIST layer in PyTorch Lightning
#
# The layers are ordinary torch modules: a LightningModule uses one like `nn.LSTM`. In this task, the model must remember a
# faint cue in the first ten of many noisy steps to the end.
#
#     pip install lightning
#     python examples/lightning_mist.py                  # under a minute on 2 CPU cores
#     python examples/lightning_mist.py --layer lstm     # an LSTM with as many parameters

# %%
import argparse

import lightning
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mistrnn import match_parameters
from mistrnn.layers import LAYERS

parser = argparse.ArgumentParser(description="A MIST layer in PyTorch Lightning")
parser.add_argument("--layer", choices=list(LAYERS), default="mist")
parser.add_argument("--parameters", type=int, default=10_000, help="upper bound, readout included")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--log-dir", default=None, help="a folder for TensorBoard")
options = parser.parse_args()
lightning.seed_everything(0)

# %%
CUE = 10  # steps


def cases(count):
    classes = torch.arange(count) % 2
    x = torch.randn(count, options.steps, 1) / 2
    x[:, :CUE] += torch.where(classes == 1, 1.0, -1.0)[:, None, None]
    return TensorDataset(x, classes)


class Rememberer(lightning.LightningModule):
    def __init__(self, layer, parameters, learning_rate=5e-3):
        super().__init__()
        self.save_hyperparameters()
        units = match_parameters(layer, parameters, input_size=1, output_size=2)
        self.layer = LAYERS[layer](1, units, batch_first=True)
        self.readout = nn.Linear(units, 2)

    def forward(self, x):
        output, _ = self.layer(x)
        return self.readout(output[:, -1])

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_epoch=True, on_step=False, prog_bar=True)
        return loss

    def validation_step(self, batch):
        x, y = batch
        self.log("accuracy", (self(x).argmax(-1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.learning_rate)


# %%
model = Rememberer(options.layer, options.parameters)
trainer = lightning.Trainer(
    max_epochs=options.epochs,
    gradient_clip_val=1.0,
    accelerator="auto",
    devices=1,
    logger=lightning.pytorch.loggers.TensorBoardLogger(options.log_dir) if options.log_dir else False,
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(cases(600), batch_size=32, shuffle=True), DataLoader(cases(400), batch_size=200))
accuracy = float(trainer.callback_metrics["accuracy"])
print(f"{model.layer}: {accuracy:.1%} of unseen cases right after {options.epochs} epochs")
