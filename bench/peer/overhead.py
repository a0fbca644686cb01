"""The PyTorch peer of bench/overhead: what ops cost besides their arithmetic, on one thread, over 64 numbers of f32."""
import statistics
import time

import torch

NUMBERS, IN_A_ROW, REPEATS = 64, 1000, 100


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(NUMBERS)
    w, b = torch.randn(NUMBERS, requires_grad=True), torch.randn(NUMBERS, requires_grad=True)

    def one_op() -> None:
        torch.add(x, x)

    def one_recorded_op() -> None:
        torch.add(x, b)

    def four_ops_and_back() -> None:
        w.grad = b.grad = None
        torch.relu(x * w + b).sum().backward()

    for name, run in [("an op", one_op), ("an op, recorded", one_recorded_op),
                      ("four ops forward and back", four_ops_and_back)]:
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            for _ in range(IN_A_ROW):
                run()
            times.append((time.perf_counter() - begin) * 1e6 / IN_A_ROW)
        print(f"{name:28} {statistics.median(times):6.3f} us")


if __name__ == "__main__":
    main()
