"""Trains a byte-pair and two word-piece vocabularies with Hugging Face's tokenizers on tokenizers/corpus.txt, and records
what they make of texts, into tokenizers/ and tokenizers.safetensors beside this script.

  tokenizers/gpt2/vocab.json, merges.txt      a byte-pair vocabulary of 700, as `trireme tokenizer train` must find it
  tokenizers/gpt2.json                        the same as a tokenizer.json, with a special token behind
  tokenizers/bert/vocab.txt                   word pieces of small letters without accents, 700
  tokenizers/bert.json                        the same as a tokenizer.json
  tokenizers/cased/vocab.txt, tokenizer_config.json   word pieces with capitals and accents

tokenizers.safetensors: KIND.I, the ids of text I by gpt2.json, bert.json or cased; bert.pair.ids and bert.pair.types of
texts 1 and 2 together; KIND.decoded.I in the metadata what they are decoded to, text.I the texts.
"""
import json
import os
import random

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from safetensors_file import save

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "tokenizers")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

TEXTS = [
    "",
    "The quick brown fox jumps over the lazy dog.",
    "It's what we've said: they'll go, I'd stay, you're in, I'm out; don't 'S 'Re.",
    "  two  spaces   three\n\n\nnewlines\t\ttabs \r\n end  ",
    "naïve café résumé Ångström İstanbul ǅ ﬁne straße ΑΒΓ ς",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Съешь же ещё этих мягких французских булок.",
    "日本語の文章と漢字、한국어 문장도 있습니다。中文也有",
    "العربية والعبرية עברית हिन्दी ไทย",
    "emoji 👩\u200d👩\u200d👧 flags 🇩🇪 skin 👍🏽 zwj\u200dzwnj\u200c",
    "numbers 123 4.5e-6 ½ ² Ⅷ ٣٤ 一二三 1st 2nd x1y2",
    "controls \x01\x02 \x7f nbsp\u00a0thin\u2009ideographic\u3000line\u2028par\u2029nel\u0085bom\ufeff soft\u00adhyphen \ufffd",
    "a" * 100 + " " + "b" * 101 + " " + "é" * 100,
    "mask [MASK] it, <|endoftext|> and [UNK][SEP] then [mask] <|endoftext",
    "e\u0301 vs é, a\u0308\u0323 order, \u1100\u1161\u11a8 각",
    "(brackets) {braces} <angles> «guillemets» “quotes” – — … §¶ $1 +2=3 ~x^y `z` |",
    "unaffable unwanted running runner runs",
]


def random_text(seed: int, count: int) -> str:
    """Characters from all over Unicode, many of them between letters."""
    draw = random.Random(seed)
    parts = []
    for _ in range(count):
        c = draw.choice([draw.randrange(1, 0x300), draw.randrange(0x300, 0x3000), draw.randrange(0x10000),
                         draw.randrange(0x110000)])
        if not 0xD800 <= c <= 0xDFFF and c:
            parts.append(chr(c) + draw.choice(["", "", "a", "1", " ", "b "]))
    return "".join(parts)


def gpt2(corpus: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([corpus], trainer)
    tokenizer.model.save(os.path.join(OUT, "gpt2"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(os.path.join(OUT, "gpt2.json"))
    return tokenizer


def bert(corpus: str, cased: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=SPECIAL)
    tokenizer.train_from_iterator([corpus], trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = os.path.join(OUT, "cased" if cased else "bert")
    os.makedirs(folder, exist_ok=True)
    # A file of the trained order is not the same from run to run: sorted, behind the special tokens.
    words = SPECIAL + sorted(set(tokenizer.get_vocab()) - set(SPECIAL))
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(words) + "\n")
    tokenizer.model = models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    if cased:
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="ascii") as file:
            json.dump({"do_lower_case": False, "tokenizer_class": "BertTokenizer"}, file)
    else:
        tokenizer.save(os.path.join(OUT, "bert.json"))
    return tokenizer


def main() -> None:
    os.makedirs(os.path.join(OUT, "gpt2"), exist_ok=True)
    with open(os.path.join(OUT, "corpus.txt"), encoding="utf-8", newline="") as file:
        corpus = file.read()
    texts = TEXTS + [random_text(seed, 400) for seed in range(8)]
    out: dict[str, torch.Tensor] = {}
    metadata = {f"text.{i}": text for i, text in enumerate(texts)}
    for kind, tokenizer in {"gpt2": gpt2(corpus), "bert": bert(corpus, False), "cased": bert(corpus, True)}.items():
        for i, text in enumerate(texts):
            ids = tokenizer.encode(text).ids
            out[f"{kind}.{i}"] = torch.tensor(ids, dtype=torch.int64)
            metadata[f"{kind}.decoded.{i}"] = tokenizer.decode(ids)
        if kind == "bert":
            both = tokenizer.encode(texts[1], texts[2])
            out["bert.pair.ids"] = torch.tensor(both.ids)
            out["bert.pair.types"] = torch.tensor(both.type_ids)
    save(os.path.join(HERE, "tokenizers.safetensors"), out, metadata)


if __name__ == "__main__":
    main()
