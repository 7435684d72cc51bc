"""ELMoForManyLangs in miniature: random releases, and their vectors one word and one step at a time, in float64.

Written from the description of the released code, and sharing nothing with the model but the files. `mistake` makes
the reference wrong in one way, so that a test can show that its sentences would tell.
"""

import json
import unicodedata
from pathlib import Path

import numpy as np
import torch


SIZES = {
    "encoder": {"name": "elmo", "projection_dim": 5, "cell_clip": 1.2, "proj_clip": 0.7, "dim": 11, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [4, 6]],
        "n_highway": 2,
        "word_dim": 6,
        "char_dim": 4,
        "max_characters_per_token": 9,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8192},
    "dropout": 0.1,
}
# In no order, as in the releases. In a file, the line of U+3000 is white space and a number.
CHARACTERS = [*"<bos>T", "é", "我", "\U0001f409", ",", "，", *"tak$-", "\u3000", *"eS/", "ﬁ", *"fi"]
SPECIALS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "我", ",", "Tao", "tao", "\u3000", "a b", "katakat", "été", "ete", "fia"]

SENTENCES = [
    ["Tao", "été", "我", "，", "\U0001f409-\U0001f409", "."],
    ["katakatbosTe", "a b", " a b", "\u3000", "", "kéékéékéék"],
    ["<bos>", "<pad>", "<S>", "</S>", "<eos>", "<oov>", "zz$z", "T"],
    ["e\u0301te\u0301", "ﬁa", "TAO", "tao", "Tao", ","],
    ["ok"],
]


def sizes(**changes: object) -> dict:
    """SIZES with other values for some keys of its sections."""
    sections = {name: dict(SIZES[name]) for name in ("encoder", "token_embedder")}
    for section in sections.values():
        section |= {key: changes.pop(key) for key in [*changes] if key in section}
    return SIZES | sections | changes


def random_tensors(given: dict, characters: int, words: int) -> dict[str, dict[str, torch.Tensor]]:
    """Random values under the names and in the shapes of a release with these sizes, by file."""
    encoder, embedder = given["encoder"], given["token_embedder"]
    features = sum(count for _, count in embedder["filters"])
    size, cells = encoder["projection_dim"], encoder["dim"]
    shapes = {"char_emb_layer.embedding.weight": (characters, embedder["char_dim"])}
    if embedder["word_dim"]:
        shapes["word_emb_layer.embedding.weight"] = (words, embedder["word_dim"])
    for number, (width, count) in enumerate(embedder["filters"]):
        shapes[f"convolutions.{number}.weight"] = (count, embedder["char_dim"], width)
        shapes[f"convolutions.{number}.bias"] = (count,)
    for number in range(embedder["n_highway"]):
        shapes[f"highways._layers.{number}.weight"] = (2 * features, features)
        shapes[f"highways._layers.{number}.bias"] = (2 * features,)
    shapes |= {"projection.weight": (size, embedder["word_dim"] + features), "projection.bias": (size,)}
    layers = {}
    for name in (f"{side}_layer_{n}" for n in range(encoder["n_layers"]) for side in ("forward", "backward")):
        layers |= {f"{name}.input_linearity.weight": (4 * cells, size), f"{name}.state_linearity.bias": (4 * cells,)}
        layers |= {
            f"{name}.state_linearity.weight": (4 * cells, size),
            f"{name}.state_projection.weight": (size, cells),
        }
    generator = torch.Generator().manual_seed(0)
    return {
        file: {name: torch.randn(shape, generator=generator) * 0.6 for name, shape in each.items()}
        for file, each in (("token_embedder.pkl", shapes), ("encoder.pkl", layers))
    }


