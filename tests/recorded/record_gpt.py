"""Records what PyTorch computes for a tiny GPT-2, into gpt.safetensors beside this script.

The model has Hugging Face's GPT-2 names and layouts (Conv1D weights are [in, out]), tanh GELU, layer norm eps 1e-5, a
head tied to wte, mean cross-entropy. Weights are rounded to f32 first; everything after is computed in f64 and stored
as f32, so the file is the rounded true answer and not one library's f32 noise.

  ids, targets       i64 [batch, seq]
  init.<name>        every weight at the start
  logits             [batch, seq, vocab]
  loss               scalar
  grad.<name>        d loss / d weight
  clip.norm          scalar, the joint 2-norm of all gradients
  adamw.loss         [10], the loss before each of ten AdamW steps on the same batch
  adamw.<name>       every weight after them
  sgd.loss, sgd.<name>  the same with SGD, from the same start

The metadata holds the sizes and the optimizers' settings.
"""
import json
import math
import os

import torch
import torch.nn.functional as F

from safetensors_file import save

VOCAB, CONTEXT, LAYERS, HEADS, DIM = 32, 16, 2, 2, 16
BATCH, SEQ, STEPS = 2, 12, 10
# The bias of the keys (the middle third of c_attn.bias) has a gradient of exactly zero: softmax does not see it. In f32
# it is noise of 1e-9, which the usual eps of 1e-8 turns into steps of any size; with 1e-4 every weight can be compared.
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.1}
# At 0.1 ten steps blow f32 noise up 50-fold, in PyTorch itself too: the answer would be the noise of whoever computes it.
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}

Weights = dict[str, torch.Tensor]


def init() -> Weights:
    """Nothing is left at 0 or 1, where a wrong gradient could hide."""
    shapes = {"wte.weight": (VOCAB, DIM), "wpe.weight": (CONTEXT, DIM)}
    for i in range(LAYERS):
        for name, n_in, n_out in [("attn.c_attn", DIM, 3 * DIM), ("attn.c_proj", DIM, DIM),
                                  ("mlp.c_fc", DIM, 4 * DIM), ("mlp.c_proj", 4 * DIM, DIM)]:
            shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = (n_in, n_out), (n_out,)
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{name}.weight"] = shapes[f"h.{i}.{name}.bias"] = (DIM,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (DIM,)
    weights = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, dtype=torch.float32) * 0.2
        weights[name] = value + 1 if ".ln_" in f".{name}" and name.endswith("weight") else value
    return weights


def forward(w: Weights, ids: torch.Tensor) -> torch.Tensor:
    """ids: [batch, seq] -> logits [batch, seq, vocab]"""
    batch, seq = ids.shape

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (DIM,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def conv1d(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][:seq]
    hidden = torch.full((seq, seq), -math.inf, dtype=x.dtype).triu(1)
    for i in range(LAYERS):
        qkv = conv1d(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
        q, k, v = (t.view(batch, seq, HEADS, DIM // HEADS).transpose(1, 2) for t in qkv.split(DIM, dim=2))
        att = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(DIM // HEADS) + hidden, dim=3)
        x = x + conv1d((att @ v).transpose(1, 2).reshape(batch, seq, DIM), f"h.{i}.attn.c_proj")
        wide = conv1d(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        x = x + conv1d(F.gelu(wide, approximate="tanh"), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def leaves(start: Weights) -> Weights:
    return {name: value.double().requires_grad_() for name, value in start.items()}


def train(start: Weights, ids: torch.Tensor, targets: torch.Tensor, make) -> tuple[Weights, torch.Tensor]:
    w = leaves(start)
    optimizer, losses = make(list(w.values())), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(forward(w, ids), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return w, torch.tensor(losses, dtype=torch.float64)


def main() -> None:
    torch.manual_seed(1234)
    start = init()
    ids, targets = torch.randint(0, VOCAB, (BATCH, SEQ)), torch.randint(0, VOCAB, (BATCH, SEQ))

    w = leaves(start)
    logits = forward(w, ids)
    loss = loss_of(logits, targets)
    loss.backward()
    out = {f"init.{name}": value for name, value in start.items()}
    out |= {"logits": logits, "loss": loss} | {f"grad.{name}": value.grad for name, value in w.items()}
    out["clip.norm"] = torch.sqrt(sum((value.grad ** 2).sum() for value in w.values()))
    for kind, optimizer, settings in [("adamw", torch.optim.AdamW, ADAMW), ("sgd", torch.optim.SGD, SGD)]:
        after, losses = train(start, ids, targets, lambda p: optimizer(p, **settings))
        out |= {f"{kind}.{name}": value for name, value in after.items()} | {f"{kind}.loss": losses}
    out = {name: value.float() for name, value in out.items()} | {"ids": ids, "targets": targets}
    sizes = {"vocab": VOCAB, "context": CONTEXT, "layers": LAYERS, "heads": HEADS, "dim": DIM}
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpt.safetensors"), out,
         {"torch": torch.__version__, "computed_in": "f64, stored as f32", "model": json.dumps(sizes),
          "adamw": json.dumps(ADAMW), "sgd": json.dumps(SGD)})


if __name__ == "__main__":
    main()
