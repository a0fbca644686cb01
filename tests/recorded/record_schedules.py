"""Records the learning rates of PyTorch's schedulers at 40 steps, into schedules.safetensors beside this script: one
f64 tensor each, [40]. "metric" is what the plateau schedules were given, one value a step; their rates are those after it."""
import math
import os

import torch
from torch.optim import lr_scheduler as lr

from safetensors_file import save

STEPS, LR = 40, 0.5
CASES = {
    "step": lambda o: lr.StepLR(o, 7, 0.5),
    "multi_step": lambda o: lr.MultiStepLR(o, [5, 20, 20, 33], 0.3),
    "exponential": lambda o: lr.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr.CosineAnnealingLR(o, STEPS, 0.01),
    "warmup": lambda o: lr.LambdaLR(o, lambda step: min(1, (step + 1) / 8)),
    "linear": lambda o: lr.LinearLR(o, total_iters=12),
    "linear_down": lambda o: lr.LinearLR(o, 1.0, 0.0, 30),
    "polynomial": lambda o: lr.PolynomialLR(o, 30, 2.0),
    "one_cycle": lambda o: lr.OneCycleLR(o, LR, total_steps=STEPS),
    "one_cycle_linear": lambda o: lr.OneCycleLR(o, LR, total_steps=STEPS, pct_start=0.25, anneal_strategy="linear",
                                                div_factor=10, final_div_factor=100),
    "one_cycle_three": lambda o: lr.OneCycleLR(o, LR, total_steps=STEPS, three_phase=True),
    "sequential": lambda o: lr.SequentialLR(o, [lr.LinearLR(o, 0.1, 1.0, 5), lr.PolynomialLR(o, 20), lr.ConstantLR(o, 0.05, 100)],
                                            [5, 28]),
}
PLATEAUS = {
    "plateau": {"patience": 2, "factor": 0.5},
    "plateau_cooldown": {"patience": 1, "cooldown": 3, "threshold": 0.02, "threshold_mode": "abs", "min_lr": 0.002},
    "plateau_max": {"mode": "max", "patience": 0, "factor": 0.8, "threshold": 0.05},
}


def main() -> None:
    out = {"metric": torch.tensor([1 + math.exp(-i / 6) + 0.05 * math.sin(2.3 * i) for i in range(STEPS)], dtype=torch.float64)}
    for name, make in (CASES | PLATEAUS).items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
        schedule = lr.ReduceLROnPlateau(optimizer, **make) if name in PLATEAUS else make(optimizer)
        rates = []
        for step in range(STEPS):
            optimizer.step()
            if name in PLATEAUS:
                schedule.step(out["metric"][step].item())
            rates.append(optimizer.param_groups[0]["lr"])
            if name not in PLATEAUS and step + 1 < STEPS:
                schedule.step()
        out[name] = torch.tensor(rates, dtype=torch.float64)
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedules.safetensors"), out, {"torch": torch.__version__})


if __name__ == "__main__":
    main()
