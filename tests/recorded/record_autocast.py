"""Records what PyTorch's autocast to bf16 makes of two small nets, into autocast.safetensors beside this script: a block of a
transformer and a convolution net, whose functions are text() and image().

  <net>.<name>        inputs and parameters, f32
  <net>.loss          under autocast
  <net>.output        under autocast, as f32
  <net>.grad.<name>   the parameters' gradients, f32

The metadata holds under "dtypes" the dtype that each op's result has under autocast.
"""
import json
import os

import torch
import torch.nn.functional as F

from safetensors_file import save

DTYPES: dict[str, str] = {}


def seen(name: str, t: torch.Tensor) -> torch.Tensor:
    DTYPES[name] = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64"}[t.dtype]
    return t


def text(p: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x = p["x"]
    h = seen("gelu", F.gelu(seen("linear", F.linear(x, p["w1"], p["b1"])), approximate="tanh"))
    h = seen("add", x + F.linear(h, p["w2"], p["b2"]))
    h = seen("layer_norm", F.layer_norm(h, (16,), p["norm"], p["shift"]))
    q, k, v = (t.view(4, 6, 2, 8).transpose(1, 2) for t in F.linear(h, p["qkv"]).chunk(3, -1))
    o = seen("attention", F.scaled_dot_product_attention(q, k, v, is_causal=True)).transpose(1, 2).reshape(4, 6, 16)
    logits = seen("matmul", torch.matmul(o, p["head"]))
    seen("cat", torch.cat((x, logits), -1))
    seen("matmul_f64", torch.matmul(x.double(), p["head"].double()))
    return logits, seen("cross_entropy", F.cross_entropy(logits.view(-1, 5), p["y"].view(-1)))


def image(p: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    h = seen("conv2d", F.conv2d(p["x"], p["w"], p["b"], padding=1))
    h = seen("relu", F.relu(F.batch_norm(h, None, None, p["norm"], p["shift"], training=True)))
    y = F.linear(h.mean((2, 3)), p["head"])
    return y, seen("mse_loss", F.mse_loss(y, p["y"]))


def run(net, values: dict[str, torch.Tensor], constant: tuple[str, ...]) -> dict[str, torch.Tensor]:
    p = {name: v.clone().requires_grad_(name not in constant) for name, v in values.items()}
    with torch.autocast("cpu", torch.bfloat16):
        output, loss = net(p)
    loss.backward()
    out = {name: v for name, v in values.items()} | {"loss": loss.detach().float(), "output": output.detach().float()}
    out |= {f"grad.{name}": v.grad for name, v in p.items() if name not in constant}
    return {f"{net.__name__}.{name}": v.contiguous() for name, v in out.items()}


def main() -> None:
    torch.manual_seed(99)
    out = run(text, {"x": torch.randn(4, 6, 16), "w1": torch.randn(32, 16) / 4, "b1": torch.randn(32) / 4,
                     "w2": torch.randn(16, 32) / 6, "b2": torch.randn(16) / 4, "norm": 1 + torch.randn(16) / 4,
                     "shift": torch.randn(16) / 4, "qkv": torch.randn(48, 16) / 4, "head": torch.randn(16, 5) / 2,
                     "y": torch.randint(0, 5, (4, 6))}, ("x", "y"))
    out |= run(image, {"x": torch.randn(4, 3, 8, 8), "w": torch.randn(8, 3, 3, 3) / 5, "b": torch.randn(8),
                       "norm": 1 + torch.randn(8) / 4, "shift": torch.randn(8), "head": torch.randn(2, 8),
                       "y": torch.randn(4, 2)}, ("x", "y"))
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "autocast.safetensors"), out,
         {"torch": torch.__version__, "dtypes": json.dumps(DTYPES)})
    print(DTYPES)


if __name__ == "__main__":
    main()
