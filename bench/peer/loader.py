"""The peer of `trireme bench loader`: torch.utils.data.DataLoader, its workers kept between epochs.

    loader.py --samples digits --count 20000 --batch 64 --workers 2

prints "ready"; then for each line that it reads it runs an epoch, with whose batches nothing is done, and prints the
microseconds of a sample; ends with its input. Samples are

  rows     of tensors, TensorDataset
  digits   28 x 28 bytes, normalised when they are asked for
  folder   images of --folder, torchvision's ImageFolder and Resize((224, 224)), by --decoder pil or torch (libjpeg-turbo)

    loader.py --make FOLDER --count 200     writes such a folder: JPEG files of 500 x 375 pixels in two classes
"""
import argparse
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Digits(Dataset):
    def __init__(self, count: int) -> None:
        self.pixels = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels[index].float().div_(255).sub_(0.1307).div_(0.3081), index % 10


def folder(path: str, decoder: str) -> Dataset:
    from torchvision import datasets, io
    from torchvision.transforms import v2
    if decoder == "pil":
        scale = v2.Compose([v2.Resize((224, 224)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        return datasets.ImageFolder(path, scale)
    scale = v2.Compose([v2.Resize((224, 224), antialias=True), v2.ToDtype(torch.float32, scale=True)])
    return datasets.ImageFolder(path, scale, loader=lambda name: io.decode_image(io.read_file(name), io.ImageReadMode.RGB))


def make(path: str, count: int) -> None:
    from torchvision import io
    torch.manual_seed(1)
    for i in range(count):
        small = torch.rand(1, 3, 24, 32) * 255
        image = torch.nn.functional.interpolate(small, (375, 500), mode="bicubic")[0]
        image = (image + 8 * torch.randn(3, 375, 500)).clamp(0, 255).to(torch.uint8)
        name = os.path.join(path, f"class{i % 2}", f"{i}.jpg")
        os.makedirs(os.path.dirname(name), exist_ok=True)
        io.write_jpeg(image, name, quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", choices=("rows", "digits", "folder"), default="digits")
    parser.add_argument("--folder")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--decoder", choices=("pil", "torch"), default="torch")
    parser.add_argument("--make", metavar="FOLDER")
    args = parser.parse_args()
    if args.make:
        return make(args.make, args.count)
    if args.samples == "rows":
        data = TensorDataset(torch.zeros(args.count, 1, 28, 28), torch.zeros(args.count, dtype=torch.int64))
    else:
        data = Digits(args.count) if args.samples == "digits" else folder(args.folder, args.decoder)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    print(f"ready PyTorch {torch.__version__}", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in loader:
            pass
        print(1e6 * (time.perf_counter() - begin) / len(data), flush=True)


if __name__ == "__main__":
    main()
