"""Records inputs, outputs and gradients of single operations from PyTorch into ops.safetensors beside this script.

For every case: <case>.in0, .in1, … the inputs; <case>.out the output; <case>.gout a random gradient that arrives at
the output; <case>.gin0, .gin1, … the gradients of the inputs that have one. Computed and stored in F64, but for ids and
targets (I64) and the mask (BOOL, true: may look).

  gelu_tanh, gelu_exact             in0: x [3,7]
  softmax, log_softmax              in0: x [4,9], over the last dimension
  softmax_dim1                      in0: x [2,5,3], over dimension 1
  layer_norm                        in0: x [2,3,8], in1: weight [8], in2: bias [8], eps 1e-5
  attention_causal                  in0: q [2,2,7,4], in1: k, in2: v, scale 1/sqrt(4)
  attention_masked                  the same, in3: mask [2,1,7,7]; every query sees at least one key
  attention_cross                   in0: q [2,2,3,4], in1: k [2,2,5,4], in2: v [2,2,5,4], no mask
  cross_entropy                     in0: logits [6,5], in1: targets [6], mean
  cross_entropy_ignore              the same, with two targets of -100
  embedding                         in0: weight [6,4], in1: ids [2,5] with repeats
  linear                            in0: x [2,3,4], in1: weight [5,4] as [out, in], in2: bias [5]
  matmul                            in0: a [3,4], in1: b [4,5]
  matmul_broadcast                  in0: a [2,1,3,4], in1: b [5,4,2]
  conv2d                            in0: x [2,3,6,5], in1: weight [4,3,3,3], in2: bias [4], padding 1
  conv2d_dilated                    in0: x [2,2,7,8], in1: weight [3,2,3,2], stride 2, padding 2, dilation 2, no bias
  conv2d_groups                     in0: x [1,4,5,5], in1: weight [6,2,3,3], in2: bias [6], stride 2, groups 2
  max_pool2d                        in0: x [2,3,5,6], kernel 2
  max_pool2d_padded                 in0: x [2,3,5,6], kernel 3, stride 2, padding 1
  avg_pool2d_padded                 the same
  adaptive_avg_pool2d               in0: x [2,3,5,7] -> [2,3,2,3]
  batch_norm                        in0: x [3,4,2,5], in1: weight [4], in2: bias [4], training, eps 1e-3
  batch_norm_frozen                 the same, in3: running mean [4], in4: running variance [4] (no gradients), eps 1e-5

A module in training, its state dict after two batches, and its output and gradients for the second one:
  batch_norm2d                      in0, in1: the batches [2,3,4,4]; out, gout, gin1; weight, bias, running_mean, … of the
                                    state dict; gweight, gbias; eval: the output for in0 afterwards, in evaluation
  multihead_attention               in0: x [2,5,8], 2 heads, causal; out, gout, gin0; in_proj_weight, … of the state dict;
                                    gin_proj_weight, …; cross: the output for query in0 [:, :3], key and value in0
"""
import os
from typing import Callable

import torch
import torch.nn.functional as F

from safetensors_file import save

Tensor = torch.Tensor
recorded: dict[str, Tensor] = {}


def record(case: str, op: Callable[..., Tensor], *inputs: Tensor) -> None:
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out = op(*leaves)
    gout = torch.randn_like(out)
    out.backward(gout)
    recorded.update({f"{case}.out": out, f"{case}.gout": gout})
    for i, x in enumerate(leaves):
        recorded[f"{case}.in{i}"] = x
        if x.requires_grad:
            recorded[f"{case}.gin{i}"] = x.grad


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def record_module(case: str, module: torch.nn.Module) -> None:
    recorded.update({f"{case}.{name}": x.clone() for name, x in module.state_dict().items()})
    recorded.update({f"{case}.g{name}": x.grad for name, x in module.named_parameters()})


def record_batch_norm2d() -> None:
    norm = torch.nn.BatchNorm2d(3).double()
    with torch.no_grad():
        norm.weight.copy_(rand(3))
        norm.bias.copy_(rand(3))
    first, second = rand(2, 3, 4, 4) * 2 + 1, (rand(2, 3, 4, 4) - 1).requires_grad_()
    norm(first)
    out = norm(second)
    gout = rand(2, 3, 4, 4)
    out.backward(gout)
    record_module("batch_norm2d", norm)
    recorded.update({"batch_norm2d.in0": first, "batch_norm2d.in1": second, "batch_norm2d.out": out,
                     "batch_norm2d.gout": gout, "batch_norm2d.gin1": second.grad, "batch_norm2d.eval": norm.eval()(first)})


