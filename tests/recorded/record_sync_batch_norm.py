"""Records two training steps of PyTorch's BatchNorm2d over a whole batch, into sync_batch_norm.safetensors beside this script:
what SyncBatchNorm, which PyTorch has for GPUs alone, is to compute where ranks have parts of the batch.

  weight, bias          at the start; the running mean is 0 and the variance 1 then
  <step>.x, <step>.g    the batch, and the gradient of the output
  <step>.y              the output
  <step>.dx, <step>.dweight, <step>.dbias
  running_mean, running_var   after both steps
  evaluated             what the last step's x gives in eval mode then
"""
import os

import torch

from safetensors_file import save


def main() -> None:
    torch.manual_seed(99)
    norm = torch.nn.BatchNorm2d(3, eps=1e-3, momentum=0.3)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    torch.nn.init.normal_(norm.bias)
    out = {"weight": norm.weight.detach().clone(), "bias": norm.bias.detach().clone()}
    for step in range(2):
        x = (torch.randn(6, 3, 4, 4) * 2 + 5).requires_grad_()
        g = torch.randn(6, 3, 4, 4)
        norm.zero_grad()
        y = norm(x)
        y.backward(g)
        out |= {f"{step}.x": x.detach(), f"{step}.g": g, f"{step}.y": y.detach(), f"{step}.dx": x.grad,
                f"{step}.dweight": norm.weight.grad.clone(), f"{step}.dbias": norm.bias.grad.clone()}
    out |= {"running_mean": norm.running_mean, "running_var": norm.running_var,
            "evaluated": norm.eval()(x).detach()}
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sync_batch_norm.safetensors"), out,
         {"torch": torch.__version__})


if __name__ == "__main__":
    main()
