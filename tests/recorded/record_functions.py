"""Records more functions from PyTorch into functions.safetensors beside this script, as record_ops.py does: for every
case its inputs <case>.in0, …, the output <case>.out, a gradient <case>.gout that arrives there, and those of the
inputs <case>.gin0, …, in F64. What each case computes is its line in main().
"""
import os

import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from record_ops import Tensor, rand, record, recorded
from safetensors_file import save


def record_activations() -> None:
    for name in ("silu", "mish", "softplus", "logsigmoid", "hardswish", "selu"):
        record(name, getattr(F, name), rand(3, 7) * 3)
    record("hardsigmoid", lambda x: F.relu6(x + 3) / 6, rand(3, 7) * 3)  # F.hardsigmoid's gradient divides by 6 in f32
    record("leaky_relu", lambda x: F.leaky_relu(x, 0.1), rand(3, 7))
    record("elu", lambda x: F.elu(x, 0.7), rand(3, 7))
    record("clamp", lambda x: x.clamp(-0.5, 1), rand(3, 7))
    record("pow", lambda x: x.pow(1.7), rand(3, 7).abs() + 0.1)
    record("pow_cube", lambda x: x.pow(3), rand(3, 7))
    record("sin", torch.sin, rand(3, 7))
    record("cos", torch.cos, rand(3, 7))


REDUCTIONS = ("mean", "sum", "none")


def record_losses() -> None:
    for reduction in REDUCTIONS:
        record(f"mse_{reduction}", lambda x, y: F.mse_loss(x, y, reduction=reduction), rand(3, 5), rand(3, 5))
        record(f"l1_{reduction}", lambda x, y: F.l1_loss(x, y, reduction=reduction), rand(3, 5), rand(3, 5))
        record(f"huber_{reduction}", lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=0.7), rand(3, 5), rand(3, 5))
        record(f"smooth_l1_{reduction}", lambda x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.5), rand(3, 5),
               rand(3, 5))
        record(f"bce_{reduction}", lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction),
               rand(3, 5) * 3, torch.rand(3, 5, dtype=torch.float64))
        record(f"kl_{reduction}", lambda x, y: F.kl_div(x, y, reduction=reduction), rand(3, 5),
               torch.softmax(rand(3, 5), -1))
        targets = torch.tensor([4, 0, 2, -100, 1, 3])
        record(f"nll_{reduction}", lambda x, y: F.nll_loss(x, y, reduction=reduction), rand(6, 5), targets)
        record(f"cross_entropy_{reduction}",
               lambda x, y: F.cross_entropy(x, y, reduction=reduction, label_smoothing=0.2), rand(6, 5), targets)
    record("cross_entropy_ignore_index", lambda x, y: F.cross_entropy(x, y, ignore_index=2), rand(6, 5),
           torch.tensor([4, 0, 2, 2, 1, 3]))
    record("bce_pos_weight", lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.arange(1.0, 6)),
           rand(3, 5) * 3, torch.rand(3, 5, dtype=torch.float64))
    record("kl_log_target", lambda x, y: F.kl_div(x, y, reduction="mean", log_target=True), rand(3, 5), rand(3, 5))
    probabilities = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    record("kl_zero", lambda x: F.kl_div(x, probabilities, reduction="sum"), rand(2, 3))


def record_indexing() -> None:
    index = torch.tensor([[0, 2, 2, 1], [4, 4, 0, 3]])
    mask = torch.tensor([[True, False, True], [False, False, True]])
    record("where", torch.where, mask, rand(2, 3), rand(3))
    record("masked_fill", lambda x, mask: x.masked_fill(mask, -1.5), rand(4, 2, 3), mask)
    record("gather_0", lambda x, i: torch.gather(x, 0, i), rand(5, 4), index)
    record("gather_1", lambda x, i: torch.gather(x, 1, i), rand(3, 5), index)
    record("scatter_add_0", lambda x, i, src: torch.scatter_add(x, 0, i, src), rand(5, 4), index, rand(2, 4))
    record("scatter_add_1", lambda x, i, src: torch.scatter_add(x, 1, i, src), rand(3, 5), index, rand(2, 4))
    record("index_select_0", lambda x, i: torch.index_select(x, 0, i), rand(5, 4), torch.tensor([3, 0, 3]))
    record("index_select_1", lambda x, i: torch.index_select(x, 1, i), rand(2, 5, 3), torch.tensor([4, 0, 4, 1]))
    record("flip", lambda x: torch.flip(x, (0, 2)), rand(2, 3, 4))
    record("one_hot", lambda x, i: x * F.one_hot(i, 4), rand(2, 3, 4), torch.tensor([[0, 3, 1], [2, 2, 0]]))


