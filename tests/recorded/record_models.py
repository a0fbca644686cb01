"""Records what PyTorch's own models compute, into models.safetensors beside this script: torchvision's ResNets, VGG
and ViT, Hugging Face's BERT, PyTorch's Transformer.

Weights are too many to record: both sides make them from the same hash of (tensor, element), see `hashed`. Everything is
computed in f64 and stored as f32. For each model NAME:

  NAME.input_ids, attention_mask, token_type_ids   of BERT; images are 2 hashed(2000): [4, 3, 64, 64], 2027 for ResNet-18, VGG takes two, and
                      [4, 3, 16, 16] for ViT
  NAME.src_keys, memory_keys, src_mask   of the Transformer: true where one may look, the other way round than in PyTorch; src is
                      2 hashed(2000): [3, 5, 16], tgt 2 hashed(2001): [3, 4, 16]
  NAME.targets        classes, or words (-100: not counted)
  NAME.logits         evaluation mode (running statistics, no dropout)
  NAME.train.logits   training mode with dropout 0 (batch statistics)
  NAME.train.loss     mean cross-entropy against `targets`
  NAME.train.norm     [parameters], the 2-norm of each gradient, in the order of the parameters
  NAME.train.dot      [parameters], each gradient's product with hashed(1000 + i)
  NAME.train.mean     what the first running mean is afterwards, for models with norms over batches
  NAME.adamw.loss     [10], the loss before each of ten steps of AdamW on the same batch, for the small models
  NAME.adamw.norm, NAME.adamw.dot   of every parameter after them, as those of gradients

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


# The bias of keys has a gradient of exactly zero, which the usual eps of 1e-8 would turn into steps of any size.
ADAMW = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.1}
STEPS = 10


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


def digest(out: dict, name: str, tensors: list[torch.Tensor]) -> None:
    out[f"{name}.norm"] = torch.stack([t.norm() for t in tensors]).float()
    out[f"{name}.dot"] = torch.stack(
        [(t.reshape(-1) * torch.from_numpy(hashed(1000 + i, t.numel()))).sum() for i, t in enumerate(tensors)]).float()


def record(out: dict, metadata: dict, name: str, model: torch.nn.Module, inputs: dict, targets: torch.Tensor,
           trained: bool = False) -> None:
    model = model.double()
    with torch.no_grad():
        fill(model)

    def run() -> torch.Tensor:
        result = model(**inputs)
        return result if isinstance(result, torch.Tensor) else result.logits

    def loss_of(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))

    model.eval()
    with torch.no_grad():
        out[f"{name}.logits"] = run().float()
    model.train()
    logits = run()
    loss = loss_of(logits)
    loss.backward()
    names, parameters = zip(*model.named_parameters())
    out[f"{name}.train.logits"] = logits.detach().float()
    out[f"{name}.train.loss"] = loss.detach().float()
    digest(out, f"{name}.train", [p.grad for p in parameters])
    means = [b for n, b in model.named_buffers() if n.endswith("running_mean")]
    if means:
        out[f"{name}.train.mean"] = means[0].float()
    if trained:
        optimizer, losses = torch.optim.AdamW(parameters, **ADAMW), []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(run())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        out[f"{name}.adamw.loss"] = torch.tensor(losses)
        digest(out, f"{name}.adamw", [p.detach() for p in parameters])
    metadata[name] = " ".join(names)
    metadata[f"{name}.statistics"] = " ".join(
        n for n, _ in model.named_buffers() if n.endswith(("running_mean", "running_var")))
    out[f"{name}.targets"] = targets


def transformers_of_pytorch(out: dict, metadata: dict) -> None:
    src = torch.from_numpy((2 * hashed(2000, 3 * 5 * 16)).astype(np.float32)).double().reshape(3, 5, 16)
    tgt = torch.from_numpy((2 * hashed(2001, 3 * 4 * 16)).astype(np.float32)).double().reshape(3, 4, 16)
    keys = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
    memory_keys = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0]], dtype=torch.bool)
    near = torch.ones(5, 5, dtype=torch.bool).triu(-1).tril(1)  # each place sees its neighbours
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    targets = torch.randint(0, 16, (3, 4))
    small = {"d_model": 16, "nhead": 2, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
    given = {"src": src, "tgt": tgt, "tgt_mask": causal, "memory_key_padding_mask": ~memory_keys}
    record(out, metadata, "transformer", torch.nn.Transformer(num_encoder_layers=2, num_decoder_layers=2, **small),
           {**given, "src_key_padding_mask": ~keys}, targets, trained=True)
    out["transformer.src_keys"], out["transformer.memory_keys"] = keys, memory_keys
    net = torch.nn.Transformer(num_encoder_layers=1, num_decoder_layers=2, norm_first=True, activation=F.gelu, **small)
    record(out, metadata, "transformer_norm_first", net, {**given, "src_mask": ~near}, targets, trained=True)
    out["transformer_norm_first.src_mask"], out["transformer_norm_first.memory_keys"] = near, memory_keys


def main() -> None:
    torch.manual_seed(5)
    out: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    images = torch.from_numpy((2 * hashed(2000, 4 * 3 * 64 * 64)).astype(np.float32)).double().reshape(4, 3, 64, 64)
    classes = torch.tensor([1, 7, 3, 9])
    net = torchvision.models
    # Noise of 1e-6 on its convolutions, as Winograd's have, pushes numbers over a kink, and gradients off by up to 1e-2. Not
    # so of these images: 2e-5 in six draws.
    calm = torch.from_numpy((2 * hashed(2027, 4 * 3 * 64 * 64)).astype(np.float32)).double().reshape(4, 3, 64, 64)
    record(out, metadata, "resnet18", net.resnet18(num_classes=10), {"x": calm}, classes)
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
    record(out, metadata, "bert_mlm", transformers.BertForMaskedLM(config), bert, words, trained=True)
    record(out, metadata, "bert_classifier", transformers.BertForSequenceClassification(config), bert, classes[:3] % 5,
           trained=True)
    for name in ("bert_mlm", "bert_classifier"):
        out.update({f"{name}.{key}": value for key, value in bert.items()})
    vit = net.VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32,
                                num_classes=10)
    small = torch.from_numpy((2 * hashed(2000, 4 * 3 * 16 * 16)).astype(np.float32)).double().reshape(4, 3, 16, 16)
    record(out, metadata, "vit", vit, {"x": small}, classes, trained=True)
    transformers_of_pytorch(out, metadata)
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.safetensors"), out, metadata)


if __name__ == "__main__":
    main()
