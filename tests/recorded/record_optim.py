"""Records ten steps of PyTorch's optimizers from given gradients, into optim.safetensors beside this script.

Everything is computed and stored in f64. Three parameters, p0 [5, 7], p1 [11], p2 []: p1 has a gradient in every third
step only, p2 from the third step on.

  p<i>                          at the start
  grad.<i>                      [10, ...], of every step; those that takes_part() leaves out were not given
  <case>.at<n>.p<i>             after n = 5 and n = 10 steps
  <case>.at<n>.p<i>.<state>     the optimizer's state by its own name; zeros where it had none yet
  <case>.at<n>.p<i>.step        i64, how many steps had a gradient

The metadata holds every case's optimizer and settings.
"""
import json
import os

import torch

from safetensors_file import save

SHAPES, STEPS, SAVED = [(5, 7), (11,), ()], 10, (5, 10)
CASES = {
    "sgd": ("SGD", {"lr": 0.05, "weight_decay": 0.1}),
    "sgd_momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd_dampening": ("SGD", {"lr": 0.05, "momentum": 0.8, "dampening": 0.3}),
    "sgd_nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adam": ("Adam", {}),
    "adam_decay": ("Adam", {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    "adam_amsgrad": ("Adam", {"lr": 0.02, "betas": (0.9, 0.5), "amsgrad": True}),
    "adamw": ("AdamW", {}),
    "adamw_amsgrad": ("AdamW", {"lr": 0.02, "betas": (0.9, 0.5), "weight_decay": 0.1, "amsgrad": True}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop_momentum": ("RMSprop", {"lr": 0.02, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    "rmsprop_centered": ("RMSprop", {"lr": 0.02, "alpha": 0.9, "centered": True, "eps": 1e-3}),
    "rmsprop_both": ("RMSprop", {"lr": 0.02, "alpha": 0.9, "centered": True, "momentum": 0.5, "eps": 1e-3}),
    "adagrad": ("Adagrad", {}),
    "adagrad_decay": ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5,
                                  "eps": 1e-6}),
}
STATES = {"SGD": ["momentum_buffer"], "Adam": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
          "AdamW": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
          "RMSprop": ["square_avg", "grad_avg", "momentum_buffer"], "Adagrad": ["sum"]}


def takes_part(step: int, parameter: int) -> bool:
    return step % 3 == 0 if parameter == 1 else parameter == 0 or step >= 2


def state_of(optimizer, parameters, name: str, kind: str) -> dict[str, torch.Tensor]:
    kept = [key for key in STATES[kind] if any(key in optimizer.state[p] and optimizer.state[p][key] is not None
                                               for p in parameters)]
    return {f"{name}.p{i}.{key}": optimizer.state[p].get(key, torch.zeros_like(p)).clone()
            for i, p in enumerate(parameters) for key in kept}


def run(name: str, start: list[torch.Tensor], gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    kind, settings = CASES[name]
    parameters = [p.clone().requires_grad_() for p in start]
    optimizer, out = getattr(torch.optim, kind)(parameters, **settings), {}
    for step in range(STEPS):
        for i, p in enumerate(parameters):
            p.grad = gradients[i][step].clone() if takes_part(step, i) else None
        optimizer.step()
        if step + 1 not in SAVED:
            continue
        at = f"{name}.at{step + 1}"
        out |= {f"{at}.p{i}": p.detach().clone() for i, p in enumerate(parameters)}
        state = state_of(optimizer, parameters, at, kind)
        out |= state
        if state:
            out |= {f"{at}.p{i}.step": torch.tensor(sum(takes_part(k, i) for k in range(step + 1)))
                    for i in range(len(parameters))}
    return out


def main() -> None:
    torch.manual_seed(4321)
    start = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    gradients = [torch.randn((STEPS, *shape), dtype=torch.float64) for shape in SHAPES]
    out = {f"p{i}": p for i, p in enumerate(start)} | {f"grad.{i}": g for i, g in enumerate(gradients)}
    for name in CASES:
        out |= run(name, start, gradients)
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optim.safetensors"), out,
         {"torch": torch.__version__, "cases": json.dumps(CASES)})


if __name__ == "__main__":
    main()