def record_norms() -> None:
    record("rms_norm", lambda x, w: F.rms_norm(x, (8,), w, 1e-5), rand(2, 3, 8) * 2 + 1, rand(8))
    record("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), rand(2, 4, 3, 5) + 1, rand(4), rand(4))
    record("instance_norm", lambda x: F.instance_norm(x, eps=1e-5), rand(2, 3, 7) * 2)


def record_reductions() -> None:
    for case, x in (("min", rand(3, 5)), ("min_tied", torch.tensor([[1.0, -2, -2], [0, 0, 0]], dtype=torch.float64))):
        record(case, lambda x: torch.amin(x, -1), x)
    record("argmin", lambda x: x.argmin(-1).double() + 0 * x.sum(-1), rand(3, 5))
    record("prod", lambda x: x.prod(1), rand(3, 5))
    record("prod_zero", lambda x: x.prod(1), torch.tensor([[2.0, 0, 3], [0, 0, 4], [1, 2, 3]], dtype=torch.float64))
    record("norm", lambda x: torch.linalg.vector_norm(x, dim=(0, 2)), rand(3, 2, 5))
    record("norm_zero", lambda x: torch.linalg.vector_norm(x, dim=1), torch.tensor([[0.0, 0], [3, 4]], dtype=torch.float64))
    record("norm_1", lambda x: torch.linalg.vector_norm(x, 1, dim=1), rand(3, 5))
    record("norm_3", lambda x: torch.linalg.vector_norm(x, 3), rand(3, 5))
    record("norm_most", lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1), rand(3, 5))
    record("var", lambda x: x.var(1), rand(3, 5))
    record("var_biased", lambda x: x.var((0, 2), correction=0, keepdim=True), rand(3, 2, 5))
    record("std", lambda x: x.std(), rand(3, 5))
    record("std_zero", lambda x: x.std(1), torch.tensor([[2.0, 2, 2], [1, 2, 4]], dtype=torch.float64))
    record("cumsum", lambda x: x.cumsum(1), rand(3, 5, 2))


def record_orders() -> None:
    record("topk", lambda x: x.topk(3, -1).values, rand(3, 7))
    record("topk_smallest", lambda x: x.topk(2, 0, largest=False).values, rand(5, 3))
    record("max_dim", lambda x: x.max(1, keepdim=True).values, rand(3, 7))
    record("sort", lambda x: x.sort(1).values, rand(2, 6, 3))
    record("sort_descending", lambda x: x.sort(-1, descending=True).values, rand(3, 7))
    record("sort_long", lambda x: x.sort(-1).values, rand(2, 75))
    record("topk_long", lambda x: x.topk(20, -1).values, rand(2, 75))
    equal = torch.tensor([[2.0, 1, 2, 1, 2], [0, 0, 3, 3, 0]], dtype=torch.float64)
    record("argsort_stable", lambda x: x.sort(dim=-1, stable=True).indices.double() + 0 * x, equal)


def record_products() -> None:
    record("einsum", lambda a, b: torch.einsum("bij,bjk->kbi", a, b), rand(2, 3, 4), rand(2, 4, 5))
    record("einsum_sums", lambda a, b: torch.einsum("abcx,dbay->acdb", a, b), rand(2, 3, 4, 2), rand(5, 3, 2, 3))
    record("einsum_outer", lambda a, b: torch.einsum("ab,c->acb", a, b), rand(2, 3), rand(4))
    record("einsum_scalar", lambda a, b: torch.einsum("ab,ba->", a, b), rand(2, 3), rand(3, 2))
    record("pad", lambda x: F.pad(x, (2, 0, 1, 3), value=-1.5), rand(2, 3, 4))
    record("stack", lambda a, b: torch.stack((a, b, a), 1), rand(2, 3), rand(2, 3))


