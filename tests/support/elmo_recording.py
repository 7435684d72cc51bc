"""The recorded training of the released TensorFlow graph: its batches, and its variables before and after."""

import numpy as np
import torch

from modeling import ElmoConfig, ElmoForPreTraining


UNROLL = 10
MOVED = {  # the released variable, ours, how to lay it out
    "char_embed": ("token_encoder.char_embeddings.weight", lambda v: np.pad(v, ((1, 0), (0, 0)))),
    "CNN_proj/W_proj": ("token_encoder.projection.weight", np.transpose),
    "CNN_proj/b_proj": ("token_encoder.projection.bias", np.asarray),
    **{
        f"CNN/W_cnn_{i}": (f"token_encoder.convolutions.{i}.weight", lambda v: v[0].transpose(2, 1, 0))
        for i in range(5)
    },
    **{f"CNN/b_cnn_{i}": (f"token_encoder.convolutions.{i}.bias", np.asarray) for i in range(5)},
    **{
        f"CNN_high_{k}/{part}_{name}": (f"token_encoder.highways.{k}.{name}.{ours}", move)
        for k in range(2)
        for name in ("carry", "transform")
        for part, ours, move in (("W", "weight", np.transpose), ("b", "bias", np.asarray))
    },
}


def by_gate(values: np.ndarray) -> np.ndarray:
    """TensorFlow's gates i, j, f, o -> i, f, j, o along the last axis."""
    i, j, f, o = np.split(values, 4, axis=-1)
    return np.concatenate([i, f, j, o], axis=-1)


def released_variables(arrays, when: str) -> dict[str, torch.Tensor]:
    """`init` or `final` values under our names."""
    take = lambda name: arrays[f"{when}/lm/{name}:0"]  # noqa: E731
    found = {f"elmo.{ours}": move(take(name)) for name, (ours, move) in MOVED.items()}
    found |= {"lm_head.weight": take("softmax/W"), "lm_head.bias": take("softmax/b")}
    for direction, side in enumerate(("forward", "backward")):
        for layer in range(2):
            cell = f"RNN_{direction}/rnn/multi_rnn_cell/cell_{layer}/lstm_cell"
            ours = f"elmo.layers.{layer}.{side}_lstm"
            kernel, bias = by_gate(take(f"{cell}/kernel")).T, by_gate(take(f"{cell}/bias"))
            found[f"{ours}.input.weight"], found[f"{ours}.recurrent.weight"] = np.split(kernel, 2, axis=1)
            found[f"{ours}.input.bias"] = bias + np.repeat([0, 1, 0, 0], 16).astype(np.float32)
            found[f"{ours}.projection.weight"] = take(f"{cell}/projection/kernel").T
    return {name: torch.tensor(np.ascontiguousarray(values)) for name, values in found.items()}


def released_model(arrays, **changes) -> ElmoForPreTraining:
    filters = [[1, 8], [2, 8], [3, 16], [4, 32], [5, 64]]
    sizes = {"char_embedding_size": 4, "hidden_size": 16, "cell_size": 16, "max_characters_per_token": 10}
    clips = {"cell_clip": 0.4, "proj_clip": 0.1, "hidden_dropout_prob": 0.0}
    config = ElmoConfig(filters=filters, lm_vocab_size=32, num_sampled=0, state="carry", **sizes, **clips)
    for name, value in changes.items():
        setattr(config, name, value)
    model = ElmoForPreTraining(config)
    missing, unexpected = model.load_state_dict(released_variables(arrays, "init"), strict=False)
    assert not unexpected and all("mixes" in name or "initial" in name for name in missing)
    return model.train()


def batch(arrays, number: int) -> dict[str, torch.Tensor]:
    given = {
        f"{prefix}{ours}": torch.tensor(arrays[f"batch{number}/{name}{suffix}"]).long()
        for prefix, suffix in (("", ""), ("reverse_", "_reverse"))
        for ours, name in (("input_ids", "tokens_characters"), ("labels", "next_token_id"))
    }
    return {name: ids + 1 if name.endswith("input_ids") else ids for name, ids in given.items()}


def check_end(model: ElmoForPreTraining, arrays) -> None:
    for name, values in released_variables(arrays, "final").items():
        torch.testing.assert_close(
            model.state_dict()[name], values, atol=1e-6, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )
