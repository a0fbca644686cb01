"""The PyTorch peer of `trireme bench model --model resnet18 | resnet50 | vgg11`: torchvision's models, cross-entropy, SGD with
momentum.

--contiguous keeps the images and the weights of convolutions in PyTorch's usual order rather than channels-last.
"""
import argparse

import training

BATCHES = {"resnet18": 8, "resnet50": 4, "vgg11": 4}


def build(args: argparse.Namespace):
    import torch
    import torchvision
    from torch import nn

    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module):
            super().__init__()
            self.model = model

        def forward(self, x, targets):
            return nn.functional.cross_entropy(self.model(x), targets)

    order = torch.contiguous_format if args.contiguous else torch.channels_last
    batch = args.batch or BATCHES[args.model]
    model = WithLoss(getattr(torchvision.models, args.model)()).to(memory_format=order)
    x = torch.rand(batch, 3, args.size, args.size).to(memory_format=order)
    y = torch.randint(0, 1000, (batch,))
    return model, training.fastest(torch.optim.SGD, model.parameters(), lr=0.01, momentum=0.9), (x, y), batch


if __name__ == "__main__":
    parser = training.parser(__doc__, batch=0)
    parser.add_argument("--model", choices=BATCHES, default="resnet18")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--contiguous", action="store_true")
    training.run(parser.parse_args(), build)