def rotate(x: Tensor, interleaved: bool, first: int = 0) -> Tensor:
    """Llama's form is that of Hugging Face's apply_rotary_pos_emb, the interleaved one that of the paper."""
    seq, dim = x.shape[-2:]
    angles = torch.outer(torch.arange(first, first + seq, dtype=torch.float64),
                         10000 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    if interleaved:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)
    cosines, sines = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    return apply_rotary_pos_emb(x, x, cosines[None], sines[None])[0]


def record_attention() -> None:
    record("rotary", lambda x: rotate(x, False), rand(2, 1, 70, 4))
    record("rotary_interleaved", lambda x: rotate(x, True, 5), rand(2, 3, 7, 8))
    attention = F.scaled_dot_product_attention
    record("attention_groups", lambda q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True), rand(2, 6, 5, 4),
           rand(2, 2, 5, 4), rand(2, 2, 5, 4))
    lengths = torch.tensor([3, 5])
    seen = (torch.arange(5) < lengths[:, None])[:, None, None]
    record("attention_lengths", lambda q, k, v, n: attention(q, k, v, seen), rand(2, 2, 4, 4), rand(2, 2, 5, 4),
           rand(2, 2, 5, 4), lengths)
    record("attention_groups_lengths", lambda q, k, v, n: attention(q, k, v, seen, enable_gqa=True), rand(2, 4, 3, 4),
           rand(2, 2, 5, 4), rand(2, 2, 5, 4), lengths)


def record_weighted_losses() -> None:
    targets, weight = torch.tensor([4, 0, 2, -100, 1, 3]), torch.tensor([0.5, 2, 1, 0.25, 3], dtype=torch.float64)
    for reduction in REDUCTIONS:
        record(f"nll_weighted_{reduction}", lambda x, y: F.nll_loss(x, y, weight, reduction=reduction), rand(6, 5),
               targets)
        record(f"cross_entropy_weighted_{reduction}",
               lambda x, y: F.cross_entropy(x, y, weight, reduction=reduction, label_smoothing=0.2), rand(6, 5), targets)
        record(f"bce_weighted_{reduction}", lambda x, y: F.binary_cross_entropy_with_logits(
            x, y, weight, reduction=reduction, pos_weight=weight + 1), rand(3, 5) * 3, torch.rand(3, 5, dtype=torch.float64))
    record("cross_entropy_weighted", lambda x, y: F.cross_entropy(x, y, weight, ignore_index=2), rand(6, 5),
           torch.tensor([4, 0, 2, 4, 1, 3]))


def record_more() -> None:
    record("softsign", F.softsign, rand(3, 7))
    record("celu", lambda x: F.celu(x, 0.5), rand(3, 7))
    record("glu", lambda x: F.glu(x, 1), rand(2, 6, 3))
    record("prelu", F.prelu, rand(2, 4, 3), rand(4))
    record("log_sum_exp", lambda x: x.logsumexp((0, 2)), rand(3, 2, 5) * 3)
    index = torch.tensor([[0, 2, 4, 1], [3, 0, 1, 2]])
    record("scatter", lambda x, i, src: torch.scatter(x, 1, i, src), rand(3, 5), index, rand(2, 4))


def record_soft_targets() -> None:
    weight = torch.tensor([0.5, 2, 1, 0.25, 3], dtype=torch.float64)
    for reduction in REDUCTIONS:
        record(f"cross_entropy_soft_{reduction}", lambda x, y: F.cross_entropy(x, y, reduction=reduction), rand(6, 5) * 3,
               torch.softmax(rand(6, 5), -1))
        record(f"cross_entropy_soft_weighted_{reduction}",
               lambda x, y: F.cross_entropy(x, y, weight, reduction=reduction, label_smoothing=0.2), rand(6, 5) * 3,
               torch.softmax(rand(6, 5), -1))


def main() -> None:
    torch.manual_seed(8765)
    record_activations()
    record_losses()
    record_indexing()
    record_norms()
    record_reductions()
    record_orders()
    record_products()
    record_attention()
    record_weighted_losses()
    record_more()
    record_soft_targets()
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "functions.safetensors"), recorded,
         {"torch": torch.__version__, "computed_in": "f64"})


if __name__ == "__main__":
    main()
