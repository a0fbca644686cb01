"""Records what PyTorch's own models compute, into models.safetensors beside this script: torchvision's ResNets and VGG,
Hugging Face's BERT.

Weights are too many to record: both sides make them from the same hash of (tensor, element), see `hashed`. Everything is
computed in f64 and stored as f32. For each model NAME:

  NAME.input_ids, attention_mask, token_type_ids   of BERT; images are 2 hashed(2000): [4, 3, 64, 64], of which VGG takes two
  NAME.targets        classes, or words (-100: not counted)
  NAME.logits         evaluation mode (running statistics, no dropout)
  NAME.train.logits   training mode with dropout 0 (batch statistics)
  NAME.train.loss     mean cross-entropy against `targets`
  NAME.train.norm     [parameters], the 2-norm of each gradient, in the order of the parameters
  NAME.train.dot      [parameters], each gradient's product with hashed(1000 + i)
  NAME.train.mean     what the first running mean is afterwards, for models with norms over batches

The metadata holds the names of each model's parameters, and under NAME.statistics of its running statistics, in order,
separated by spaces.
"""
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import transformers

from safetensors_file import save


def hashed(tensor: int, count: int) -> np.ndarray:
    """count numbers in -0.5 ... 0.5 from a 32-bit mix (as in MurmurHash3's end) of tensor and element."""
    h = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(tensor * 0x9E3779B9 & 0xFFFFFFFF)
    h ^= h >> np.uint32(15)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    return h / 2.0**32 - 0.5


def fill(model: torch.nn.Module) -> None:
    """Parameter i from hashed(i), running statistic j from hashed(500 + j): a norm's weight and variance about 1, vectors
    small, matrices and kernels so that activations keep their size."""
    statistics = [(n, b) for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))]
    for first, entries in ((0, model.named_parameters()), (500, statistics)):
        for i, (name, t) in enumerate(entries):
            u = hashed(first + i, t.numel())
            if name.endswith("running_var"):
                value = 1 + u
            elif t.dim() == 1:
                value = (1 + 0.4 * u) if name.endswith("weight") else 0.2 * u
                if name.endswith("bn3.weight"):
                    value = value / 4  # bottlenecks that add little: otherwise f32 noise grows block by block
            else:
                value = u * math.sqrt(24 * t.shape[0] / t.numel())
            t.copy_(torch.from_numpy(value.astype(np.float32).astype(np.float64).reshape(tuple(t.shape))))


def record(out: dict, metadata: dict, name: str, model: torch.nn.Module, inputs: dict, targets: torch.Tensor) -> None:
    model = model.double()
    with torch.no_grad():
        fill(model)

    def run() -> torch.Tensor:
        result = model(**inputs)
        return result if isinstance(result, torch.Tensor) else result.logits

    model.eval()
    with torch.no_grad():
        out[f"{name}.logits"] = run().float()
    model.train()
    logits = run()
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    loss.backward()
    parameters = list(model.named_parameters())
    out[f"{name}.train.logits"] = logits.detach().float()
    out[f"{name}.train.loss"] = loss.detach().float()
    out[f"{name}.train.norm"] = torch.stack([p.grad.norm() for _, p in parameters]).float()
    out[f"{name}.train.dot"] = torch.stack(
        [(p.grad.reshape(-1) * torch.from_numpy(hashed(1000 + i, p.numel()))).sum() for i, (_, p) in enumerate(parameters)]
    ).float()
    means = [b for n, b in model.named_buffers() if n.endswith("running_mean")]
    if means:
        out[f"{name}.train.mean"] = means[0].float()
    metadata[name] = " ".join(n for n, _ in parameters)
    metadata[f"{name}.statistics"] = " ".join(
        n for n, _ in model.named_buffers() if n.endswith(("running_mean", "running_var")))
    out.update({f"{name}.{key}": value for key, value in inputs.items() if key != "x"})
    out[f"{name}.targets"] = targets


def main() -> None:
    torch.manual_seed(5)
    out: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    images = torch.from_numpy((2 * hashed(2000, 4 * 3 * 64 * 64)).astype(np.float32)).double().reshape(4, 3, 64, 64)
    classes = torch.tensor([1, 7, 3, 9])
    net = torchvision.models
    record(out, metadata, "resnet18", net.resnet18(num_classes=10), {"x": images}, classes)
    record(out, metadata, "resnet50", net.resnet50(num_classes=10), {"x": images}, classes)
    record(out, metadata, "vgg11_bn", net.vgg11_bn(num_classes=10, dropout=0.0), {"x": images[:2]}, classes[:2])

    ids = torch.randint(1, 32, (3, 12))  # not 0: there Hugging Face's embedding takes no gradient, as padding
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 9:] = False
    mask[2, 5:] = False
    types = torch.randint(0, 2, (3, 12))
    config = transformers.BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=64, max_position_embeddings=16, type_vocab_size=2, num_labels=5,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    bert = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    words = torch.randint(0, 32, (3, 12))
    words[~mask] = -100
    record(out, metadata, "bert_mlm", transformers.BertForMaskedLM(config), bert, words)
    record(out, metadata, "bert_classifier", transformers.BertForSequenceClassification(config), bert, classes[:3] % 5)
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.safetensors"), out, metadata)


if __name__ == "__main__":
    main()
