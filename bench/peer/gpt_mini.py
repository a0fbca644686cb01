"""The PyTorch peer of `trireme bench model --model gpt-mini` and `gpt2`: a GPT-2, cross-entropy, AdamW."""
import argparse

import training

MODELS = {"mini": {"layers": 6, "heads": 6, "dim": 384, "vocab": 256, "context": 256},
          "gpt2": {"layers": 12, "heads": 12, "dim": 768, "vocab": 50257, "context": 1024}}
BATCHES = {"mini": (8, 256), "gpt2": (4, 64)}  # sequences and tokens in each, as `trireme bench model` takes by itself


def arguments() -> argparse.Namespace:
    parser = training.parser(__doc__, batch=0)
    parser.add_argument("--model", choices=MODELS, default="mini")
    parser.add_argument("--seq", type=int, default=0)
    args = parser.parse_args()
    batch, seq = BATCHES[args.model]
    args.batch, args.seq = args.batch or batch, args.seq or seq
    return args


def build(args: argparse.Namespace):
    import torch
    import torch.nn.functional as F
    from torch import nn

    sdpa = hasattr(F, "scaled_dot_product_attention")  # since 2.0

    def attention(q, k, v, mask):
        """q, k, v: [batch, heads, seq, dim]"""
        if sdpa:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        b, h, t, d = q.shape
        q, k, v = (x.reshape(b * h, t, d) for x in (q, k, v))
        scores = torch.baddbmm(mask[:t, :t], q, k.transpose(1, 2), alpha=d ** -0.5)
        return torch.bmm(torch.softmax(scores, -1), v).view(b, h, t, d)

    class Block(nn.Module):
        def __init__(self, heads: int, dim: int):
            super().__init__()
            self.heads = heads
            self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.ln_2, self.c_fc, self.c_out = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x, mask):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(c, 2))
            x = x + self.c_proj(attention(q, k, v, mask).transpose(1, 2).reshape(b, t, c))
            return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self, layers: int, heads: int, dim: int, vocab: int, context: int):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
            self.h = nn.ModuleList(Block(heads, dim) for _ in range(layers))
            self.ln_f = nn.LayerNorm(dim)
            # No buffer: DDP would send it.
            self.mask = None if sdpa else torch.full((context, context), float("-inf")).triu(1)
            nn.init.normal_(self.wte.weight, std=0.02)
            nn.init.normal_(self.wpe.weight, std=0.02)

        def forward(self, ids, targets):
            x = self.wte(ids) + self.wpe.weight[:ids.size(1)]
            for block in self.h:
                x = block(x, self.mask)
            logits = F.linear(self.ln_f(x), self.wte.weight)  # the head is tied
            return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    size = MODELS[args.model]
    model = GPT(**size)
    optimizer = training.fastest(torch.optim.AdamW, model.parameters(), lr=3e-4, weight_decay=0.1)
    ids = torch.randint(0, size["vocab"], (args.batch, args.seq + 1))
    return model, optimizer, (ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), args.batch * args.seq


if __name__ == "__main__":
    training.run(arguments(), build)