def record_multihead_attention() -> None:
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        attention.in_proj_bias.copy_(rand(24))
    x = rand(2, 5, 8).requires_grad_()
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    out = attention(x, x, x, attn_mask=mask, need_weights=False)[0]
    gout = rand(2, 5, 8)
    out.backward(gout)
    record_module("multihead_attention", attention)
    cross = attention(x[:, :3], x, x, need_weights=False)[0]
    recorded.update({"multihead_attention.in0": x, "multihead_attention.out": out, "multihead_attention.gout": gout,
                     "multihead_attention.gin0": x.grad, "multihead_attention.cross": cross})


def main() -> None:
    torch.manual_seed(4321)
    record("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), rand(3, 7) * 2)
    record("gelu_exact", F.gelu, rand(3, 7) * 2)
    record("softmax", lambda x: torch.softmax(x, -1), rand(4, 9) * 3)
    record("softmax_dim1", lambda x: torch.softmax(x, 1), rand(2, 5, 3))
    record("log_softmax", lambda x: torch.log_softmax(x, -1), rand(4, 9) * 3)
    record("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b, 1e-5), rand(2, 3, 8) * 2 + 1, rand(8), rand(8))
    attention = F.scaled_dot_product_attention
    q, k, v = rand(2, 2, 7, 4), rand(2, 2, 7, 4), rand(2, 2, 7, 4)
    mask = (torch.rand(2, 1, 7, 7) < 0.6) | torch.eye(7, dtype=torch.bool)
    record("attention_causal", lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v)
    record("attention_masked", attention, q, k, v, mask)
    record("attention_cross", attention, rand(2, 2, 3, 4), rand(2, 2, 5, 4), rand(2, 2, 5, 4))
    targets = torch.tensor([4, 0, 2, 2, 1, 3])
    record("cross_entropy", F.cross_entropy, rand(6, 5), targets)
    targets[1] = targets[4] = -100
    record("cross_entropy_ignore", F.cross_entropy, rand(6, 5), targets)
    record("embedding", lambda w, ids: F.embedding(ids, w), rand(6, 4),
           torch.tensor([[1, 5, 1, 0, 2], [2, 2, 5, 1, 0]]))
    record("linear", F.linear, rand(2, 3, 4), rand(5, 4), rand(5))
    record("matmul", torch.matmul, rand(3, 4), rand(4, 5))
    record("matmul_broadcast", torch.matmul, rand(2, 1, 3, 4), rand(5, 4, 2))
    record("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), rand(2, 3, 6, 5), rand(4, 3, 3, 3), rand(4))
    record("conv2d_dilated", lambda x, w: F.conv2d(x, w, stride=2, padding=2, dilation=2), rand(2, 2, 7, 8),
           rand(3, 2, 3, 2))
    record("conv2d_groups", lambda x, w, b: F.conv2d(x, w, b, stride=2, groups=2), rand(1, 4, 5, 5), rand(6, 2, 3, 3),
           rand(6))
    record("max_pool2d", lambda x: F.max_pool2d(x, 2), rand(2, 3, 5, 6))
    record("max_pool2d_padded", lambda x: F.max_pool2d(x, 3, 2, 1), rand(2, 3, 5, 6))
    record("avg_pool2d_padded", lambda x: F.avg_pool2d(x, 3, 2, 1), rand(2, 3, 5, 6))
    record("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), rand(2, 3, 5, 7))
    record("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=1e-3), rand(3, 4, 2, 5) * 2 + 1,
           rand(4), rand(4))
    mean, var = rand(4), torch.rand(4, dtype=torch.float64) + 0.5
    record("batch_norm_frozen", lambda x, w, b: F.batch_norm(x, mean, var, w, b), rand(3, 4, 2, 5) * 2 + 1, rand(4), rand(4))
    recorded.update({"batch_norm_frozen.in3": mean, "batch_norm_frozen.in4": var})
    record_batch_norm2d()
    record_multihead_attention()
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops.safetensors"), recorded,
         {"torch": torch.__version__, "computed_in": "f64"})


if __name__ == "__main__":
    main()
