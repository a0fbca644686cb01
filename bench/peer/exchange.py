"""Do torchvision and Trireme read each other's ResNet-18 and get the same logits from it?

    python bench/peer/exchange.py BUILD

Both ways, through safetensors files with every parameter and statistic, strictly: a ResNet-18 that Trireme has trained a
little, loaded by torchvision, and one of torchvision's, loaded by Trireme (BUILD/bench/exchange). Prints how far the logits
of the same images are apart, and fails above 1e-4 of their size.
"""
import os
import subprocess
import sys
import tempfile

import torch
import torchvision
from safetensors.torch import load_file, save_file


def train_a_little(net: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(torch.randn(4, 3, 64, 64)), torch.arange(4)).backward()
        optimizer.step()


def compare(what: str, exchange: str, net: torch.nn.Module, model: str, folder: str) -> bool:
    images, answer = os.path.join(folder, "images"), os.path.join(folder, "logits")
    x = torch.randn(4, 3, 96, 96)
    save_file({"images": x}, images)
    subprocess.run([exchange, "logits", model, images, answer], check=True)
    with torch.no_grad():
        expected = net.eval()(x)
    apart = ((load_file(answer)["logits"] - expected).abs().max() / expected.abs().max()).item()
    print(f"{what}: logits differ by {apart:.1e} of the largest")
    return apart < 1e-4


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    exchange = os.path.join(sys.argv[1], "bench", "exchange")
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
        subprocess.run([exchange, "write", ours], check=True)
        net = torchvision.models.resnet18(num_classes=10)
        net.load_state_dict(load_file(ours), strict=True)
        good = compare("Trireme's in torchvision", exchange, net, ours, folder)
        net = torchvision.models.resnet18(num_classes=10)
        train_a_little(net)
        save_file(net.state_dict(), theirs)
        good = compare("torchvision's in Trireme", exchange, net, theirs, folder) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
