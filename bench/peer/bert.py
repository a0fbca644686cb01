"""The PyTorch peer of `trireme bench model --model bert-base`: Hugging Face's BertForMaskedLM, cross-entropy over the 15 % of
tokens that are to be told, AdamW; without dropout, which ours has not there. With --asked-only its head computes the logits
of these tokens and no others, as ours does; by itself it computes all.
"""
import argparse

import training

MODELS = {"tiny": {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 128, "intermediate_size": 512},
          "base": {}}


def build(args: argparse.Namespace):
    import torch
    from torch import nn
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertForMaskedLM

    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model

        def forward(self, ids, labels):
            if not args.asked_only:
                return self.model(input_ids=ids, labels=labels).loss
            asked = labels.flatten() != -100
            hidden = self.model.bert(input_ids=ids).last_hidden_state.flatten(0, 1)[asked]
            return nn.functional.cross_entropy(self.model.cls(hidden), labels.flatten()[asked])

    config = BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="sdpa",
                        **MODELS[args.model])
    model = WithLoss(BertForMaskedLM(config))
    optimizer = training.fastest(torch.optim.AdamW, model.parameters(), lr=3e-4, weight_decay=0.1)
    ids = torch.randint(0, config.vocab_size, (args.batch, args.seq))
    return model, optimizer, (ids, ids.masked_fill(torch.rand(ids.shape) > 0.15, -100)), ids.numel()


if __name__ == "__main__":
    parser = training.parser(__doc__, batch=4)
    parser.add_argument("--model", choices=MODELS, default="base")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--asked-only", action="store_true")
    training.run(parser.parse_args(), build, also_import="transformers.models.bert.modeling_bert")
