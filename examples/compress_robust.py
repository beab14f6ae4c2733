"""Before a digit classifier is pruned and shipped: what does it cost when inputs may be manipulated?"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cameraready.methods.compress_robust import audit, low_rank, prune_rows

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels))
x, y = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
test = DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=256)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(400):
    rows = torch.randint(1400, (64,))
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimiser.step()
model.eval()

for name, candidate in {
    "as trained": model,
    "40 % of the neurons": prune_rows(model, keep=0.4),
    "rank 12": low_rank(model, rank=12),
}.items():
    report = audit(candidate, test, eps={"inf": [0.05]}, limit=250)
    row, parts = report.robustness.iloc[0], report.parts.iloc[0]
    print(f"{name:20} clean {row.clean:.3f}, attacked {row.adv:.3f}, relative {row.relative:.3f};", end=" ")
    print(f"log10 energy {parts.energy:.2f}, concentration {parts.concentration:.2f}, spread {parts.spread:.2f}")
print(f"\nthe last one as a page: report.to_html('rank12.html'), {len(report.to_html()):,} characters")