def write_pickle(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    torch.save(tensors, path, _use_new_zipfile_serialization=False)  # as torch 0.4 wrote them


def write_release(
    folder: Path, characters: list[str] = CHARACTERS, words: list[str] = WORDS, **changes: object
) -> Path:
    """A release with these characters, words and sizes."""
    given = sizes(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"seed": 1, "config_path": "/Users/me/sizes.json"}))
    (folder / "sizes.json").write_text(json.dumps(given))
    for name, tokens in (("char.dic", characters + SPECIALS), ("word.dic", words)):
        lines = [f"{token}\t{row}\n" for row, token in enumerate(tokens)]
        (folder / name).write_bytes("".join(lines).encode())
    for file, tensors in random_tensors(given, len(characters + SPECIALS), len(words)).items():
        write_pickle(folder / file, tensors)
    return folder


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def read_dictionary(path: Path, mistake: str | None) -> dict[str, int]:
    rows = {}
    for line in path.read_bytes().decode().split("\n")[:-1]:
        fields = line.strip().split("\t")
        if len(fields) == 1 and mistake == "line of one field skipped":
            continue
        rows["\u3000" if len(fields) == 1 else fields[0]] = int(fields[-1])
    return rows


class Reference:
    """The released code's vectors."""

    def __init__(self, folder: Path, given: dict | None = None, mistake: str | None = None):
        if given is None:
            name = json.loads((folder / "config.json").read_text())["config_path"].split("/")[-1]
            given = json.loads((folder / name).read_text())
        self.encoder, self.embedder, self.mistake = given["encoder"], given["token_embedder"], mistake
        self.w = {}
        for file in ("token_embedder.pkl", "encoder.pkl"):
            state = torch.load(folder / file, map_location="cpu", weights_only=True)
            self.w |= {name: value.double().numpy() for name, value in state.items()}
        self.characters = read_dictionary(folder / "char.dic", mistake)
        self.words = read_dictionary(folder / "word.dic", mistake) if self.embedder["word_dim"] else {}
        self.state = {}  # of each row, where it ended

    def cut(self, word: str) -> str:
        limit = self.embedder["max_characters_per_token"] - 2
        if self.mistake == "cut by bytes":
            return word.encode()[:limit].decode("utf-8", "ignore")
        return word[max(len(word) - limit, 0) :] if self.mistake == "end kept" else word[:limit]

    def letters(self, word: str) -> list[str]:
        """The names of the rows of a word."""
        begin, end = "<eow>", "<bow>"
        if self.mistake == "marks as named":
            begin, end = end, begin
        if self.mistake == "<S> is a mark" and word in ("<S>", "</S>"):
            word = {"<S>": "<bos>", "</S>": "<eos>"}[word]
        inner = [*word]
        if word in ("<bos>", "<eos>") and self.mistake != "marks spelled":
            inner = [word]
        elif self.mistake in ("NFC", "NFKC"):
            inner = [*unicodedata.normalize(self.mistake, word)]
        elif self.mistake == "lower case of characters":
            inner = [*word.lower()]
        inner = inner[: self.embedder["max_characters_per_token"] - 2]
        unknown = {"unknown characters as padding": ["<pad>"], "unknown characters left out": []}
        spelled = [[c] if c in self.characters else unknown.get(self.mistake, ["<oov>"]) for c in inner]
        return [begin, *sum(spelled, []), end]

    def word(self, word: str) -> np.ndarray:
        whole, word = word, self.cut(word)
        names = self.letters(word)
        width = self.embedder["max_characters_per_token"]
        rows = self.w["char_emb_layer.embedding.weight"]
        letters = rows[[self.characters[name] for name in names + ["<pad>"] * (width - len(names))]]
        if self.mistake == "padding is zero":
            letters = np.where(np.arange(width)[:, None] < len(names), letters, 0)
        features = []
        for number, (size, _) in enumerate(self.embedder["filters"]):
            kernel, bias = self.w[f"convolutions.{number}.weight"], self.w[f"convolutions.{number}.bias"]
            last = width if self.mistake != "padding not in the maximum" else max(len(names), size)
            windows = [
                np.einsum("cew,we->c", kernel, letters[start : start + size]) for start in range(last - size + 1)
            ]
            features.append(np.max(windows, axis=0) + bias)
        x = np.concatenate(features)
        activation = "tanh" if self.mistake == "tanh" else self.embedder["activation"]
        if self.mistake != "no activation":
            x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0)
        for number in range(self.embedder["n_highway"]):
            both = self.w[f"highways._layers.{number}.weight"] @ x + self.w[f"highways._layers.{number}.bias"]
            new, gate = np.split(both, 2)
            if self.mistake == "halves swapped":
                new, gate = gate, new
            gate = 1 - sigmoid(gate) if self.mistake == "gate of the other sense" else sigmoid(gate)
            x = gate * x + (1 - gate) * np.maximum(new, 0)
        if self.embedder["word_dim"]:
            parts = [self.look_up(whole if self.mistake == "looked up before the cut" else word), x]
            x = np.concatenate(parts[::-1] if self.mistake == "characters first" else parts)
        return self.w["projection.weight"] @ x + self.w["projection.bias"]

    def look_up(self, word: str) -> np.ndarray:
        table = self.w["word_emb_layer.embedding.weight"]
        if self.mistake == "lower case of words":
            word = word.lower()
        if self.mistake == "words stripped":
            word = word.strip()
        if word not in self.words and self.mistake == "no vector of unknown words":
            return np.zeros(table.shape[1])
        return table[self.words.get(word, self.words["<oov>"])]

    def run(self, name: str, inputs: list[np.ndarray], state: tuple) -> tuple[list[np.ndarray], tuple]:
        h, c = state
        clips = [self.encoder[clip] or np.inf for clip in ("cell_clip", "proj_clip")]
        if self.mistake == "clips swapped":
            clips.reverse()
        for number, mistake in enumerate(("no cell clip", "no projection clip")):
            if self.mistake == mistake:
                clips[number] = np.inf
        outputs = []
        for x in inputs:
            sums = self.w[f"{name}.input_linearity.weight"] @ x + self.w[f"{name}.state_linearity.weight"] @ h
            sums = sums + self.w[f"{name}.state_linearity.bias"]
            i, f, g, o = np.split(sums, 4)
            if self.mistake == "gates i, g, f, o":
                f, g = g, f
            f = f + 1 if self.mistake == "forget bias added" else f
            c = np.clip(sigmoid(i) * np.tanh(g) + sigmoid(f) * c, -clips[0], clips[0])
            h = np.clip(self.w[f"{name}.state_projection.weight"] @ (sigmoid(o) * np.tanh(c)), -clips[1], clips[1])
            outputs.append(h)
        return outputs, (h, c)

    def layers(self, sentence: list[str], row: int | None = None) -> np.ndarray:
        """(L + 1, words, 2P) of a sentence, from zeros or from where this row of the batch before ended."""
        marks = [["<bos>"], ["<eos>"]]
        if self.mistake == "no marks":
            marks = [[], []]
        words = [self.word(word) for word in (*marks[0], *sentence, *marks[1])]
        zeros = (np.zeros(self.encoder["projection_dim"]), np.zeros(self.encoder["dim"]))
        sides = []
        for side, step in (("forward", 1), ("backward", -1)):
            states, layers = words[::step], [words]
            for number in range(self.encoder["n_layers"]):
                start = self.state.get((row, side, number), zeros)
                outputs, end = self.run(f"{side}_layer_{number}", states, start)
                if row is not None:
                    self.state[row, side, number] = end
                skips = (number > 0 or self.mistake == "skip on layer 1") and self.mistake != "no skip"
                states = [y + x for y, x in zip(outputs, states, strict=True)] if skips else outputs
                layers.append(states[::step])
            sides.append(np.array(layers)[:, len(marks[0]) : len(words) - len(marks[1])])
        return np.concatenate(sides, -1)


# The mistakes of the table that comes with the released code's vectors.
MISTAKES = [
    "marks as named", "padding is zero", "padding not in the maximum", "tanh", "no activation",
    "gate of the other sense", "halves swapped", "characters first", "gates i, g, f, o", "forget bias added",
    "no marks", "marks spelled", "no skip", "skip on layer 1", "clips swapped", "no cell clip", "no projection clip",
    "cut by bytes", "end kept", "looked up before the cut", "lower case of characters", "lower case of words", "NFC",
    "NFKC", "unknown characters as padding", "unknown characters left out", "no vector of unknown words",
    "<S> is a mark", "words stripped", "line of one field skipped",
]  # fmt: skip
