"""ELMo's biLM the slow way: one word, one window, one gate at a time, in float64. What its tests compare with.

Written from the paper and the released code's description, and sharing nothing with the model but its weights.
"""

import torch

from modeling import ElmoConfig, ElmoModel


BEGIN, END = b"\xfe", b"\xff"  # stand for <S> and </S>, which no UTF-8 text contains
MARKS = {BEGIN: 257, END: 258}


def small_config(**changes) -> ElmoConfig:
    """Odd sizes, none like another, so that swapped axes fail."""
    sizes = {"char_embedding_size": 5, "filters": [[1, 4], [2, 3], [4, 6]], "hidden_size": 14, "cell_size": 11}
    sizes |= {"max_characters_per_token": 12, "num_highway_layers": 2, "lm_vocab_size": 17, "num_sampled": 0}
    return ElmoConfig(**(sizes | {"hidden_dropout_prob": 0.0, "mix_dropout": 0.0, "state": "zero"} | changes))


def small_model(**changes) -> ElmoModel:
    """Weights large enough for gates, activations and clips to matter."""
    model = ElmoModel(small_config(**changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mixes" not in name:
                parameter.copy_(torch.randn(parameter.shape) * (0.5 if "char" in name else 0.4))
        model.token_encoder.char_embeddings.weight[0] = 0
    return model.eval()


def ids_of(word: str | bytes, columns: int) -> list[int]:
    """The ids of one word: a mark, the bytes that fit, a mark, padding; all one more than released."""
    characters = [MARKS[word]] if word in MARKS else [byte + 1 for byte in word.encode("utf-8")]
    ids = [259, *characters[: columns - 2], 260]
    return ids + [261] * (columns - len(ids))


def batch_of(sentences: list[list[str]], columns: int, side: str = "right", width: int = 0) -> torch.Tensor:
    """(rows, words, columns), rows padded with zeros on one side."""
    width = max([width, *map(len, sentences)])
    batch = torch.zeros(len(sentences), width, columns, dtype=torch.long)
    for row, words in enumerate(sentences):
        start = 0 if side == "right" else width - len(words)
        for place, word in enumerate(words, start=start):
            batch[row, place] = torch.tensor(ids_of(word, columns))
    return batch


class Reference:
    """Computes the layers of sentences with a model's weights, kept as float64 leaves that collect gradients."""

    def __init__(self, model: ElmoModel):
        self.config = model.config
        self.w = {name: value.detach().double().clone() for name, value in model.state_dict().items()}
        for value in self.w.values():
            value.requires_grad_()
        self.words = {}  # the vectors of those met so far

    def word(self, word: str | bytes) -> torch.Tensor:
        """The word layer's vector (P,)."""
        characters = [self.w["token_encoder.char_embeddings.weight"][i] for i in self.ids(word)]
        pooled = []
        for number, (width, _) in enumerate(self.config.filters):
            weight = self.w[f"token_encoder.convolutions.{number}.weight"]  # (n, e, w)
            bias = self.w[f"token_encoder.convolutions.{number}.bias"]
            windows = []
            for start in range(len(characters) - width + 1):
                total = bias
                for offset in range(width):
                    total = total + weight[:, :, offset] @ characters[start + offset]
                windows.append(total)
            pooled.append(torch.stack(windows).amax(0))
        x = torch.cat(pooled)
        x = x.tanh() if self.config.char_activation == "tanh" else x.clamp(min=0)
        for k in range(self.config.num_highway_layers):
            part = lambda name, k=k: self.linear(f"token_encoder.highways.{k}.{name}", x)  # noqa: E731, B023
            gate = part("carry").sigmoid()
            x = gate * part("transform").clamp(min=0) + (1 - gate) * x
        return self.linear("token_encoder.projection", x) if "token_encoder.projection.weight" in self.w else x

    def ids(self, word: str | bytes) -> list[int]:
        return ids_of(word, self.config.max_characters_per_token)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = self.w[f"{name}.weight"] @ x
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def direction(self, words: list, side: str, states: list | None) -> tuple[list, list]:
        """The states of each layer for these words in this order, the word layer first; and where they end."""
        self.words |= {word: self.word(word) for word in dict.fromkeys(words) if word not in self.words}
        layers, ends = [[self.words[word] for word in words]], []
        size = self.config.cell_size
        for number in range(self.config.num_hidden_layers):
            name = f"layers.{number}.{side}_lstm"
            h = torch.zeros(self.config.projection_size).double() if states is None else states[number][0]
            c = torch.zeros(size).double() if states is None else states[number][1]
            outputs = []
            for x in layers[-1]:
                sums = self.linear(f"{name}.input", x) + self.w[f"{name}.recurrent.weight"] @ h
                i, f, g, o = (sums[gate * size : (gate + 1) * size] for gate in range(4))
                c = self.clip(f.sigmoid() * c + i.sigmoid() * g.tanh(), self.config.cell_clip)
                h = o.sigmoid() * c.tanh()
                if f"{name}.projection.weight" in self.w:
                    h = self.w[f"{name}.projection.weight"] @ h
                h = self.clip(h, self.config.proj_clip)
                outputs.append(h + x if number and self.config.use_skip_connections else h)
            layers.append(outputs)
            ends.append((h, c))
        return layers, ends

    @staticmethod
    def clip(x: torch.Tensor, limit: float | None) -> torch.Tensor:
        return x if limit is None else x.clamp(-limit, limit)

    def sentence(self, words: list[str], states: tuple = (None, None)) -> tuple[list[torch.Tensor], tuple]:
        """The layers (words, H) of one sentence, and both directions' states after its closing mark."""
        forward, end_f = self.direction([BEGIN, *words, END], "forward", states[0])
        backward, end_b = self.direction([END, *words[::-1], BEGIN], "backward", states[1])
        layers = []
        for ahead, behind in zip(forward, backward, strict=True):
            rows = [torch.cat([ahead[1 + p], behind[len(words) - p]]) for p in range(len(words))]
            layers.append(torch.stack(rows) if rows else torch.zeros(0, self.config.hidden_size).double())
        return layers, (end_f, end_b)
