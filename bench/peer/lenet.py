"""The PyTorch peer of `trireme bench model --model lenet`: LeNet-5 with ReLU and max pooling, cross-entropy, SGD with momentum.

--contiguous keeps the images and the weights of convolutions in PyTorch's usual order rather than channels-last.
"""
import argparse

import training


def build(args: argparse.Namespace):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class LeNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(400, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, 10))

        def forward(self, x, targets):
            return F.cross_entropy(self.layers(x), targets)

    order = torch.contiguous_format if args.contiguous else torch.channels_last
    model = LeNet().to(memory_format=order)
    x, y = torch.rand(args.batch, 1, 28, 28).to(memory_format=order), torch.randint(0, 10, (args.batch,))
    return model, training.fastest(torch.optim.SGD, model.parameters(), lr=0.01, momentum=0.9), (x, y), args.batch


if __name__ == "__main__":
    parser = training.parser(__doc__, batch=64)
    parser.add_argument("--contiguous", action="store_true")
    training.run(parser.parse_args(), build)
