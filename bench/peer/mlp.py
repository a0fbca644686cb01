"""The PyTorch peer of `trireme bench model --model mlp`: 784-512-512-10 with ReLU, cross-entropy, SGD."""
import argparse

import training


def build(args: argparse.Namespace):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(inplace=True), nn.Linear(512, 512),
                                        nn.ReLU(inplace=True), nn.Linear(512, 10))

        def forward(self, x, targets):
            return F.cross_entropy(self.layers(x), targets)

    model = MLP()
    x, y = torch.rand(args.batch, 784), torch.randint(0, 10, (args.batch,))
    return model, training.fastest(torch.optim.SGD, model.parameters(), lr=0.01), (x, y), args.batch


if __name__ == "__main__":
    training.run(training.parser(__doc__, batch=64).parse_args(), build)
