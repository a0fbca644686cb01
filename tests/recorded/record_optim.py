"""Records ten steps of PyTorch's optimizers from given gradients, into optim.safetensors beside this script. Those that
PyTorch does not have are written here from their papers' formulas.

Everything is computed and stored in f64. Four parameters, p0 [5, 7], p1 [11], p2 [], p3 [6, 4]: p1 has a gradient in every
third step only, p2 and p3 from the third step on. Muon takes p0 and p3.

  p<i>                          at the start
  grad.<i>                      [10, ...], of every step; those that takes_part() leaves out were not given
  <case>.at<n>.p<i>             after n = 5 and n = 10 steps
  <case>.at<n>.p<i>.<state>     the optimizer's state by its own name; zeros where it had none yet
  <case>.at<n>.p<i>.step        i64, how many steps had a gradient

The metadata holds every case's optimizer and settings. Muon's iteration, which PyTorch has in bf16, is done in f64, but for
the case muon_bf16.
"""
import json
import os

import torch

from safetensors_file import save

SHAPES, STEPS, SAVED = [(5, 7), (11,), (), (6, 4)], 10, (5, 10)


class PaperOptimizer(torch.optim.Optimizer):
    """Calls update(p, g, state, t, **settings) for each parameter with a gradient."""

    def __init__(self, parameters, **settings) -> None:
        super().__init__(parameters, {**self.DEFAULTS, **settings})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            settings = {key: value for key, value in group.items() if key in self.DEFAULTS}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update({key: torch.zeros_like(p) for key in STATES[type(self).__name__]}, t=0)
                state["t"] += 1
                self.update(p, p.grad, state, state["t"], **settings)


class Lion(PaperOptimizer):
    """Chen et al. 2023, algorithm 2."""
    DEFAULTS = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}

    def update(self, p, g, state, t, lr, betas, weight_decay) -> None:
        m = state["exp_avg"]
        c = betas[0] * m + (1 - betas[0]) * g
        p.sub_(lr * (c.sign() + weight_decay * p))
        m.copy_(betas[1] * m + (1 - betas[1]) * g)


