# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""ELMo's word layer: a word's characters -> convolutions -> maximum over positions -> highway layers -> projection.

Section 3.4 of the paper, and Kim et al. 2016 (arXiv 1508.06615); released code: allenai/bilm-tf, `bilm/model.py`. No
step looks beyond a word, so each distinct word of a batch is computed once. Of the 50 letters of a word, only as many
are computed as the longest word has, since all windows of padding give the same number.

Models of ELMoForManyLangs (Che et al. 2018, K18-2005; HIT-SCIR/ELMoForManyLangs, `modules/token_embedder.py`) have
vectors of whole words, too: the last number of a word's row is its place among them, and the projection reads both.

Letters: N words, U distinct words, K ids of a word, E size of a character's embedding, F filters in all, D size of a
whole word's vector or 0, P size of the projection.
"""

import torch
import torch.nn as nn
from transformers import initialization as init

from ..shared.modeling_onednn import Linear, linear, needs_static_shapes
from ..shared.modeling_parameters import weight_of
from .configuration_elmo import ElmoConfig
from .tokenization_elmo_spelling import Marks


SMALLEST_GROUP = 64  # the fewest words that are convolved together


class ElmoHighway(nn.Module):
    """g * relu(Tx) + (1 - g) * x with g = sigmoid(Cx) (Srivastava et al. 2015, arXiv 1505.00387)."""

    def __init__(self, size: int):
        super().__init__()
        self.transform = Linear(size, size)
        self.carry = Linear(size, size)  # named as in the released code, but a high gate takes the transform

    def reset(self) -> None:
        for part, bias in ((self.transform, 0.0), (self.carry, -2.0)):  # -2: at first, most is the input itself
            init.normal_(part.weight, std=part.in_features**-0.5)
            init.constant_(part.bias, bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        gate = self.carry(inputs).sigmoid()
        transformed = self.transform(inputs).relu()
        return inputs.lerp(transformed, gate)  # (..., F)


class ElmoTokenEncoder(nn.Module):
    def __init__(self, config: ElmoConfig):
        super().__init__()
        filters = sum(count for _, count in config.filters)
        self.char_embeddings = nn.Embedding(config.vocab_size, config.char_embedding_size, padding_idx=0)
        self.convolutions = nn.ModuleList(
            [nn.Conv1d(config.char_embedding_size, count, width) for width, count in config.filters]
        )
        self.highways = nn.ModuleList([ElmoHighway(filters) for _ in range(config.num_highway_layers)])
        self.letters = config.max_characters_per_token  # columns of them, in a row of ids
        self.word_padding = Marks.of(config.vocab_size).word_padding
        projects = filters != config.projection_size  # as in the released code
        # CODEPATH: only the models of ELMoForManyLangs have vectors of whole words.
        if config.lexicon_size:
            self.lexicon_vectors = nn.Embedding(config.lexicon_size, config.lexicon_vector_size, padding_idx=0)
            filters, projects = filters + config.lexicon_vector_size, True
        self.projection = Linear(filters, config.projection_size) if projects else None
        # CODEPATH: the released models have ReLU; the released code also offers tanh.
        self.activation = torch.tanh if config.char_activation == "tanh" else torch.relu
        self.tanh = config.char_activation == "tanh"
        self.widest = max(width for width, _ in config.filters)

    def reset(self) -> None:
        """The initial values of the released code. The highway layers have a `reset` of their own."""
        init.uniform_(self.char_embeddings.weight, -1.0, 1.0)
        if not getattr(self.char_embeddings.weight, "_is_hf_initialized", False):  # read from a checkpoint
            init.zeros_(self.char_embeddings.weight[0])
        for convolution in self.convolutions:
            if self.tanh:
                init.normal_(convolution.weight, std=(convolution.weight[0].numel()) ** -0.5)
            else:
                init.uniform_(convolution.weight, -0.05, 0.05)
            init.zeros_(convolution.bias)
        if self.projection is not None:
            init.normal_(self.projection.weight, std=self.projection.in_features**-0.5)
            init.zeros_(self.projection.bias)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(..., K) -> (..., P), each word by itself. Callers save most of the work by passing `distinct` words."""
        words = input_ids.flatten(0, -2)  # (N, K)
        every_column = needs_static_shapes(words)
        letters = words[:, : self.letters]
        pooled = self.convolve(letters) if every_column else self.pool_by_length(letters)
        states = self.activation(pooled)  # (N, F); the activation is monotonic, so it may follow the maximum
        for highway in self.highways:
            states = highway(states)
        if hasattr(self, "lexicon_vectors"):
            states = torch.cat([self.lexicon_vectors(words[:, self.letters]), states], -1)  # (N, D + F)
        if self.projection is not None:
            states = self.projection(states)
        return states.unflatten(0, input_ids.shape[:-1])

    def convolve(self, words: torch.Tensor) -> torch.Tensor:
        """As `pool`, without windows that overlap in memory, which XLA lacks."""
        characters = self.char_embeddings(words).transpose(1, 2)  # (N, E, K)
        return torch.cat([convolution(characters).amax(-1) for convolution in self.convolutions], 1)

    def pool(self, words: torch.Tensor) -> torch.Tensor:
        """The maximum of each filter over its windows: (N, K) -> (N, F). One product for each width."""
        characters = self.char_embeddings(words).flatten(1)  # (N, K * E)
        pooled = []
        for convolution in self.convolutions:
            weight = weight_of(convolution)
            _, size, width = weight.shape
            windows = characters.unfold(1, width * size, size)  # (N, K - width + 1, width * E)
            weight = weight.transpose(1, 2).flatten(1)  # (filters, width * E)
            pooled.append(linear(windows, weight, convolution.bias).amax(1))
        return torch.cat(pooled, 1)

    def pool_by_length(self, words: torch.Tensor) -> torch.Tensor:
        """As `pool`, in groups of words of similar length, with only the columns that the longest word of each needs.

        These include one window of padding for the widest filter, if the words have one.
        """
        columns = torch.arange(1, words.shape[1] + 1, device=words.device)
        lengths, order = ((words != self.word_padding) * columns).amax(1).sort()
        size = max(SMALLEST_GROUP, len(words) // 8)
        pooled = [
            self.pool(words[rows, : int(ends[-1]) + self.widest])
            for rows, ends in zip(order.split(size), lengths.split(size), strict=True)
        ]
        return torch.cat(pooled).index_select(0, order.argsort())


def hash_rows(rows: torch.Tensor) -> torch.Tensor:
    """A hash of each row, (N, K) -> (N,). Two different rows have the same one with a probability of 1 in 2^64."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, (rows.shape[1],), generator=generator).to(rows.device)
    return (rows * factors).sum(1)  # modulo 2^64


def distinct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct rows (U, K) of (N, K), in any order, and the index among them of each of the N rows.

    Hashes are sorted, which is faster than sorting rows. If two different rows share a hash, the rows are sorted.
    """
    _, indices = hash_rows(rows).unique(return_inverse=True)
    places = torch.empty(int(indices.max()) + 1, dtype=torch.long, device=rows.device)
    places[indices] = torch.arange(len(rows), device=rows.device)  # the place of one row of each hash
    candidates = rows[places]
    is_exact = torch.equal(candidates[indices], rows)
    return (candidates, indices) if is_exact else rows.unique(dim=0, return_inverse=True)
