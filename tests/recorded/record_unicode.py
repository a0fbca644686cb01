"""Writes ../../src/data/text/unicode.txt: what Hugging Face's tokenizers do with each of Unicode's characters.

Their tables come from different libraries and are of different versions of Unicode. A model has learned from what these
give, so they are asked for every character, and the same text becomes the same tokens here.
"""
import os
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
FIRST_HANGUL, LAST_HANGUL = 0xAC00, 0xD7A3  # decomposed by a formula

HEAD = '''# What Hugging Face's tokenizers %s do with each of Unicode's characters, made by tests/recorded/record_unicode.py: not to be
# edited. cmake/TriremeUnicode.cmake makes tables of it, for src/data/text/unicode.c. Numbers are hexadecimal.
'''


def normalizer(**on: bool) -> normalizers.BertNormalizer:
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(off | on))


def ranges(members: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for c in members:
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def steps(mapping: dict[int, int]) -> list[list[int]]:
    """[first, last, every, distance]: characters first, first + every, … last become themselves plus distance."""
    found: list[list[int]] = []
    for c, to in sorted(mapping.items()):
        last = found[-1] if found else None
        if last and last[3] == to - c and (c - last[1] == last[2] or (last[0] == last[1] and c - last[1] <= 2)):
            last[2], last[1] = c - last[1], c
        else:
            found.append([c, c, 1, to - c])
    return found


def runs_of_one_length(mapping: dict[int, str]) -> list[tuple[int, list[str]]]:
    """(first, [to, …]): characters one behind the other, all of which become as many others."""
    found: list[tuple[int, list[str]]] = []
    for c, to in sorted(mapping.items()):
        if found and found[-1][0] + len(found[-1][1]) == c and len(found[-1][1][0]) == len(to):
            found[-1][1].append(to)
        else:
            found.append((c, [to]))
    return found


def write_rows(file, name: str, rows: list[tuple[int, ...]]) -> None:
    line = name
    for row in rows:
        text = ",".join(f"{number:x}" for number in row)
        if len(line) + len(text) + 1 > 132:
            file.write(line + "\n")
            line = name
        line += " " + text
    file.write(line + "\n")


def write_ranges(file, name: str, members: list[int]) -> None:
    write_rows(file, name, [(a, b) for a, b in ranges(members)])


def classes(file) -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str

    def joins(c: int, other: str) -> bool:
        return len(split(other + chr(c) + other)) == 1

    letters = [c for c in CHARACTERS if joins(c, "a")]
    numbers = [c for c in CHARACTERS if joins(c, "1")]
    neither = set(letters) | set(numbers)
    write_ranges(file, "letters", letters)
    write_ranges(file, "numbers", numbers)
    write_ranges(file, "spaces", [c for c in CHARACTERS if c not in neither and not joins(c, "!")])


def bert_classes(file) -> None:
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    clean = normalizer(clean_text=True).normalize_str
    strip = normalizer(strip_accents=True).normalize_str
    write_ranges(file, "punctuation", [c for c in CHARACTERS if len(split("a" + chr(c) + "a")) == 3])
    write_ranges(file, "removed", [c for c in CHARACTERS if clean(chr(c)) == ""])
    write_ranges(file, "cleaned_to_space", [c for c in CHARACTERS if clean(chr(c)) == " "])
    write_ranges(file, "accents", [c for c in CHARACTERS if strip(chr(c)) == ""])


def bert_mappings(file) -> None:
    lower, strip = normalizer(lowercase=True).normalize_str, normalizer(strip_accents=True).normalize_str
    mapping = {c: lower(chr(c)) for c in CHARACTERS if lower(chr(c)) != chr(c)}
    longer = {c: to for c, to in mapping.items() if len(to) != 1}
    assert longer == {0x130: "i\u0307"}, longer  # in unicode.c
    write_rows(file, "lower", [(a, b, every, by) for a, b, every, by in
                               steps({c: ord(to) for c, to in mapping.items() if len(to) == 1})])

    bare = {c: strip(chr(c)) for c in CHARACTERS if not FIRST_HANGUL <= c <= LAST_HANGUL}
    bare = {c: to for c, to in bare.items() if to not in ("", chr(c))}
    assert max(map(len, bare.values())) <= 3
    assert all(strip(chr(c)) == unicodedata.normalize("NFD", chr(c)) for c in range(FIRST_HANGUL, LAST_HANGUL + 1))
    runs = runs_of_one_length(bare)
    at, rows, texts = 0, [], []
    for first, of_each in runs:
        length = len(of_each[0])
        rows.append((first, first + len(of_each) - 1, length, at))
        at += length * len(of_each)
        texts += [(ord(x),) for to in of_each for x in to]
    write_rows(file, "bare", rows)
    write_rows(file, "bare_texts", texts)


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../src/data/text/unicode.txt"), "w", encoding="ascii") as file:
        file.write(HEAD % tokenizers.__version__)
        classes(file)
        bert_classes(file)
        bert_mappings(file)


if __name__ == "__main__":
    main()
