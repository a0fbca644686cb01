"""Records recurrent layers from PyTorch into recurrent.safetensors beside this script, as record_ops.py does: the inputs in0 (x,
batch first), in1 and in2 (the states), the output and the last states one behind the other as out, and the state dict."""
import os

import torch

from record_ops import Tensor, rand, record, record_module, recorded
from safetensors_file import save


def record_layer(case: str, layer: torch.nn.Module, *states: Tensor) -> None:
    layer = layer.double()

    def run(x: Tensor, *given: Tensor) -> Tensor:
        output, last = layer(x) if not given else layer(x, given if len(given) == 2 else given[0])
        last = last if isinstance(last, tuple) else (last,)
        return torch.cat([t.flatten() for t in (output, *last)])

    record(case, run, rand(3, 5, 4), *states)
    record_module(case, layer)


def main() -> None:
    torch.manual_seed(4321)
    recorded.clear()
    nn = torch.nn
    record_layer("rnn", nn.RNN(4, 6, batch_first=True))
    record_layer("rnn_relu", nn.RNN(4, 6, nonlinearity="relu", bias=False, batch_first=True), rand(1, 3, 6))
    record_layer("lstm", nn.LSTM(4, 6, batch_first=True))
    record_layer("lstm_deep", nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True), rand(4, 3, 6), rand(4, 3, 6))
    record_layer("gru", nn.GRU(4, 6, batch_first=True), rand(1, 3, 6))
    record_layer("gru_deep", nn.GRU(4, 6, num_layers=3, bidirectional=True, bias=False, batch_first=True))
    save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "recurrent.safetensors"), recorded,
         {"torch": torch.__version__, "computed_in": "f64"})


if __name__ == "__main__":
    main()
