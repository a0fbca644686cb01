"""Do torchvision, Hugging Face and Trireme read each other's models and get the same logits from them?

    python bench/peer/exchange.py BUILD

Both ways, through safetensors files with every parameter and statistic, strictly: a model that Trireme has trained a little,
loaded by the other, and one of the other's, loaded by Trireme (BUILD/bench/exchange): ResNet-18, ViT, BERT with either head,
GPT-2. What is tied to something else is in none of our files: the copies of the word embeddings in front of the logits and of
their bias. Prints how far the logits of the same inputs are apart, and fails above 1e-4 of their size.
"""
import os
import subprocess
import sys
import tempfile
from typing import Callable

import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file

VOCAB, WORDS = 64, 16
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "lm_head.weight"}


def vit() -> torch.nn.Module:
    return torchvision.models.VisionTransformer(image_size=64, patch_size=16, num_layers=3, num_heads=4, hidden_dim=64,
                                                mlp_dim=256, num_classes=10)


def bert(kind: type) -> torch.nn.Module:
    return kind(transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=32, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=64, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def images() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 3, 64, 64)}


def words() -> dict[str, torch.Tensor]:
    return {"x": torch.randint(0, VOCAB, (4, WORDS))}


def padded_words() -> dict[str, torch.Tensor]:
    return words() | {"mask": torch.arange(WORDS) < torch.tensor([[16], [9], [12], [3]])}


# Name, the model, inputs for it, and what its state dict has in front of our names.
Case = tuple[str, Callable[[], torch.nn.Module], Callable[[], dict], str]
CASES: list[Case] = [
    ("resnet18", lambda: torchvision.models.resnet18(num_classes=10), images, ""),
    ("vit", vit, images, ""),
    ("bert", lambda: bert(transformers.BertForMaskedLM), padded_words, ""),
    ("bert_classifier", lambda: bert(transformers.BertForSequenceClassification), padded_words, ""),
    ("gpt2", gpt2, words, "transformer."),
]


def logits_of(net: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    out = net(inputs["x"], attention_mask=inputs["mask"]) if "mask" in inputs else net(inputs["x"])
    return out if isinstance(out, torch.Tensor) else out.logits


def train_a_little(net: torch.nn.Module, make_inputs: Callable[[], dict]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        logits = logits_of(net, make_inputs())
        targets = torch.randint(0, 10, logits.shape[:-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()


def load_strictly(net: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    missing, unexpected = net.load_state_dict(weights, strict=False)
    if set(missing) - TIED or unexpected:
        sys.exit(f"missing {set(missing) - TIED}, unexpected {unexpected}")


def compare(what: str, exchange: str, case: Case, net: torch.nn.Module, model: str, folder: str) -> bool:
    inputs, answer = os.path.join(folder, "inputs"), os.path.join(folder, "logits")
    given = case[2]()
    save_file(given, inputs)
    subprocess.run([exchange, "logits", case[0], model, inputs, answer], check=True)
    with torch.no_grad():
        expected = logits_of(net.eval(), given)
    apart = ((load_file(answer)["logits"] - expected).abs().max() / expected.abs().max()).item()
    print(f"{case[0]}: {what}: logits differ by {apart:.1e} of the largest")
    return apart < 1e-4


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    exchange = os.path.join(sys.argv[1], "bench", "exchange")
    torch.manual_seed(1)
    good = True
    for case in CASES:
        name, make, make_inputs, prefix = case
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
            subprocess.run([exchange, "write", name, ours], check=True)
            net = make()
            load_strictly(net, {prefix + key: value for key, value in load_file(ours).items()})
            good = compare("Trireme's there", exchange, case, net, ours, folder) and good
            net = make()
            train_a_little(net, make_inputs)
            weights = {key: value for key, value in net.state_dict().items() if key not in TIED}
            save_file({key.removeprefix(prefix): value for key, value in weights.items()}, theirs)
            good = compare("theirs in Trireme", exchange, case, net, theirs, folder) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