class LAMB(PaperOptimizer):
    """You et al. 2020, algorithm 2, with phi(z) = z; a ratio is 1 where a norm is 0."""
    DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, "matrices_only": False}

    def update(self, p, g, state, t, lr, betas, eps, weight_decay, matrices_only) -> None:
        m, v = state["exp_avg"], state["exp_avg_sq"]
        plain = matrices_only and p.dim() < 2
        m.copy_(betas[0] * m + (1 - betas[0]) * g)
        v.copy_(betas[1] * v + (1 - betas[1]) * g * g)
        r = (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        update = r if plain else r + weight_decay * p
        ratio = 1 if plain or p.norm() == 0 or update.norm() == 0 else p.norm() / update.norm()
        p.sub_(lr * ratio * update)


class LARS(PaperOptimizer):
    """You et al. 2017, algorithm 1; the local rate is 1 where a norm is 0."""
    DEFAULTS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "trust": 1e-3, "matrices_only": False}

    def update(self, p, g, state, t, lr, momentum, weight_decay, trust, matrices_only) -> None:
        v = state["momentum_buffer"]
        plain = matrices_only and p.dim() < 2
        decay = 0 if plain else weight_decay
        local = trust * p.norm() / (g.norm() + decay * p.norm())
        if plain or p.norm() == 0 or g.norm() == 0:
            local = 1
        v.copy_(momentum * v + lr * local * (g + decay * p))
        p.sub_(v)


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
    "adamax": ("Adamax", {}),
    "adamax_decay": ("Adamax", {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    "nadam": ("NAdam", {}),
    "nadam_decay": ("NAdam", {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.5}),
    "nadam_decoupled": ("NAdam", {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {}),
    "radam_decay": ("RAdam", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "radam_decoupled": ("RAdam", {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adadelta": ("Adadelta", {}),
    "adadelta_decay": ("Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1}),
    "rprop": ("Rprop", {}),
    "rprop_limits": ("Rprop", {"lr": 0.1, "etas": (0.4, 1.5), "step_sizes": (0.05, 0.2)}),
    "lion": ("Lion", {}),
    "lion_decay": ("Lion", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "lamb": ("LAMB", {}),
    "lamb_matrices": ("LAMB", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "matrices_only": True}),
    "lars": ("LARS", {}),
    "lars_decay": ("LARS", {"lr": 0.5, "momentum": 0.8, "weight_decay": 0.1, "trust": 0.05}),
    "lars_matrices": ("LARS", {"lr": 0.05, "weight_decay": 0.1, "trust": 0.1, "matrices_only": True}),
    "muon": ("Muon", {}),
    "muon_decay": ("Muon", {"lr": 0.02, "weight_decay": 0.05, "momentum": 0.8, "nesterov": False, "ns_steps": 3}),
    "muon_adamw": ("Muon", {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"}),
    "muon_bf16": ("Muon", {"lr": 0.02}),
}
STATES = {"SGD": ["momentum_buffer"], "Adam": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
          "AdamW": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
          "RMSprop": ["square_avg", "grad_avg", "momentum_buffer"], "Adagrad": ["sum"],
          "Adamax": ["exp_avg", "exp_inf"], "NAdam": ["exp_avg", "exp_avg_sq"], "RAdam": ["exp_avg", "exp_avg_sq"],
          "Adadelta": ["square_avg", "acc_delta"], "Rprop": ["prev", "step_size"], "Lion": ["exp_avg"],
          "LAMB": ["exp_avg", "exp_avg_sq"], "LARS": ["momentum_buffer"], "Muon": ["momentum_buffer"]}
IN_BF16 = torch.optim._muon._zeropower_via_newtonschulz
OURS = {"Lion": Lion, "LAMB": LAMB, "LARS": LARS}


def orthogonalized(d: torch.Tensor, coefficients, steps: int, eps: float) -> torch.Tensor:
    """PyTorch's iteration in d's own type."""
    a, b, c = coefficients
    o = d.T if d.size(0) > d.size(1) else d
    o = o / o.norm().clamp(min=eps)
    for _ in range(steps):
        gram = o @ o.T
        o = a * o + (b * gram + c * gram @ gram) @ o
    return o.T if d.size(0) > d.size(1) else o


def takes_part(step: int, parameter: int) -> bool:
    return step % 3 == 0 if parameter == 1 else parameter == 0 or step >= 2


def state_of(optimizer, parameters: dict[int, torch.Tensor], name: str, kind: str) -> dict[str, torch.Tensor]:
    kept = [key for key in STATES[kind] if any(key in optimizer.state[p] and optimizer.state[p][key] is not None
                                               for p in parameters.values())]
    return {f"{name}.p{i}.{key}": optimizer.state[p].get(key, torch.zeros_like(p)).clone()
            for i, p in parameters.items() for key in kept}


def run(name: str, start: list[torch.Tensor], gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    kind, settings = CASES[name]
    parameters = {i: p.clone().requires_grad_() for i, p in enumerate(start) if kind != "Muon" or p.dim() == 2}
    make = OURS.get(kind) or getattr(torch.optim, kind)
    optimizer, out = make(list(parameters.values()), **settings), {}
    torch.optim._muon._zeropower_via_newtonschulz = IN_BF16 if name == "muon_bf16" else orthogonalized
    for step in range(STEPS):
        for i, p in parameters.items():
            p.grad = gradients[i][step].clone() if takes_part(step, i) else None
        optimizer.step()
        if step + 1 not in SAVED:
            continue
        at = f"{name}.at{step + 1}"
        out |= {f"{at}.p{i}": p.detach().clone() for i, p in parameters.items()}
        state = state_of(optimizer, parameters, at, kind)
        out |= state
        if state:
            out |= {f"{at}.p{i}.step": torch.tensor(sum(takes_part(k, i) for k in range(step + 1))) for i in parameters}
    return out


def main() -> None:
    torch.set_default_dtype(torch.float64)  # also of NAdam's mu_product
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
